"""What is told of a streaming plan beside its shape: settings that it does not follow, and state that only grows.

Plans bound queries over streams, for a session that runs their mini-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from service.contract.enums import OutputMode
from service.contract.options import (
    AggPhase,
    DistinctMethod,
    DistinctSplitSettings,
    JobSettings,
    JoinSettings,
    JoinSkew,
    SkewSettings,
    Toggle,
)
from service.contract.reports import PlanReport, RuleOutcome, RuleTrace
from service.sql.resolve.bound import BoundQuery, tables_of
from workers.engine.budget import PlanningBudget, no_check
from workers.engine.plan.builder import build
from workers.engine.plan.explain import line_of, seconds
from workers.engine.plan.nodes import Join, Node, Windows
from workers.engine.plan.traversal import NodeIds, id_of, walk_up, with_ids
from workers.engine.planner import plan_report
from workers.engine.spark.lowering import lower
from workers.engine.spark.session_options import task_memory
from workers.engine.spark.sources import TableInput, ddl_of, scans_of
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.statistics.model import Statistics
from workers.engine.streaming.sinks.base import OfNothing
from workers.engine.streaming.sources import BatchBound, Input, SourceRead, read_inputs, reads_of
from workers.engine.streaming.state import StateOptions, layout_of, prepare_session
from workers.engine.streaming.static_joins import join_static_tables, static_joins
from workers.engine.streaming.stream_plan import (
    NO_BITMAPS,
    Bitmaps,
    Shape,
    StreamPlan,
    apart,
    bitmap_obstacle,
    stream_plan,
)
from workers.engine.streaming.table_statistics import gather_for_joins, values_per_block

STREAM_SHAPE = "stream_shape"
"""Who tells in the trace what a stream's state holds, and why."""

STREAM_STATE = "stream_state"
"""Who tells what becomes of it."""

STREAM_SETTINGS = "stream_settings"
"""Who tells of settings without effect."""

_GROWS = {
    Shape.DISTINCT_ROWS: "every different row",
    Shape.PLAIN: "every group",
    Shape.DISTINCT: "every distinct value of every group",
    Shape.UNITED: "every distinct value of every group",
    Shape.BITMAP: "a bitmap for each group and block of values",
    Shape.JOINED: "every key of both streams, and every distinct value of each",
}
_OF_VALUES = frozenset({Shape.DISTINCT, Shape.UNITED, Shape.BITMAP})


def traces_of(
    plan: StreamPlan, streams: frozenset[str], settings: JobSettings, *, is_changed: bool
) -> tuple[RuleTrace, ...]:
    """The traces of a streaming plan, in the order of the report. `streams` are the aliases of streams; `is_changed`
    says that the plan has nodes that the query has not.
    """
    root, root_id = line_of(plan.before), plan.before.id
    outcome = RuleOutcome.FIRED if is_changed else RuleOutcome.SKIPPED
    shape = RuleTrace(rule=STREAM_SHAPE, outcome=outcome, node=root, node_id=root_id, reason=plan.reason)
    others = ((STREAM_STATE, reason) for reason in _of_state(plan))
    idle = ((STREAM_SETTINGS, reason) for reason in _without_effect(plan, streams, settings))
    told = (
        RuleTrace(rule=rule, outcome=RuleOutcome.SKIPPED, node=root, node_id=root_id, reason=reason)
        for rule, reason in (*others, *idle)
    )
    return (shape, *told)


def _of_state(plan: StreamPlan) -> Iterator[str]:
    joins = [node for node in walk_up(plan.node) if isinstance(node, Join) and node.within is not None]
    if joins:
        yield _of_joined_rows(joins)
    kept = _GROWS.get(plan.shape)
    if kept is None:
        return
    if any(isinstance(node, Windows) for node in walk_up(plan.node)):
        yield "The state of a window is dropped once no more rows are to come for it."
        return
    yield (
        f"Nothing is ever dropped: the state keeps {kept}, and grows with them for as long as the job goes on. "
        "GET /v1/jobs/{id}/batches tells what each mini-batch added. Group by a window of event time to bound it."
    )


