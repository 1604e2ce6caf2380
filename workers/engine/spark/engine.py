"""Plans and runs one batch query on Spark: statistics, rules, the Spark plan, the run, and a second run if memory
ran out. `write_parquet` writes the rows of a query as Parquet files.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from service.contract.options import JobSettings
from service.contract.reports import FirstRun, PlanReport, RuleTrace
from service.sql.resolve.bound import BoundQuery
from workers.engine.budget import PlanningBudget, no_check
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Aggregate, Join, Node
from workers.engine.plan.one_row_joins import value_joins
from workers.engine.plan.repeated_subqueries import repeated_subqueries
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import (
    Plan,
    crash_reason,
    has_joins,
    low_memory_plan,
    out_of_memory_reason,
    plan_query,
    plan_report,
    trace_of,
)
from workers.engine.report.reused_exchanges import use_of
from workers.engine.rules.joins.strategy_cost import BROADCAST_PARTS, ROW_BYTES
from workers.engine.rules.prune_union_branches import without_excluded_branches
from workers.engine.rules.required_statistics import (
    NOT_READ,
    READ_IN_PART,
    are_all_undecided,
    is_all_forced,
    joined_texts,
    statistics_keys,
    summed_columns,
    undecided,
    window_orders,
)
from workers.engine.rules.rule import Skip
from workers.engine.rules.shared_subqueries import SUBQUERIES
from workers.engine.spark.corrupt_records import CorruptRecords
from workers.engine.spark.error_mapping import is_lack_of_broadcasting, is_lack_of_memory, problem_of_spark_error
from workers.engine.spark.lowering import SharedFrames, lower, physical_plan, plan_with_reuse, with_texts_of_intervals
from workers.engine.spark.scan_cache import LIST_ON_DRIVER, ScanCache
from workers.engine.spark.session_options import (
    count_hashed_joins,
    has_bitmaps,
    low_memory_session,
    may_broadcast_during_run,
    may_hash_bitmaps,
    raise_hash_limit,
    task_memory,
)
from workers.engine.spark.shuffle_files import remove_shuffle_files
from workers.engine.spark.small_results import collect_parquet, is_small
from workers.engine.spark.sources import ScanReads, TableInput, scans_of
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.spark.table_statistics import Texts, gather_statistics, sizes_only
from workers.engine.statistics.cardinality import conditions_of
from workers.engine.statistics.model import Statistics

_log = logging.getLogger(__name__)

LATE_SECONDS = 0.5
"""How long the end of a run waits for statistics that are still being read."""

_FILES_ALONE = {
    # Hadoop starts a `chmod` process for every directory and file that it creates. Without the checksum files, which
    # are not needed, and without `_SUCCESS`, these are six for a result of one file instead of nine.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Otherwise Hadoop would use the cached file system that other parts of Spark created.
    "fs.file.impl.disable.cache": "true",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
"""Hadoop's properties of a write to local files."""


class LateStatistics:
    """Calls `gather` in a thread, while the query runs. The skew report needs these statistics, and no rule does."""

    def __init__(self, gather: Callable[[], Statistics]) -> None:
        self._gather = gather
        self._statistics: Statistics | None = None
        self._thread = threading.Thread(target=self._run, name="late-statistics", daemon=True)
        self._thread.start()

    def result(self, timeout: float = LATE_SECONDS) -> Statistics | None:
        """Returns the statistics; None if they failed, or are not complete after `timeout` seconds."""
        self._thread.join(timeout)
        return self._statistics

    def _run(self) -> None:
        try:
            self._statistics = self._gather()
        except Exception:  # noqa: BLE001 - a report without hot keys must not fail the job
            _log.warning("no statistics for the skew report", exc_info=True)


@dataclass(frozen=True)
class PlannedQuery:
    """A query that is ready to run: its report, its plan after the rules, that plan as a DataFrame, and the inputs of
    the planning. `low_memory`: it hashes and broadcasts as little as possible. `corrupt` has the numbers of records
    that do not match the schemas, after the run.
    """

    report: PlanReport
    plan: Node
    frame: DataFrame
    statistics: Statistics
    made: Plan
    settings: JobSettings
    low_memory: bool = False
    corrupt: CorruptRecords = field(default_factory=CorruptRecords)


