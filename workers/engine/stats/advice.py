"""One sentence on what to do about skew, and the setting to change where one would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.spec.options import AggPhase, JobSettings, Toggle
from service.spec.reports import HotKeyReport, RuleOutcome, RuleTrace, StageSkew
from service.spec.strategies import DistinctMethod, JoinSkew
from workers.engine.plan import isolation
from workers.engine.plan.algebra import refusal_of
from workers.engine.plan.distinct import bucket_refusal, distinct_sets, spark_expands
from workers.engine.plan.nodes import Aggregate, AggregateRole, Join, Node, Phases
from workers.engine.plan.transform import walk_up
from workers.engine.stats.cardinality import label_of
from workers.engine.stats.join_loads import join_profile
from workers.engine.stats.partitioning import is_broadcast, is_partitioned_by
from workers.engine.stats.skewed_joins import isolate_way, plain_cost, salt_way
from workers.engine.stats.statistics import Statistics

_SPLIT_RULE = "split_distinct_aggregate"
_SKEW_RULE = "skewed_join"


class KeyRole(StrEnum):
    """What a plan does with a key."""

    GROUP = "group key"
    JOIN = "join key"
    DISTINCT = "distinct value"


@dataclass(frozen=True)
class Advice:
    """`setting` and `value` are None where no setting would help. `hurts`: a task has more to do than others for it."""

    sentence: str
    setting: str | None = None
    value: str | None = None
    hurts: bool = False


@dataclass(frozen=True)
class Situation:
    """Everything that advice depends on. `plan`, `rules` and `stages` are those of the run."""

    plan: Node
    statistics: Statistics
    settings: JobSettings
    rules: Sequence[RuleTrace]
    stages: Sequence[StageSkew]


def advise(keys: Sequence[HotKeyReport], situation: Situation) -> Advice:
    """What to change because of `keys`, the hot ones: a setting where one helps, else why none does, first for a key
    that hurts.
    """
    found = [advice for report in keys for advice in _on_key(report, situation)]
    ordered = sorted(found, key=lambda advice: (advice.setting is None, not advice.hurts))
    return ordered[0] if ordered else _without_keys(situation.stages)


def _on_key(report: HotKeyReport, situation: Situation) -> Iterator[Advice]:
    columns = frozenset(report.columns)
    match report.role:
        case KeyRole.GROUP:
            for node in walk_up(situation.plan):
                if isinstance(node, Aggregate) and node.role is not AggregateRole.FINAL and columns == group_of(node):
                    yield _on_group(_subject(report), node, situation)
        case KeyRole.JOIN:
            for node in walk_up(situation.plan):
                if isinstance(node, Join) and columns in sides_of(node):
                    yield _on_join(report, node, situation)
        case _:
            yield Advice(
                f"{_subject(report)}; equal values of a group are put together early, nothing needs to change."
            )


def _on_group(subject: str, node: Aggregate, situation: Situation) -> Advice:
    if node.role is AggregateRole.PARTIAL:
        return Advice(f"{subject}; {_SPLIT_RULE} has spread it over buckets, nothing needs to change.")
    if not _stays_by_group(node, situation.statistics):
        how = (
            "Spark shuffles by group and distinct value, which spreads it"
            if distinct_sets(node)
            else "every task aggregates its own rows of it before the shuffle"
        )
        return Advice(f"{subject}; {how}, nothing needs to change.")
    if _can_be_split(node) and not _was_split(situation):
        # Beside another method, distinct_split.enabled would contradict it.
        setting, value = "distinct_split.enabled", Toggle.TRUE.value
        if situation.settings.distinct_method is not DistinctMethod.AUTO:
            setting, value = "distinct_method", DistinctMethod.SPLIT.value
            if situation.settings.distinct_split.enabled is Toggle.FALSE:
                # Refused beside the false one, as that is beside another method: no one setting helps.
                return Advice(
                    f"{subject} and they are counted on one task: set {setting} to {value} and leave "
                    "distinct_split.enabled out to spread them by value.",
                    hurts=True,
                )
        return Advice(
            f"{subject} and they are counted on one task: set {setting} to {value} to spread them by value.",
            setting,
            value,
            hurts=True,
        )
    if node.phases is Phases.ONE_PHASE:
        return Advice(
            f"{subject} and all of them go to one task: set agg_phase to TWO_PHASE to aggregate before the shuffle.",
            "agg_phase",
            AggPhase.TWO_PHASE.value,
            hurts=True,
        )
    return Advice(f"{subject}; what is below has brought them to one task, and there they are aggregated.")


def _stays_by_group(node: Aggregate, statistics: Statistics) -> bool:
    """Whether one task has all rows of a group before any of them are put together."""
    # For grouping sets Spark copies the rows, too, and parts the copies by the number of their set as well.
    if spark_expands(node) or node.grouping_sets:
        return False
    keys = (key.expression for key in node.keys)
    return node.phases is Phases.ONE_PHASE or is_partitioned_by(node.input, keys, statistics)


def _can_be_split(node: Aggregate) -> bool:
    keys = {key.expression.sql for key in node.keys}
    values = [value for values in distinct_sets(node) for value in values]
    may_be_hashed = all(bucket_refusal(value) is None for value in values)
    return may_be_hashed and not {value.sql for value in values} <= keys and not any(map(refusal_of, node.calls))


def _was_split(situation: Situation) -> bool:
    return _has_fired(_SPLIT_RULE, situation)


def _on_join(report: HotKeyReport, node: Join, situation: Situation) -> Advice:
    subject = _subject(report)
    if is_broadcast(node, situation.statistics):
        return Advice(f"{subject}; Spark broadcasts the other side and moves none of them, nothing needs to change.")
    if node.strategy.skew is JoinSkew.NONE and _has_fired(_SKEW_RULE, situation):
        return Advice(f"{subject}; {_SKEW_RULE} has joined it apart from the others, nothing needs to change.")
    way = _way_apart(report, node, situation)
    if way is not None:
        how = "join them apart from the others" if way is JoinSkew.ISOLATE else "spread them by a salt"
        return Advice(
            f"{subject} and they are joined on one task: set join.skew to {way.value} to {how}.",
            "join.skew",
            way.value,
            hurts=True,
        )
    if situation.settings.eager_aggregation is Toggle.FALSE and _is_aggregated(node, situation.plan):
        return Advice(
            f"{subject} and they are joined on one task: set eager_aggregation to auto to aggregate before the join "
            "where that gives the same result.",
            "eager_aggregation",
            Toggle.AUTO.value,
            hurts=True,
        )
    return Advice(
        f"{subject} and they are joined on one task: join.skew cannot part them in this join; drop or aggregate them "
        "before it.",
        hurts=True,
    )


def _has_fired(name: str, situation: Situation) -> bool:
    return any(rule.rule == name and rule.outcome is RuleOutcome.FIRED for rule in situation.rules)


def _way_apart(report: HotKeyReport, node: Join, situation: Situation) -> JoinSkew | None:
    """What `join.skew` would have to be for the hottest key of `report` to be many tasks' work."""
    profile = join_profile(node, situation.statistics) if isolation.refusal_of(node) is None else None
    if profile is None:
        return None
    hottest = report.hot_keys[0]
    side = isolation.Side.LEFT if frozenset(report.columns) == sides_of(node)[0] else isolation.Side.RIGHT
    if hottest.is_null:
        return JoinSkew.ISOLATE if isolation.can_pass_nulls(node, side) else None
    hot = [load for load in profile.loads if load.value == label_of(hottest)]
    ways = {JoinSkew.ISOLATE: isolate_way(node, profile, hot, ()), JoinSkew.SALT: salt_way(node, profile, hot, ())}
    cheaper = {
        name: way.cost.slowest
        for name, way in ways.items()
        if way is not None and way.cost.slowest < plain_cost(profile).slowest
    }
    return min(cheaper, key=lambda name: cheaper[name], default=None)


def _is_aggregated(node: Join, plan: Node) -> bool:
    """Whether what the join emits is aggregated."""
    return any(isinstance(part, Aggregate) and node in set(walk_up(part.input)) for part in walk_up(plan))


def _without_keys(stages: Sequence[StageSkew]) -> Advice:
    if not stages:
        return Advice("No key and no task stands out: nothing needs to change.")
    return Advice(
        f"Stage {stages[0].stage_id} waited for one task, but no key of the sample stands out: "
        "look for uneven input files, or for keys that are expressions; no setting changes either."
    )


def _subject(report: HotKeyReport) -> str:
    hottest = report.hot_keys[0]
    columns = ", ".join(report.columns)
    return f"The {report.role} {columns} is {hottest.value} in {hottest.share:.0%} of the rows"


def group_of(node: Aggregate) -> frozenset[str]:
    """The group keys that are columns; a bucket beside them is an expression."""
    return frozenset(key.expression.column for key in node.keys if key.expression.column is not None)


def sides_of(node: Join) -> tuple[frozenset[str], frozenset[str]]:
    """The columns among the left and the right join keys."""
    return (
        frozenset(left.column for left, _ in node.keys if left.column is not None),
        frozenset(right.column for _, right in node.keys if right.column is not None),
    )
