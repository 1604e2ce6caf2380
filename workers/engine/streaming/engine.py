"""Plans bound queries over streams, for a session that runs their mini-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from service.spec.bound import BoundQuery, tables_of
from service.spec.modes import OutputMode
from service.spec.options import JobSettings
from service.spec.reports import PlanReport
from service.spec.strategies import DistinctMethod
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Node
from workers.engine.plan.numbering import NodeIds, id_of, with_ids
from workers.engine.plan.stream_layout import layout_of
from workers.engine.plan.stream_shape import NO_BITMAPS, Bitmaps, Shape, StreamPlan, apart, bitmap_obstacle, stream_plan
from workers.engine.plan.transform import walk_up
from workers.engine.planner import plan_report
from workers.engine.spark.lowering import lower
from workers.engine.spark.memory import task_memory
from workers.engine.spark.sources import TableInput, scans_of, spelled
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.stats.statistics import Statistics
from workers.engine.streaming.density import values_per_block
from workers.engine.streaming.sinks.sink import OfNothing
from workers.engine.streaming.sources import BatchBound, Input, SourceRead, read_inputs, reads_of
from workers.engine.streaming.state import StateOptions, prepare_session
from workers.engine.streaming.static_joins import join_static_tables, static_joins
from workers.engine.streaming.statistics import gather_for_joins
from workers.engine.streaming.traces import STREAM_SHAPE, traces_of

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
    """What its state looks like, as JSON values: see `workers.engine.plan.stream_layout`."""
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
    ) -> PlannedStream:
        """Plan, DataFrame and report; reads a sample of files at most. `tables` and `bounds` are by table name.
        `puts_parts_together`: whether the sink takes groups in parts. `kept` is the layout of the state that is there,
        which a plan that could be another one follows. Raises StreamPlanError for a query that a stream cannot run, and
        what Spark raises when it analyses a plan; `output` as in `stream_plan`.
        """
        prepare_session(self._session, state)
        streams = frozenset(
            table.alias for table in tables_of(query) if not isinstance(tables[table.table], TableInput)
        )
        built = with_ids(build(query))
        bitmaps = self._bitmaps(built, streams, tables, settings.distinct_method, kept)
        if bitmaps.wanted and not puts_parts_together:
            bitmaps = Bitmaps(False, "The sink takes whole groups, and bitmaps are parts of groups.")
        plan = stream_plan(built, streams, bitmaps, output)
        plan = replace(plan, node=NodeIds.after(built).number(plan.node))
        emits = OutputMode.APPEND if plan.keys is None else OutputMode.UPDATE
        # Before joins with static tables are looked at: they keep no state, and may run in another way the next time.
        layout = layout_of(
            plan, streams, provider=state.provider.value, partitions=state.partitions, output=emits.value
        )
        known = self._statistics(plan, streams, tables, bounds, settings)
        of_query = frozenset(walk_up(plan.before))
        made = [id_of(node) for node in walk_up(plan.node) if node not in of_query]
        joined = join_static_tables(plan.node, streams, known, settings, dict.fromkeys(made, STREAM_SHAPE))
        frame = lower(joined.after, read_inputs(self._session, joined.after, tables, bounds))
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
    ) -> Statistics:
        """What is known of the tables that are joined; nothing where no join is the rules' to look at."""
        joins = tuple(dict.fromkeys(static_joins(plan.node, streams)))
        if not joins:
            return Statistics({}, {}, self._slots)
        memory = task_memory(self._session, self._slots)
        return gather_for_joins(plan.node, joins, tables, bounds, settings, self._slots, memory, self._cache)

    def _bitmaps(
        self,
        built: Node,
        streams: frozenset[str],
        tables: Mapping[str, Input],
        method: DistinctMethod,
        kept: Mapping[str, Any] | None,
    ) -> Bitmaps:
        """Whether distinct integers are kept as bitmaps, where they can be."""
        aggregate = apart(built)[2]
        if aggregate is None or bitmap_obstacle(built, streams) is not None:
            return NO_BITMAPS
        if kept is not None:
            return Bitmaps(kept.get("shape") == Shape.BITMAP.value, "The state that is there is kept so.")
        if method is not DistinctMethod.AUTO:
            return Bitmaps(method is DistinctMethod.BITMAP, f"distinct_method is {method.value}.")
        density = values_per_block(aggregate, tables)
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
            scan.alias: self._session.createDataFrame([], spelled(field for field, _ in scan.columns))
            for scan in scans_of(plan.before)
        }
        rows = lower(plan.before, scans).collect()
        return tuple(map(_as_json, rows[0])) if rows else None


def _as_json(value: Any) -> bool | int | float | str | None:
    return value if value is None or isinstance(value, bool | int | float) else str(value)