class Engine:
    """Plans and runs queries in one Spark session. `slots` is the number of tasks that run at once. Engines may share
    the `cache` of statistics, and those of one application the plans of `scans`.
    """

    def __init__(
        self,
        session: SparkSession,
        slots: int,
        cache: StatisticsCache | None = None,
        scans: ScanCache | None = None,
    ) -> None:
        self._session = session
        self._slots = slots
        self._scans = scans
        self._cache = StatisticsCache() if cache is None else cache
        self._shared = SharedFrames()

    def close(self) -> None:
        """Removes the rows that the engine's queries share. None of them can run afterwards."""
        self._shared.release()

    def plan(
        self,
        query: BoundQuery,
        tables: Mapping[str, TableInput],
        settings: JobSettings,
        *,
        crashes: int = 0,
        check: Callable[[], None] = no_check,
    ) -> PlannedQuery:
        """Gathers statistics, applies the rules, and returns the DataFrame with a report. Reads footers and a sample of
        the tables, and runs no Spark job.

        `tables` is by table name. `crashes` is the number of earlier attempts that lost their worker or its driver;
        after a crash, no side of a join is hashed or broadcast, and no bitmaps are used. `check` is called between
        steps; it raises as soon as the plan is no longer needed. Raises SpecError for files that Spark cannot read, and
        what Spark raises when it analyses a plan.
        """
        built = build(query)
        check()
        needs_little_memory = crashes > 0 and (has_joins(built) or _counts_distinct(built))
        reads = _reads(self._session, tables, self._scans)
        if not needs_little_memory:
            # Spark looks at the files while pyarrow reads their statistics.
            reads.begin(scans_of(without_excluded_branches(built)))
        gathered = self._statistics(built, tables, settings, check)
        statistics = replace(gathered, hashes_blocks=may_hash_bitmaps(built))
        check()
        if needs_little_memory:
            return self._plan_with_low_memory(built, tables, statistics, settings, crash_reason(crashes), check)
        plan = plan_query(query, statistics, settings, _budget(settings, check))
        check()
        return _planned(reads, plan, statistics, settings, check, self._shared)

    def fall_back(
        self,
        planned: PlannedQuery,
        tables: Mapping[str, TableInput],
        error: Exception,
        milliseconds: int,
        check: Callable[[], None] = no_check,
    ) -> PlannedQuery | None:
        """Returns a plan of the same query that needs less memory, after `planned` failed with `error`, `milliseconds`
        after its start. Its report describes the failed run.

        None if memory was not the cause, if `planned` was such a plan, or if it neither used bitmaps nor hashed or
        broadcast a side of a join (forced, or chosen by Spark before or during the run). `check` is as in `plan`.
        """
        made = planned.made
        problem = None if planned.low_memory or not is_lack_of_memory(error) else problem_of_spark_error(error)
        used_bitmaps = has_bitmaps(planned.plan)
        if problem is None or not (used_bitmaps or has_joins(made.before) or has_joins(planned.plan)):
            return None
        first = planned.report
        # The plan from before the run does not show the broadcasts of adaptive execution.
        by_adaptive = may_broadcast_during_run(planned.plan, planned.frame.sparkSession)
        hashed = count_hashed_joins(first.physical_plan)
        why = out_of_memory_reason(
            problem.detail, milliseconds, while_it_ran=by_adaptive and not hashed and not used_bitmaps
        )
        second = self._plan_with_low_memory(made.before, tables, planned.statistics, planned.settings, why, check)
        hashes_fewer = count_hashed_joins(second.report.physical_plan) < hashed
        if not (used_bitmaps or hashes_fewer or by_adaptive or is_lack_of_broadcasting(error)):
            return None
        failed = FirstRun(
            after=first.after,
            rules=first.rules,
            physical_plan=first.physical_plan,
            failure=problem.detail,
            execution_ms=milliseconds,
        )
        return replace(second, report=second.report.model_copy(update={"first_run": failed}))

    def _plan_with_low_memory(
        self,
        built: Node,
        tables: Mapping[str, TableInput],
        statistics: Statistics,
        settings: JobSettings,
        why: str,
        check: Callable[[], None],
    ) -> PlannedQuery:
        plan = low_memory_plan(built, statistics, settings, why, _budget(settings, check))
        check()
        reads = _reads(low_memory_session(self._session), tables, self._scans)
        self._shared.release()
        return replace(_planned(reads, plan, statistics, settings, check, self._shared), low_memory=True)

    def _statistics(
        self, built: Node, tables: Mapping[str, TableInput], settings: JobSettings, check: Callable[[], None]
    ) -> Statistics:
        """Returns the sizes of all tables, and the statistics of keys and conditions that the rules need, without those
        of branches that are not read.
        """
        scans, memory = scans_of(built), task_memory(self._session, self._slots)
        built = without_excluded_branches(built)
        if is_all_forced(built, settings):
            return replace(sizes_only(scans, tables, self._slots, NOT_READ), task_memory=memory)
        is_open = undecided(built, settings)
        keys = statistics_keys(built, is_open)
        statistics = gather_statistics(
            keys,
            scans,
            tables,
            self._slots,
            conditions=conditions_of(built),
            ranged=summed_columns(built),
            orders=window_orders(built, is_open),
            texts=Texts(joined_texts(built, is_open), memory / BROADCAST_PARTS / ROW_BYTES),
            cache=self._cache,
            check=check,
        )
        is_whole = are_all_undecided(built, settings) or keys == statistics_keys(built)
        warnings = () if is_whole else ((None, READ_IN_PART),)
        return replace(statistics, warnings=(*statistics.warnings, *warnings), task_memory=memory)

    def late_statistics(self, planned: PlannedQuery, tables: Mapping[str, TableInput]) -> LateStatistics | None:
        """Begins to gather the statistics for the skew report while the query runs; None if the planning read them."""
        if (None, NOT_READ) not in planned.statistics.warnings:
            return None
        before, slots, cache = without_excluded_branches(planned.made.before), self._slots, self._cache
        keys, scans, orders = statistics_keys(before), scans_of(before), window_orders(before)
        return LateStatistics(lambda: gather_statistics(keys, scans, tables, slots, orders=orders, cache=cache))

    def execute(self, planned: PlannedQuery, directory: Path) -> WrittenResult:
        """Runs the query and writes its rows as Parquet files below `directory`. Raises what Spark raises.

        A result that is expected to be small is collected. After an error, the shuffle files are removed.
        """
        try:
            return self._write(planned, directory)
        except Exception:
            remove_shuffle_files(planned.frame.sparkSession.sparkContext)
            raise

    @staticmethod
    def _write(planned: PlannedQuery, directory: Path) -> WrittenResult:
        frame = planned.frame
        sql = planned.report.after.sql
        if is_small(planned.plan, sql, planned.statistics, frame.schema) and collect_parquet(frame, directory):
            return replace(written(directory), is_collected=True)
        return write_parquet(frame, directory)