def _of_joined_rows(joins: list[Join]) -> str:
    within = joins[0].within
    if within is None:
        raise ValueError("a join that keeps no rows")
    left, right = (seconds(max(0, microseconds)) for microseconds in (-within.at_least_us, within.at_most_us))
    twice = "" if len(joins) == 1 else " The join is run, and its rows are kept, twice: for DISTINCT, and for the rest."
    return (
        "The state keeps the rows of both streams that may find partners: those of the left side until the watermark "
        f"is {left} beyond their time, those of the right side until it is {right} beyond. The watermark is the newest "
        "time of the stream that is furthest behind, less its delay, of what came since the job was last started; rows "
        f"without a partner, where the join emits them, come out then, and rows from before it are left out.{twice}"
    )


def _without_effect(plan: StreamPlan, streams: frozenset[str], settings: JobSettings) -> Iterator[str]:
    if settings.agg_phase is not AggPhase.AUTO:
        yield (
            "agg_phase is given: on a stream Spark always aggregates a mini-batch locally, before the shuffle and "
            "again before it looks anything up."
        )
    if settings.distinct_split != DistinctSplitSettings():
        yield (
            "distinct_split.* is given: the values of a stream are spread by group and value already, and as bitmaps "
            "by group and block; there is no hot group to split."
        )
    if settings.distinct_method not in {DistinctMethod.AUTO, DistinctMethod.BITMAP} and plan.shape not in _OF_VALUES:
        yield f"distinct_method is {settings.distinct_method.value}, but no aggregate over one stream is over DISTINCT."
    if not settings.incremental_agg:
        yield "incremental_agg is given: a stream aggregates once, so that there are no two phases to merge."
    if settings.eager_aggregation is not Toggle.AUTO:
        yield "eager_aggregation is given: two streams are aggregated without a join, and static tables after it."
    joins = tuple(static_joins(plan.node, streams))
    whole = settings.join.model_copy(update={"skew": JoinSkew.AUTO})
    if whole != JoinSettings() and not joins:
        yield "join.ship or join.local is given, but no static table is joined."
    keyed = any(join.keys for join in joins)
    if settings.join.skew is not JoinSkew.AUTO and not keyed:
        yield "join.skew is given, but no static table is joined by equal keys."
    if settings.skew != SkewSettings() and not keyed:
        yield "skew.* is given, but no static table is joined by equal keys: nothing else on a stream has hot keys."


_VALUES_PER_BLOCK = 32
"""From so many distinct values in a block on it is looked up, written and kept for less than they are one by one."""

_DEFAULTS = JobSettings()


@dataclass(frozen=True)
class PlannedStream:
    """A query over streams that is ready to start."""

    report: PlanReport
    plan: StreamPlan
    frame: DataFrame
    output: OutputMode
    layout: dict[str, Any]
    """What its state looks like, as JSON values: see `workers.engine.streaming.state`."""
    reads: tuple[SourceRead, ...]
    """See `reads_of`."""
    of_nothing: OfNothing | None = None
    """What the query answers of no rows, where it answers a row then: one without GROUP BY does."""


