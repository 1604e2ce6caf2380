"""Plans bound queries over streams, for a Spark session that runs their mini-batches.

`StreamEngine.plan` gives the plan, the DataFrame and the report. `traces_of` creates the report's entries about the
shape of the state, its growth, and settings that have no effect on a stream.
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
    StateProvider,
    Toggle,
)
from service.contract.reports import PlanReport, RuleTrace
from service.sql.resolve.bound import BoundQuery, tables_of
from workers.engine.budget import PlanningBudget, no_check
from workers.engine.plan.builder import build
from workers.engine.plan.explain import seconds
from workers.engine.plan.nodes import Aggregate, Filter, Join, Node, Project, Union, Windows, Within
from workers.engine.plan.traversal import NodeIds, id_of, walk_up, with_ids
from workers.engine.planner import Plan, notes_on, plan_report, trace_of
from workers.engine.rules.rule import Match, Skip
from workers.engine.spark.lowering import lower
from workers.engine.spark.session_options import task_memory
from workers.engine.spark.small_results import is_limited_by_input
from workers.engine.spark.sources import TableInput, ddl_of, file_set_of, scans_of
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.statistics.model import Statistics
from workers.engine.streaming.changes.aggregates import share_values
from workers.engine.streaming.changes.plan import FORM
from workers.engine.streaming.changes.run import Changes, one_frame, source_scans, static_scans
from workers.engine.streaming.changes.upserts import with_newest_rows
from workers.engine.streaming.sinks.base import OfNothing
from workers.engine.streaming.sources import (
    BatchBound,
    Input,
    SourceRead,
    StreamInput,
    read_inputs,
    reads_of,
    with_operations,
)
from workers.engine.streaming.state import StateOptions, layout_of, prepare_session
from workers.engine.streaming.static_joins import join_static_tables, static_joins
from workers.engine.streaming.stream_plan import (
    NO_BITMAPS,
    Bitmaps,
    Shape,
    StreamPlan,
    StreamPlanError,
    bitmap_obstacle,
    changes_plan,
    split_query,
    stream_plan,
)
from workers.engine.streaming.table_statistics import gather_for_joins, values_per_block

STREAM_SHAPE = "stream_shape"
"""The rule name of the trace about what a stream's state contains, and why."""

STREAM_STATE = "stream_state"
"""The rule name of traces about the growth of the state."""

STREAM_SETTINGS = "stream_settings"
"""The rule name of traces about settings without effect."""

_GROWS = {
    Shape.DISTINCT_ROWS: "every distinct row",
    Shape.PLAIN: "every group",
    Shape.DISTINCT: "every distinct value of every group",
    Shape.UNITED: "every distinct value of every group",
    Shape.BITMAP: "a bitmap for each group and block of values",
    Shape.JOINED: "every key of both streams, and every distinct value of each",
}
_WITH_VALUES = frozenset({Shape.DISTINCT, Shape.UNITED, Shape.BITMAP})

_VALUES_PER_BLOCK = 32
"""With this many distinct values in a block or more, a bitmap costs less to read, write and keep than the values."""

_DEFAULTS = JobSettings()


@dataclass(frozen=True)
class PlannedStream:
    """A query over streams that is ready to start."""

    report: PlanReport
    plan: StreamPlan
    frame: DataFrame
    output: OutputMode
    layout: dict[str, Any]
    """The layout of its state as JSON values: see `workers.engine.streaming.state`."""
    reads: tuple[SourceRead, ...]
    """See `reads_of`."""
    collects: bool = False
    """Whether small mini-batches may be collected (`Stage`)."""
    of_nothing: OfNothing | None = None
    """The row that the query returns for no rows, if it returns one: a query without GROUP BY does."""
    changes: Changes | None = None
    """Computes the rows of a mini-batch from those of `frame`; None if they are the same."""