def _subqueries(plan: Plan, frame: DataFrame) -> tuple[RuleTrace, ...]:
    """Returns a trace for each subquery that is used several times and not shared, with how Spark computes it."""
    shared = {trace.node_id for trace in plan.trace if trace.rule == SUBQUERIES}
    repeated = [each for each in repeated_subqueries(plan.before) if each.node.id not in shared]
    if not repeated:
        return ()
    physical = plan_with_reuse(frame)
    values = value_joins(plan.after)
    joins = [node for node in walk_up(plan.after) if isinstance(node, Join) and id(node) in values]
    inside = frozenset(scan.alias for join in joins for scan in scans_of(join.right))
    return tuple(trace_of(SUBQUERIES, each.node, Skip(use_of(each, physical, inside))) for each in repeated)


def _budget(settings: JobSettings, check: Callable[[], None]) -> PlanningBudget:
    return PlanningBudget(check, settings.optimizer.timeout.total_seconds())


def _counts_distinct(plan: Node) -> bool:
    return any(call.distinct for node in walk_up(plan) if isinstance(node, Aggregate) for call in node.calls)


def _reads(session: SparkSession, tables: Mapping[str, TableInput], scans: ScanCache | None) -> ScanReads:
    session.conf.set(*LIST_ON_DRIVER)
    return ScanReads(session, tables, CorruptRecords(), scans)


def _planned(
    reads: ScanReads,
    plan: Plan,
    statistics: Statistics,
    settings: JobSettings,
    check: Callable[[], None],
    shared: SharedFrames,
) -> PlannedQuery:
    raise_hash_limit(reads.session, plan.after, statistics.task_memory)
    scans = reads.frames(plan.after)
    check()
    frame = with_texts_of_intervals(lower(plan.after, scans, reads.session, shared))
    check()
    physical = physical_plan(frame)
    check()
    report = plan_report(replace(plan, trace=(*plan.trace, *_subqueries(plan, frame))), statistics, physical)
    return PlannedQuery(report, plan.after, frame, statistics, plan, settings, corrupt=reads.corrupt)


@dataclass(frozen=True)
class WrittenResult:
    """The number of rows that a query wrote, and the bytes of their files. `is_collected`: this process wrote them, not
    Spark.
    """

    rows: int
    bytes: int
    is_collected: bool = False


def write_parquet(frame: DataFrame, directory: Path) -> WrittenResult:
    """Runs `frame` and replaces the content of `directory` by its rows, as Parquet files only.

    Spark numbers the files by partition, so the files sorted by name have the order of the rows. A result without rows
    is one file with the schema. Rows are counted from the footers, so the query runs once. Raises what Spark raises.
    """
    # Most readers read the older INT96 in nanoseconds, which end in the year 2262.
    frame.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    # With a scheme, because Hadoop may be configured with another default file system.
    frame.write.mode("overwrite").options(**_FILES_ALONE).parquet(f"file://{directory}")
    return written(directory)


def written(directory: Path) -> WrittenResult:
    """Returns the size of a written result."""
    files = result_files(directory)
    return WrittenResult(
        rows=sum(pq.read_metadata(path).num_rows for path in files),
        bytes=sum(path.stat().st_size for path in files),
    )


def result_files(directory: Path) -> tuple[Path, ...]:
    """Returns the files of a written result, in the order of its rows."""
    return tuple(sorted(directory.glob("part-*.parquet")))
