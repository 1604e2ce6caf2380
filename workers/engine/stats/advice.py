"""One sentence on what to do about skew, and the setting to change where one would help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.spec.options import AggPhase, JobSettings, Toggle
from service.spec.query import JoinKind
from service.spec.reports import HotKeyReport, RuleOutcome, RuleTrace, StageSkew
from workers.engine.plan.algebra import refusal_of
from workers.engine.plan.distinct import distinct_sets, spark_expands
from workers.engine.plan.nodes import Aggregate, AggregateRole, Join, Node, Phases
from workers.engine.plan.transform import walk_up
from workers.engine.stats.partitioning import BROADCAST_BYTES, is_partitioned_by, size_of
from workers.engine.stats.statistics import Statistics

_SPLIT_RULE = "split_distinct_aggregate"


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
                    yield _on_join(_subject(report), node, situation.statistics)
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
        return Advice(
            f"{subject} and they are counted on one task: set distinct_split.enabled to true to spread them by value.",
            "distinct_split.enabled",
            Toggle.TRUE.value,
            hurts=True,
        )
    if node.phases is Phases.ONE_PHASE:
        return Advice(
            f"{subject} and all of them go to one task: set agg_phase to TWO_PHASE to aggregate before the shuffle.",
            "agg_phase",
            AggPhase.TWO_PHASE.value,
            hurts=True,
        )
    return Advice(f"{subject}; the join below has brought them to one task, and no setting changes where they are.")


def _stays_by_group(node: Aggregate, statistics: Statistics) -> bool:
    """Whether one task has all rows of a group before any of them are put together."""
    if spark_expands(node):
        return False
    keys = (key.expression for key in node.keys)
    return node.phases is Phases.ONE_PHASE or is_partitioned_by(node.input, keys, statistics)


def _can_be_split(node: Aggregate) -> bool:
    keys = {key.expression.sql for key in node.keys}
    values = {value.sql for values in distinct_sets(node) for value in values}
    return not values <= keys and all(refusal_of(call) is None for call in node.calls)


def _was_split(situation: Situation) -> bool:
    return any(rule.rule == _SPLIT_RULE and rule.outcome is RuleOutcome.FIRED for rule in situation.rules)


def _on_join(subject: str, node: Join, statistics: Statistics) -> Advice:
    if _is_broadcast(node, statistics):
        return Advice(f"{subject}; Spark broadcasts the other side and moves none of them, nothing needs to change.")
    return Advice(
        f"{subject} and they are joined on one task: no setting changes that; drop or aggregate them before the join.",
        hurts=True,
    )


def _is_broadcast(node: Join, statistics: Statistics) -> bool:
    sides = []
    if node.kind not in {JoinKind.RIGHT, JoinKind.FULL}:
        sides.append(node.right)
    if node.kind in {JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT}:
        sides.append(node.left)
    sizes = (size_of(side, statistics) for side in sides)
    return any(size is not None and size <= BROADCAST_BYTES for size in sizes)


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
