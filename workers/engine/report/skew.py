"""The skew report of a job: hot keys, skewed stages, the time that they cost, and advice.

The advice is one sentence, with the setting to change if one would help. Hot keys are taken from the sample that was
read before the run, skewed stages from Spark's measurements of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from service.contract.options import AggPhase, DistinctMethod, JobSettings, JoinSkew, Toggle
from service.contract.query import JoinKind
from service.contract.reports import HotKey, HotKeyReport, RuleOutcome, RuleTrace, SkewReport
from service.sql.expressions.nodes import Column
from service.sql.joins import Side
from workers.engine.plan.aggregates import bucket_refusal, distinct_sets, refusal_of, spark_expands
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Deduplicate,
    Join,
    MultisetOperation,
    Node,
    Phases,
    Project,
    Recursion,
    Scan,
    StepRows,
    Union,
    Values,
    WindowFunctions,
    columns_below,
    inputs_of,
    names_of,
    scanned_columns,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.report.operator_tree import numbered
from workers.engine.report.task_skew import Evidence, Finding
from workers.engine.rules.joins import skew_rewrite
from workers.engine.rules.joins.hot_keys import join_profile
from workers.engine.rules.joins.skew_cost import isolation_plan, plain_cost, salting_plan
from workers.engine.rules.windows.running import over_of
from workers.engine.statistics.cardinality import label_of, profile_of
from workers.engine.statistics.groups import profile_of_groups
from workers.engine.statistics.model import KeySketch, Statistics
from workers.engine.statistics.partitioning import is_broadcast, is_partitioned_by

_SPLIT_RULE = "split_distinct_aggregate"
_SKEW_RULE = "skewed_join"
_EAGER_RULE = "eager_aggregation"
_WINDOWS_RULE = "skewed_windows"

_NOTICEABLE = 0.2
"""A key with at least this share of the rows is reported, however few tasks there are."""

_KEEPS_LEFT = frozenset({JoinKind.LEFT, JoinKind.FULL, JoinKind.LEFT_ANTI})
_KEEPS_RIGHT = frozenset({JoinKind.RIGHT, JoinKind.FULL})


class KeyRole(StrEnum):
    """What a plan uses a key for."""

    GROUP = "group key"
    JOIN = "join key"
    PARTITION = "partition key"
    DISTINCT = "distinct value"


@dataclass(frozen=True)
class Advice:
    """A sentence for the user. `setting` and `value` are None if no setting would help. `hurts`: a hot key gives one
    task more work than the others.
    """

    sentence: str
    setting: str | None = None
    value: str | None = None
    hurts: bool = False


@dataclass(frozen=True)
class Change:
    """Settings to change, by name, and what the changed plan does. `Advice` can name it only if it is one setting."""

    settings: Mapping[str, str]
    advice: str


@dataclass(frozen=True)
class OneTask:
    """One task processes all rows of a hot key at one operator.

    `rows` is the estimated number of these rows in the plan that ran. `what` describes what the task does with them,
    and `otherwise` is the advice if no setting helps. The first of `changes` that changes the plan is recommended.
    """

    subject: str
    node_id: int
    rows: float | None
    what: str
    otherwise: str
    changes: tuple[Change, ...] = ()


Effect = OneTask | Advice
"""What one operator does with a hot key; an `Advice` if it makes no task slow."""


@dataclass(frozen=True)
class Situation:
    """Everything that advice depends on. `plan`, `rules` and `evidence` are those of the run. `replan` returns the text
    of the plan of the same query with other settings, or None if planning ran out of time.
    """

    plan: Node
    statistics: Statistics
    settings: JobSettings
    rules: Sequence[RuleTrace]
    evidence: Evidence
    replan: Callable[[JobSettings], str | None]

    def changes_plan(self, change: Change) -> bool:
        """Whether the query is known to have another plan with these settings; False if planning ran out of time."""
        now, then = self.replan(self.settings), self.replan(with_settings(self.settings, change.settings))
        return now is not None and then is not None and now != then


def with_settings(settings: JobSettings, changes: Mapping[str, str]) -> JobSettings:
    """Returns `settings` with other values, by names such as `join.skew`."""
    changed: dict[str, Any] = settings.model_dump(mode="json", by_alias=True)
    for name, value in changes.items():
        *groups, last = name.split(".")
        place = changed
        for group in groups:
            place = place[group]
        place[last] = value
    return JobSettings.model_validate(changed)


def effects_of(report: HotKeyReport, situation: Situation) -> tuple[Effect, ...]:
    """Returns what each operator of the plan that ran does with the hottest key of `report`."""
    return tuple(_effects(report, situation))


def advise(effects: Sequence[Effect], situation: Situation) -> Advice:
    """Returns the most useful advice on hot keys with these effects: a setting that helps; else a key that makes a task
    slow; else a stage that no key explains; else the reason why nothing needs to change.
    """
    evidence = situation.evidence
    found = [_advice_on(effect, situation) for effect in effects]
    urgent = sorted((advice for advice in found if advice.hurts), key=lambda advice: advice.setting is None)
    if urgent:
        return urgent[0]
    if evidence.skewed:
        return Advice(
            f"Stage {evidence.skewed[0].stage_id} waited for one task, and no hot key of the sample explains it. "
            "Check for input files of uneven size, for keys that are expressions, and for other load on the machine. "
            "No setting changes these."
        )
    return next(iter(found), Advice("There are no hot keys and no slow tasks. Nothing needs to change."))


def _advice_on(effect: Effect, situation: Situation) -> Advice:
    if isinstance(effect, Advice):
        return effect
    evidence = situation.evidence
    finding = evidence.finding_on(effect.rows, effect.node_id)
    fact = f"{effect.subject} and {effect.what}"
    if finding is Finding.WRONG:
        return Advice(
            f"{effect.subject} of the sample, but in the run no task read more than {evidence.most_rows:,} rows from a "
            "shuffle. The estimate was wrong, so no advice is based on it."
        )
    is_slow = bool(evidence.skewed) or not evidence.is_measured
    no_slow_task = f"no task took more than {evidence.factor:g} times the median of its stage (skew.factor)"
    change = None
    if finding is not Finding.EVEN:
        change = next((change for change in effect.changes if situation.changes_plan(change)), None)
    if change is None and (finding is Finding.EVEN or not is_slow):
        return Advice(f"{fact}, but {no_slow_task}. Nothing needs to change.")
    if change is None:
        return Advice(f"{fact}. {effect.otherwise}.", hurts=True)
    setting, value = next(iter(change.settings.items())) if len(change.settings) == 1 else (None, None)
    measured = "" if is_slow else f" In this run {no_slow_task}."
    return Advice(f"{fact}. {change.advice}.{measured}", setting, value, hurts=True)


def _effects(report: HotKeyReport, situation: Situation) -> Iterator[Effect]:
    columns, subject = frozenset(report.columns), _subject(report)
    match report.role:
        case KeyRole.GROUP:
            for each in numbered(situation.plan).walk():
                node = each.node
                if isinstance(node, Aggregate) and node.role is not AggregateRole.FINAL and columns == group_of(node):
                    yield _on_group(report, node, each.id, situation)
        case KeyRole.JOIN:
            for each in numbered(situation.plan).walk():
                if isinstance(each.node, Join) and columns in sides_of(each.node):
                    yield _on_join(report, each.node, each.id, situation)
        case KeyRole.PARTITION:
            for each in numbered(situation.plan).walk():
                for partitions in partitions_of(each.node):
                    if columns == partitions.columns:
                        yield _on_window(report, each.node, partitions, each.id, situation)
        case _:
            yield Advice(
                f"{subject}. Spark combines equal values of a group before the shuffle. Nothing needs to change."
            )


def _on_group(report: HotKeyReport, node: Aggregate, node_id: int, situation: Situation) -> Effect:
    subject, statistics = _subject(report), situation.statistics
    if node.role is AggregateRole.PARTIAL:
        return Advice(f"{subject}. {_SPLIT_RULE} distributed these rows over buckets. Nothing needs to change.")
    if _is_aggregated(node.input, report.columns):
        return Advice(f"{subject}. These rows are aggregated before they are grouped. Nothing needs to change.")
    if not _reaches_one_task(node, statistics):
        how = (
            "Spark shuffles by group and distinct value, which distributes these rows over several tasks"
            if distinct_sets(node)
            else "Every task aggregates its share of these rows before the shuffle"
        )
        return Advice(f"{subject}. {how}. Nothing needs to change.")
    return OneTask(
        subject,
        node_id,
        _rows_of(report.hot_keys[0], node.input, report.columns, statistics),
        "one task counts their distinct values" if _can_be_split(node) else "one task processes all of them",
        "An earlier operator sent them to that task, and they are aggregated there; no setting changes this",
        tuple(_changes_for_group(node, situation.settings)),
    )


def _changes_for_group(node: Aggregate, settings: JobSettings) -> Iterator[Change]:
    if _can_be_split(node):
        changes, omit = {"distinct_split.enabled": Toggle.TRUE.value}, ""
        if settings.distinct_method is not DistinctMethod.AUTO:
            # distinct_split.enabled would contradict another method.
            changes = {"distinct_method": DistinctMethod.SPLIT.value}
            if settings.distinct_split.enabled is Toggle.FALSE:
                changes["distinct_split.enabled"], omit = Toggle.AUTO.value, " and omit distinct_split.enabled"
        setting, value = next(iter(changes.items()))
        yield Change(changes, f"Set {setting} to {value}{omit} to distribute them over several tasks by distinct value")
    if node.phases is Phases.ONE_PHASE:
        value = AggPhase.TWO_PHASE.value
        yield Change({"agg_phase": value}, f"Set agg_phase to {value} to aggregate before the shuffle")


def _reaches_one_task(node: Aggregate, statistics: Statistics) -> bool:
    """Whether one task receives all rows of a group before any of them are aggregated."""
    # For grouping sets, too, Spark copies the rows, and the number of the set is one of the columns that it hashes.
    if spark_expands(node) or node.grouping_sets:
        return False
    keys = (key.expression for key in node.keys)
    return node.phases is Phases.ONE_PHASE or is_partitioned_by(node.input, keys, statistics)


def _can_be_split(node: Aggregate) -> bool:
    keys = {key.expression.sql for key in node.keys}
    values = [value for values in distinct_sets(node) for value in values]
    may_be_hashed = all(bucket_refusal(value) is None for value in values)
    return may_be_hashed and not {value.sql for value in values} <= keys and not any(map(refusal_of, node.calls))


def _on_join(report: HotKeyReport, node: Join, node_id: int, situation: Situation) -> Effect:
    subject, statistics = _subject(report), situation.statistics
    if is_broadcast(node, statistics) or node_id in situation.evidence.broadcast:
        return Advice(
            f"{subject}. Spark broadcasts the other side and does not shuffle these rows. Nothing needs to change."
        )
    side = Side.LEFT if frozenset(report.columns) == sides_of(node)[0] else Side.RIGHT
    below = node.left if side is Side.LEFT else node.right
    if _is_aggregated(below, report.columns):
        who = _EAGER_RULE if _has_fired(_EAGER_RULE, situation) else "the query"
        return Advice(f"{subject}. These rows are aggregated before the join, by {who}. Nothing needs to change.")
    if node.strategy.skew is JoinSkew.NONE and _has_fired(_SKEW_RULE, situation):
        return Advice(
            f"{subject}. {_SKEW_RULE} joined these rows separately from all other keys. Nothing needs to change."
        )
    return OneTask(
        subject,
        node_id,
        _rows_of(report.hot_keys[0], below, report.columns, statistics),
        "one task joins them",
        "join.skew cannot distribute the rows of a key of this join; filter or aggregate them before the join",
        tuple(_changes_for_join(report.hot_keys[0], side, node, situation)),
    )


def _changes_for_join(hottest: HotKey, side: Side, node: Join, situation: Situation) -> Iterator[Change]:
    for skew in _helpful_join_skews(hottest, side, node, situation.statistics):
        how = (
            "join them separately from all other keys"
            if skew is JoinSkew.ISOLATE
            else "distribute them over several tasks by a salt"
        )
        yield Change({"join.skew": skew.value}, f"Set join.skew to {skew.value} to {how}")
    if situation.settings.eager_aggregation is Toggle.FALSE:
        yield Change(
            {"eager_aggregation": Toggle.AUTO.value},
            "Set eager_aggregation to auto to aggregate before the join where the result stays the same",
        )


def _on_window(report: HotKeyReport, node: Node, partitions: Partitions, node_id: int, situation: Situation) -> Effect:
    subject, statistics = _subject(report), situation.statistics
    if partitions.are_divided and _has_fired(_WINDOWS_RULE, situation):
        return Advice(f"{subject}. {_WINDOWS_RULE} computed these rows in several tasks. Nothing needs to change.")
    (rows,) = inputs_of(node)
    profile = profile_of(rows, partitions.names, statistics) or profile_of_groups(rows, partitions.names, statistics)
    changes = {_WINDOWS_RULE: Toggle.TRUE.value}
    return OneTask(
        subject,
        node_id,
        None if profile is None else dict(profile.hot).get(label_of(report.hot_keys[0])),
        "one task computes their calls with OVER",
        f"{_WINDOWS_RULE} cannot compute these calls in several tasks; filter or aggregate the rows before",
        (Change(changes, f"Set {_WINDOWS_RULE} to true to compute them in several tasks"),),
    )


def _has_fired(name: str, situation: Situation) -> bool:
    return any(rule.rule == name and rule.outcome is RuleOutcome.FIRED for rule in situation.rules)


def _helpful_join_skews(hottest: HotKey, side: Side, node: Join, statistics: Statistics) -> Sequence[JoinSkew]:
    """Returns the values of `join.skew` that distribute the rows of the hottest key, the cheapest first."""
    profile = join_profile(node, statistics) if skew_rewrite.refusal_of(node) is None else None
    if profile is None:
        return ()
    if hottest.is_null:
        return (JoinSkew.ISOLATE,) if skew_rewrite.nulls_can_bypass(node, side) else ()
    hot = [load for load in profile.loads if load.value == label_of(hottest)]
    ways = {
        JoinSkew.ISOLATE: isolation_plan(node, profile, hot, ()),
        JoinSkew.SALT: salting_plan(node, profile, hot, ()),
    }
    cheaper = {
        name: way.cost.slowest
        for name, way in ways.items()
        if way is not None and way.cost.slowest < plain_cost(profile).slowest
    }
    return sorted(cheaper, key=lambda name: cheaper[name])


def _rows_of(key: HotKey, node: Node, columns: tuple[str, ...], statistics: Statistics) -> float | None:
    """Returns the number of rows with this key that `node` emits; None if it is not known."""
    profile = profile_of(node, columns, statistics)
    return None if profile is None else dict(profile.hot).get(label_of(key))


def _is_aggregated(node: Node, columns: tuple[str, ...]) -> bool:
    """Whether rows that are equal in `columns` of `node` have been combined since they were read from their table."""
    match node:
        case Scan() | Values() | Recursion() | StepRows():
            return False
        case Aggregate() | Deduplicate() | MultisetOperation():
            return True
        case Union() | Project() if node.replaces is not None:
            return _is_aggregated(node.replaces, columns)
        case Union():
            return all(_is_aggregated(branch, columns) for branch in node.inputs)
        case Join():
            return _is_aggregated(node.left if set(columns) <= names_of(node.left) else node.right, columns)
        case Project():
            below = columns_below(node.items, columns)
            return below is not None and _is_aggregated(node.input, below)
        case _:
            return _is_aggregated(node.input, columns)


def _subject(report: HotKeyReport) -> str:
    hottest = report.hot_keys[0]
    columns = ", ".join(report.columns)
    return f"The {report.role} {columns} is {hottest.value} in {hottest.share:.0%} of the rows"


def group_of(node: Aggregate) -> frozenset[str]:
    """Returns the group keys that are columns. A bucket is an expression and is left out."""
    return frozenset(key.expression.column for key in node.keys if key.expression.column is not None)


def sides_of(node: Join) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the columns among the left join keys, and those among the right ones."""
    return (
        frozenset(left.column for left, _ in node.keys if left.column is not None),
        frozenset(right.column for _, right in node.keys if right.column is not None),
    )