class StreamEngine:
    """Plans streaming queries in their own Spark session. Engines may share `cache`, the statistics of files."""

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
        merges_parts: bool = True,
        is_log: bool = False,
        state_layout: Mapping[str, Any] | None = None,
        check: Callable[[], None] = no_check,
    ) -> PlannedStream:
        """Returns the plan, the DataFrame and the report. Reads at most a sample of files.

        `tables` and `bounds` are by table name. `merges_parts`: the sink merges the parts of groups. `is_log`: the sink
        stores each change of the result; a plan that only adds rows has no column for it. `state_layout` is
        that of an existing state, which the plan uses if it can. `check` is called between steps, and raises once the
        plan is no longer wanted. `output` is as in `stream_plan`. Raises StreamPlanError for a query that a stream
        cannot run, and what Spark raises when it analyses a plan.
        """
        prepare_session(self._session, state)
        streams = frozenset(
            table.alias for table in tables_of(query) if not isinstance(tables[table.table], TableInput)
        )
        built = with_ids(build(query))
        check()
        changed = self._planned_by_changes(
            built, streams, _changing(query, tables), tables, output, state_layout, is_log=is_log
        )
        if changed is not None:
            return self._of_changes(query, built, changed, streams, tables, bounds, settings, state, check)
        bitmaps = self._bitmaps(built, streams, tables, settings.distinct_method, state_layout, check)
        if bitmaps.wanted and not merges_parts:
            bitmaps = Bitmaps(False, "The sink stores complete groups, and bitmaps are parts of groups.")
        is_new = state_layout is None and output is not OutputMode.APPEND and not is_log
        if is_new and merges_parts and not bitmaps.wanted:
            changed = _with_shared_values(built, streams)
            if changed is not None:
                return self._of_changes(query, built, changed, streams, tables, bounds, settings, state, check)
        plan = stream_plan(built, streams, bitmaps, output)
        plan = replace(plan, node=NodeIds.after(built).number(plan.node))
        emits = OutputMode.APPEND if plan.keys is None else OutputMode.UPDATE
        # Before the joins with static tables are planned: they have no state, and may run differently the next time.
        layout = layout_of(
            plan, streams, provider=state.provider.value, partitions=state.partitions, output=emits.value
        )
        check()
        statistics = self._statistics(plan, streams, tables, bounds, settings, check)
        check()
        of_query = frozenset(walk_up(plan.before))
        added = [id_of(node) for node in walk_up(plan.node) if node not in of_query]
        budget = PlanningBudget(check, settings.optimizer.timeout.total_seconds())
        joined = join_static_tables(
            plan.node, streams, statistics, settings, dict.fromkeys(added, STREAM_SHAPE), budget
        )
        check()
        inputs = read_inputs(self._session, joined.after, tables, bounds)
        check()
        frame = lower(joined.after, inputs, self._session)
        check()
        trace = (*notes_on(query, built), *traces_of(plan, streams, settings, is_changed=bool(added)), *joined.trace)
        report = plan_report(replace(joined, before=plan.before, trace=trace), statistics, None)
        planned = replace(plan, node=joined.after)
        collects = is_limited_by_input(joined.after, report.after.sql, frame.schema)
        return PlannedStream(report, planned, frame, emits, layout, reads_of(frame), collects, self._of_nothing(plan))

    def _planned_by_changes(
        self,
        built: Node,
        streams: frozenset[str],
        changing: Mapping[str, StreamInput],
        tables: Mapping[str, Input],
        output: OutputMode | None,
        state_layout: Mapping[str, Any] | None,
        *,
        is_log: bool,
    ) -> StreamPlan | None:
        """Returns the plan by changes, if rows of streams are removed or replaced, if the query has no other plan, if
        another plan would not emit all changes for a log, or if the state is that of this one. `changing` are the
        streams with such rows, by alias.
        """
        form = FORM if state_layout is None else int(state_layout.get("form", 1))
        if changing:
            removing = frozenset(alias for alias, table in changing.items() if table.upsert is None)
            node = NodeIds.after(built).number(with_newest_rows(built, tables))
            return changes_plan(
                node, streams, "rows of a stream are removed or replaced", removing, form, is_log=is_log
            )
        if state_layout is not None and state_layout.get("shape") == Shape.CHANGES.value:
            return changes_plan(built, streams, "the existing state is that of changes", form=form, is_log=is_log)
        if output is OutputMode.APPEND or state_layout is not None:
            return None
        try:
            plan = stream_plan(built, streams, NO_BITMAPS, output)
        except StreamPlanError as error:
            return changes_plan(built, streams, str(error), is_log=is_log)
        if is_log and plan.keys is not None:
            return changes_plan(built, streams, "the sink keeps a change log", is_log=True)
        return None

    def _of_changes(
        self,
        query: BoundQuery,
        built: Node,
        plan: StreamPlan,
        streams: frozenset[str],
        tables: Mapping[str, Input],
        bounds: Mapping[str, BatchBound],
        settings: JobSettings,
        state: StateOptions,
        check: Callable[[], None],
    ) -> PlannedStream:
        if plan.changes is None:
            raise ValueError("the plan has no changes")
        scans = source_scans(plan.changes, streams)
        static_tables = {scan.table: tables[scan.table] for scan in static_scans(plan.changes, streams)}
        layout = layout_of(
            plan,
            streams,
            provider=state.provider.value,
            partitions=state.partitions,
            output=OutputMode.UPDATE.value,
            statics={
                name: file_set_of(table) for name, table in static_tables.items() if isinstance(table, TableInput)
            },
        )
        inputs = read_inputs(self._session, with_operations(plan.node, tables), tables, bounds)
        check()
        statics = {scan.alias: inputs[scan.alias] for scan in static_scans(plan.changes, streams)}
        frame = one_frame(scans, inputs)
        changes = Changes(plan.changes, scans, statics, state.partitions)
        trace = (*notes_on(query, built), *traces_of(plan, streams, settings, is_changed=False))
        statistics = Statistics({}, {}, self._slots)
        report = plan_report(Plan(before=built, after=plan.node, changed_by={}, trace=trace), statistics, None)
        return PlannedStream(
            report,
            plan,
            frame,
            OutputMode.APPEND,
            layout,
            reads_of(frame),
            # A row that a filter may remove does not come back.
            of_nothing=None if any(isinstance(node, Filter) for node in _above(plan.node)) else self._of_nothing(plan),
            changes=changes,
        )

    def _statistics(
        self,
        plan: StreamPlan,
        streams: frozenset[str],
        tables: Mapping[str, Input],
        bounds: Mapping[str, BatchBound],
        settings: JobSettings,
        check: Callable[[], None],
    ) -> Statistics:
        """Returns the statistics of joined tables; none without joins that rules may change."""
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
        state_layout: Mapping[str, Any] | None,
        check: Callable[[], None],
    ) -> Bitmaps:
        """Decides whether distinct integers are kept as bitmaps, if that is possible."""
        aggregate = split_query(built)[2]
        if aggregate is None or bitmap_obstacle(built, streams) is not None:
            return NO_BITMAPS
        if state_layout is not None:
            wanted = state_layout.get("shape") == Shape.BITMAP.value
            return Bitmaps(wanted, f"The existing state has {'' if wanted else 'no '}bitmaps.")
        if method is not DistinctMethod.AUTO:
            return Bitmaps(method is DistinctMethod.BITMAP, f"distinct_method is {method.value}.")
        density = values_per_block(aggregate, tables, check)
        if density is None:
            return Bitmaps(False, "No sample shows how dense the values are; bitmaps are for dense values.")
        found = f"A group has about {density:.0f} distinct values in each block of 32,768 neighbours that it uses"
        if density < _VALUES_PER_BLOCK:
            return Bitmaps(False, f"{found}: a bitmap, which takes 4 KB, would be almost empty.")
        return Bitmaps(True, f"{found}: a mini-batch reads one bitmap for all of its values in a block.")

    def _of_nothing(self, plan: StreamPlan) -> OfNothing | None:
        """Runs the query over tables without rows, if it has no GROUP BY."""
        if plan.keys != ():
            return None
        scans = {
            scan.alias: self._session.createDataFrame([], ddl_of(field for field, _ in scan.columns))
            for scan in scans_of(plan.before)
        }
        rows = lower(plan.before, scans).collect()
        return tuple(map(_as_json, rows[0])) if rows else None