class StreamEngine:
    """Plans streaming queries in one Spark session, which is theirs alone. What is known of files is kept in `cache`,
    which engines may share.
    """

    def __init__(self, session: SparkSession, slots: int, cache: StatisticsCache | None = None) -> None:
        self._session = session
        self._slots = slots
        self._cache = StatisticsCache() if cache is None else cache

    def plan(
        self,
        query: BoundQuery,
        tables: Mapping[str, Input],
        state: StateOptions,
        bounds: Mapping[str, BatchBound],
        *,
        output: OutputMode | None = None,
        settings: JobSettings = _DEFAULTS,
        puts_parts_together: bool = True,
        kept: Mapping[str, Any] | None = None,
        check: Callable[[], None] = no_check,
    ) -> PlannedStream:
        """Plan, DataFrame and report; reads a sample of files at most. `tables` and `bounds` are by table name.
        `puts_parts_together`: whether the sink takes groups in parts. `kept` is the layout of the state that is there,
        which a plan that could be another one follows. `check` is called between steps; it raises as soon as the plan
        is no longer wanted. Raises StreamPlanError for a query that a stream cannot run, and what Spark raises when it
        analyses a plan; `output` as in `stream_plan`.
        """
        prepare_session(self._session, state)
        streams = frozenset(
            table.alias for table in tables_of(query) if not isinstance(tables[table.table], TableInput)
        )
        built = with_ids(build(query))
        check()
        bitmaps = self._bitmaps(built, streams, tables, settings.distinct_method, kept, check)
        if bitmaps.wanted and not puts_parts_together:
            bitmaps = Bitmaps(False, "The sink takes whole groups, and bitmaps are parts of groups.")
        plan = stream_plan(built, streams, bitmaps, output)
        plan = replace(plan, node=NodeIds.after(built).number(plan.node))
        emits = OutputMode.APPEND if plan.keys is None else OutputMode.UPDATE
        # Before joins with static tables are looked at: they keep no state, and may run in another way the next time.
        layout = layout_of(
            plan, streams, provider=state.provider.value, partitions=state.partitions, output=emits.value
        )
        check()
        known = self._statistics(plan, streams, tables, bounds, settings, check)
        check()
        of_query = frozenset(walk_up(plan.before))
        made = [id_of(node) for node in walk_up(plan.node) if node not in of_query]
        budget = PlanningBudget(check, settings.optimizer.timeout.total_seconds())
        joined = join_static_tables(plan.node, streams, known, settings, dict.fromkeys(made, STREAM_SHAPE), budget)
        check()
        inputs = read_inputs(self._session, joined.after, tables, bounds)
        check()
        frame = lower(joined.after, inputs)
        check()
        trace = (*traces_of(plan, streams, settings, is_changed=bool(made)), *joined.trace)
        report = plan_report(replace(joined, before=plan.before, trace=trace), known, None)
        planned = replace(plan, node=joined.after)
        return PlannedStream(report, planned, frame, emits, layout, reads_of(frame), self._of_nothing(plan))

    def _statistics(
        self,
        plan: StreamPlan,
        streams: frozenset[str],
        tables: Mapping[str, Input],
        bounds: Mapping[str, BatchBound],
        settings: JobSettings,
        check: Callable[[], None],
    ) -> Statistics:
        """What is known of the tables that are joined; nothing where no join is the rules' to look at."""
        joins = tuple(dict.fromkeys(static_joins(plan.node, streams)))
        if not joins:
            return Statistics({}, {}, self._slots)
        memory = task_memory(self._session, self._slots)
        return gather_for_joins(plan.node, joins, tables, bounds, settings, self._slots, memory, self._cache, check)

    def _bitmaps(
        self,
        built: Node,
        streams: frozenset[str],
        tables: Mapping[str, Input],
        method: DistinctMethod,
        kept: Mapping[str, Any] | None,
        check: Callable[[], None],
    ) -> Bitmaps:
        """Whether distinct integers are kept as bitmaps, where they can be."""
        aggregate = apart(built)[2]
        if aggregate is None or bitmap_obstacle(built, streams) is not None:
            return NO_BITMAPS
        if kept is not None:
            return Bitmaps(kept.get("shape") == Shape.BITMAP.value, "The state that is there is kept so.")
        if method is not DistinctMethod.AUTO:
            return Bitmaps(method is DistinctMethod.BITMAP, f"distinct_method is {method.value}.")
        density = values_per_block(aggregate, tables, check)
        if density is None:
            return Bitmaps(False, "No sample tells how close together the values are, which is what bitmaps are for.")
        told = f"A group has some {density:.0f} distinct values in a block of 32,768 neighbours where it has any"
        if density < _VALUES_PER_BLOCK:
            return Bitmaps(False, f"{told}: a bitmap, which takes 4 KB, would be mostly empty.")
        return Bitmaps(True, f"{told}: a bitmap is looked up once for all of those that a mini-batch has.")

    def _of_nothing(self, plan: StreamPlan) -> OfNothing | None:
        """By Spark itself, which is asked for the query over tables without rows."""
        if plan.keys != ():
            return None
        scans = {
            scan.alias: self._session.createDataFrame([], ddl_of(field for field, _ in scan.columns))
            for scan in scans_of(plan.before)
        }
        rows = lower(plan.before, scans).collect()
        return tuple(map(_as_json, rows[0])) if rows else None


def _as_json(value: Any) -> bool | int | float | str | None:
    return value if value is None or isinstance(value, bool | int | float) else str(value)