@dataclass(frozen=True)
class Partitions:
    """The partitions of a window: the `columns` of a table, and their `names` in the input of the calls. `are_divided`:
    the calls have PARTITION BY a computed column, too.
    """

    columns: frozenset[str]
    names: tuple[str, ...]
    are_divided: bool


def partitions_of(node: Node) -> tuple[Partitions, ...]:
    """Returns the partitions of calls with OVER by columns of tables, each once; none for other nodes."""
    if not isinstance(node, WindowFunctions):
        return ()
    found = []
    for call in node.calls:
        keys = over_of(call).partition_by
        names = [key.name for key in keys if isinstance(key, Column)]
        known = tuple(name for name in names if scanned_columns(node.input, (name,)) is not None)
        columns = frozenset(scanned_columns(node.input, known) or ())
        found.append(Partitions(columns, known, len(known) < len(keys)))
    return tuple(dict.fromkeys(one for one in found if one.columns))


def skew_report(
    statistics: Statistics,
    plan: Node,
    evidence: Evidence,
    settings: JobSettings,
    rules: Sequence[RuleTrace],
    replan: Callable[[JobSettings], str | None],
) -> SkewReport:
    """Returns the skew report of a run.

    `plan` is the plan that ran, `evidence` and `rules` are those of the same run. `replan` returns the text of the plan
    of the same query with other settings, or None if planning ran out of time.

    A job is skewed if one of its stages is. If Spark measured no stage, the job is skewed if by its plan one task
    processes all rows of a hot key. A key is hot if it has more than `skew.factor` times the rows of an average other
    key, and at least the share of an even partition (with two partitions a slot) or a fifth of all rows, whichever is
    less. The size in bytes does not matter.
    """
    keys = tuple(_hot_keys(statistics, plan, settings.skew.factor))
    situation = Situation(plan, statistics, settings, rules, evidence, replan)
    effects = [effects_of(key, situation) for key in keys]
    advice = advise([effect for of_key in effects for effect in of_key], situation)
    return SkewReport(
        skewed=bool(evidence.skewed) if evidence.is_measured else advice.hurts,
        keys=tuple(_with_load(key, of_key, evidence) for key, of_key in zip(keys, effects, strict=True)),
        stages=evidence.skewed,
        lost_ms=sum(stage.lost_ms for stage in evidence.skewed),
        advice=advice.sentence,
        setting=advice.setting,
        value=advice.value,
    )