def _changing(query: BoundQuery, tables: Mapping[str, Input]) -> dict[str, StreamInput]:
    """Returns the streams whose rows are removed or replaced, by alias."""
    found = ((table.alias, tables[table.table]) for table in tables_of(query))
    return {alias: table for alias, table in found if isinstance(table, StreamInput) and table.is_changing}


def _with_shared_values(built: Node, streams: frozenset[str]) -> StreamPlan | None:
    """Returns the plan by changes of a query that only aggregates one stream, and reads the same distinct values under
    several conditions: it reads each row once for all of them. None for other queries.
    """
    nodes = list(walk_up(built))
    aggregates = [node for node in nodes if isinstance(node, Aggregate)]
    if any(isinstance(node, Join | Windows | Union) for node in nodes):
        return None
    if not any(share_values(node.calls) for node in aggregates):
        return None
    try:
        plan = changes_plan(built, streams, "calls with DISTINCT read the same values under several conditions")
    except StreamPlanError:
        return None
    return plan if plan.changes is not None and plan.changes.shared else None


def _above(node: Node) -> Iterator[Node]:
    """Yields the filters and projections above the first aggregate."""
    while isinstance(node, Filter | Project):
        yield node
        node = node.input


def _as_json(value: Any) -> bool | int | float | str | None:
    return value if value is None or isinstance(value, bool | int | float) else str(value)