def _with_load(key: HotKeyReport, effects: Sequence[Effect], evidence: Evidence) -> HotKeyReport:
    loads = [effect for effect in effects if isinstance(effect, OneTask)]
    rows = max((load.rows for load in loads if load.rows is not None), default=None)
    return key.model_copy(
        update={
            "rows_on_one_task": None if rows is None else round(rows),
            "estimate_is_wrong": any(evidence.finding_on(load.rows, load.node_id) is Finding.WRONG for load in loads),
        }
    )


@dataclass(frozen=True)
class _Use:
    """Columns whose hash decides to which task a row goes. `includes_null`: rows with NULL in them are not dropped."""

    role: KeyRole
    columns: frozenset[str]
    includes_null: bool


def _key_uses(plan: Node) -> Iterator[_Use]:
    for node in walk_up(plan):
        if isinstance(node, Join):
            left, right = sides_of(node)
            yield _Use(KeyRole.JOIN, left, node.kind in _KEEPS_LEFT)
            yield _Use(KeyRole.JOIN, right, node.kind in _KEEPS_RIGHT)
        for partitions in partitions_of(node):
            yield _Use(KeyRole.PARTITION, partitions.columns, True)
        # The final part of a split aggregate has the same group keys under other names.
        if isinstance(node, Aggregate) and node.role is not AggregateRole.FINAL:
            yield _Use(KeyRole.GROUP, group_of(node), True)
            for call in node.calls:
                if call.distinct and all(argument.column is not None for argument in call.arguments):
                    columns = frozenset(name for argument in call.arguments for name in argument.columns)
                    yield _Use(KeyRole.DISTINCT, columns, False)


def _hot_keys(statistics: Statistics, plan: Node, factor: float) -> Iterator[HotKeyReport]:
    sketches = {frozenset(sketch.columns): sketch for sketch in statistics.keys.values()}
    for use in dict.fromkeys(_key_uses(plan)):
        sketch = sketches.get(use.columns)
        hot = _hot_keys_of(sketch, use, factor, statistics.slots) if sketch is not None else ()
        if sketch is not None and hot:
            yield HotKeyReport(
                table=sketch.alias,
                columns=sketch.columns,
                role=use.role,
                hot_keys=hot,
                sampled_rows=sketch.sampled_rows,
            )


def _hot_keys_of(sketch: KeySketch, use: _Use, factor: float, slots: int) -> tuple[HotKey, ...]:
    least = min(_NOTICEABLE, 1 / (2 * max(1, slots)))
    others = max(1, sketch.distinct_keys - 1)
    return tuple(
        key
        for key in sketch.hot_keys
        if key.share >= least
        and key.share > factor * (1 - key.share) / others
        and (use.includes_null or not key.is_null)
    )