def traces_of(
    plan: StreamPlan, streams: frozenset[str], settings: JobSettings, *, is_changed: bool
) -> tuple[RuleTrace, ...]:
    """Returns the traces of a streaming plan, in the order of the report. `streams` are the aliases of streams;
    `is_changed`: the plan has nodes that the query does not have.
    """
    before = plan.before
    shape = Match(before, STREAM_SHAPE, plan.reason) if is_changed else Skip(plan.reason)
    return (
        trace_of(STREAM_SHAPE, before, shape),
        *(trace_of(STREAM_STATE, before, Skip(reason)) for reason in _notes_on_state(plan)),
        *(trace_of(STREAM_SETTINGS, before, Skip(reason)) for reason in _ineffective_settings(plan, streams, settings)),
    )


def _notes_on_state(plan: StreamPlan) -> Iterator[str]:
    joins = [node.within for node in walk_up(plan.node) if isinstance(node, Join) and node.within is not None]
    if joins:
        yield _note_on_joined_rows(joins[0], len(joins))
    if plan.changes is not None and plan.changes.steps:
        yield (
            "Nothing is removed from the state for its age: the rows that the steps keep stay until they are removed "
            "by a change, and the state grows with them."
        )
    kept = _GROWS.get(plan.shape)
    if kept is None:
        return
    if any(isinstance(node, Windows) for node in walk_up(plan.node)):
        yield "The state of a window is removed once the watermark has passed its end."
        return
    yield (
        f"Nothing is ever removed: the state keeps {kept}, and grows with them as long as the job runs. GET "
        "/v1/jobs/{id}/batches shows what each mini-batch added. Group by a window of event time to limit its size."
    )


def _note_on_joined_rows(within: Within, joins: int) -> str:
    left, right = (seconds(max(0, microseconds)) for microseconds in (-within.at_least_us, within.at_most_us))
    twice = "" if joins == 1 else " The join runs twice, and its rows are kept twice: for DISTINCT, and for the others."
    return (
        "The state keeps the rows of both streams that may have matches: those of the left side until the watermark is "
        f"{left} after their time, those of the right side until it is {right} after. The watermark is the lowest of "
        "the streams' newest times, less their delay, of the rows since the job was last started. When it passes a row "
        f"without a match, an outer join emits the row. Rows that are older than the watermark are dropped.{twice}"
    )


def _ineffective_settings(plan: StreamPlan, streams: frozenset[str], settings: JobSettings) -> Iterator[str]:
    """Yields why a setting that the job has set has no effect."""
    if settings.agg_phase is not AggPhase.AUTO:
        yield (
            "agg_phase has no effect: on a stream Spark always aggregates a mini-batch locally before the shuffle, and "
            "again before it reads the state."
        )
    if settings.distinct_split != DistinctSplitSettings():
        yield (
            "distinct_split.* has no effect: the values of a stream are already partitioned by group and value, or as "
            "bitmaps by group and block, so there is no hot group to split."
        )
    if settings.distinct_method not in {DistinctMethod.AUTO, DistinctMethod.BITMAP} and plan.shape not in _WITH_VALUES:
        method = settings.distinct_method.value
        yield f"distinct_method {method} has no effect: no aggregate over one stream has DISTINCT."
    if not settings.incremental_agg:
        yield "incremental_agg has no effect: a stream aggregates once, so there are no two phases to merge."
    if settings.eager_aggregation is not Toggle.AUTO:
        yield (
            "eager_aggregation has no effect: two streams are aggregated without a join, and static tables are joined "
            "before the aggregate."
        )
    if settings.optimizer.join_reorder is not Toggle.AUTO:
        yield "optimizer.join_reorder has no effect: streams and static tables are joined in the written order."
    if settings.skewed_windows is not Toggle.AUTO:
        yield "skewed_windows has no effect: a mini-batch computes calls with OVER for the partitions that it changes."
    if plan.changes is not None and settings.state.provider is not StateProvider.ROCKSDB:
        yield "state.provider has no effect: the state of a query by changes is in files of its own."
    joins = tuple(static_joins(plan.node, streams))
    strategies = settings.join.model_copy(update={"skew": JoinSkew.AUTO})
    if strategies != JoinSettings() and not joins:
        yield "join.ship and join.local have no effect: no static table is joined."
    has_keys = any(join.keys for join in joins)
    if settings.join.skew is not JoinSkew.AUTO and not has_keys:
        yield "join.skew has no effect: no static table is joined by an equality."
    if settings.skew != SkewSettings() and not has_keys:
        yield "skew.* has no effect: no static table is joined by an equality, and only such joins can have hot keys."
