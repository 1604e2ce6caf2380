"""Statistics that are read while a query runs: for its skew report alone, where nothing was decided by them.

Plans and runs one bound query on Spark.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from service.contract.options import JobSettings
from service.contract.reports import FirstRun, PlanReport
from service.sql.resolve.bound import BoundQuery
from workers.engine.budget import PlanningBudget, no_check
from workers.engine.low_memory_plan import crash_reason, has_joins, low_memory_plan, out_of_memory_reason
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Aggregate, Node
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import Plan, plan_query, plan_report
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
)
from workers.engine.spark.error_mapping import is_lack_of_broadcasting, is_lack_of_memory, problem_of_spark_error
from workers.engine.spark.lowering import lower, physical_plan
from workers.engine.spark.result_writer import WrittenResult, write_parquet
from workers.engine.spark.session_options import (
    cautious_session,
    has_blocks,
    hash_blocks,
    hashed_joins,
    may_hash_blocks,
    may_hash_while_it_runs,
    task_memory,
)
from workers.engine.spark.sources import TableInput, read_scans, scans_of
from workers.engine.spark.statistics_cache import StatisticsCache
from workers.engine.spark.table_statistics import Texts, gather_statistics, sizes_only
from workers.engine.statistics.model import Statistics
from workers.engine.statistics.selectivity import conditions_of

_log = logging.getLogger(__name__)

PATIENCE = 0.5
"""Seconds after the run that are waited for what is not read by then."""


class LateStatistics:
    """What `gather` gives, called in a thread of its own from now on."""

    def __init__(self, gather: Callable[[], Statistics]) -> None:
        self._gather = gather
        self._found: Statistics | None = None
        self._thread = threading.Thread(target=self._run, name="late-statistics", daemon=True)
        self._thread.start()

    def known(self, patience: float = PATIENCE) -> Statistics | None:
        """The statistics; None where they failed, or are not there in `patience` seconds."""
        self._thread.join(patience)
        return self._found

    def _run(self) -> None:
        try:
            self._found = self._gather()
        except Exception:  # noqa: BLE001 - a report without hot keys is no reason to fail
            _log.warning("no statistics for the skew report", exc_info=True)


@dataclass(frozen=True)
class PlannedQuery:
    """A query that is ready to run: its report, its plan after the rules, that plan as a DataFrame, and how it was
    made. `cautious`: by hashing and broadcasting nothing that need not be.
    """

    report: PlanReport
    plan: Node
    frame: DataFrame
    statistics: Statistics
    made: Plan
    settings: JobSettings
    cautious: bool = False


_NO_LISTING_JOBS = ("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000000")
"""Files above which Spark asks for their sizes by a job, a task for each few; local ones are asked for faster here."""


class Engine:
    """Plans and runs queries in one Spark session. `slots` is the number of tasks that run at once; what is known of
    files is kept in `cache`, which engines may share.
    """

    def __init__(self, session: SparkSession, slots: int, cache: StatisticsCache | None = None) -> None:
        session.conf.set(*_NO_LISTING_JOBS)
        self._session = session
        self._slots = slots
        self._cache = StatisticsCache() if cache is None else cache

    def plan(
        self,
        query: BoundQuery,
        tables: Mapping[str, TableInput],
        settings: JobSettings,
        *,
        crashes: int = 0,
        check: Callable[[], None] = no_check,
    ) -> PlannedQuery:
        """Statistics, rules, DataFrame and report. Reads footers and a sample of the tables, and runs no Spark job.

        `tables` is by table name; `crashes` are earlier attempts that took their worker or its driver along: after one
        no side of a join is hashed or broadcast, and nothing is counted in blocks of bitmaps. `check` is called between
        steps; it raises as soon as the plan is no longer wanted. Raises SpecError for files that Spark cannot take, and
        what Spark raises when it analyses a plan.
        """
        built = build(query)
        check()
        known = self._statistics(built, tables, settings, check)
        statistics = replace(known, hashes_blocks=may_hash_blocks(built))
        check()
        if crashes and (has_joins(built) or _tells_values_apart(built)):
            return self._cautiously_planned(built, tables, statistics, settings, crash_reason(crashes), check)
        plan = plan_query(query, statistics, settings, _budget(settings, check))
        check()
        return _planned(self._session, plan, tables, statistics, settings, check)

    def fall_back(
        self,
        planned: PlannedQuery,
        tables: Mapping[str, TableInput],
        error: Exception,
        milliseconds: int,
        check: Callable[[], None] = no_check,
    ) -> PlannedQuery | None:
        """What to run instead after `error`, `milliseconds` after the run began: the same by sort-merge and without
        blocks of bitmaps, where memory ran out and a side of a join was hashed or broadcast, told to or by Spark's own
        choice, or may have been while the query ran, or values were counted in blocks. Its report tells of the run that
        failed. Else None; also for what was planned with caution before. `check` is as in `plan`.
        """
        made = planned.made
        problem = None if planned.cautious or not is_lack_of_memory(error) else problem_of_spark_error(error)
        in_blocks = has_blocks(planned.plan)
        if problem is None or not (in_blocks or has_joins(made.before) or has_joins(planned.plan)):
            return None
        first = planned.report
        # What adaptive execution makes a broadcast of stands in no plan made before the run.
        later = may_hash_while_it_runs(planned.plan, planned.frame.sparkSession)
        hashed = hashed_joins(first.physical_plan)
        why = out_of_memory_reason(problem.detail, milliseconds, while_it_ran=later and not hashed and not in_blocks)
        safer = self._cautiously_planned(made.before, tables, planned.statistics, planned.settings, why, check)
        fewer = hashed_joins(safer.report.physical_plan) < hashed
        if not (in_blocks or fewer or later or is_lack_of_broadcasting(error)):
            return None
        failed = FirstRun(
            after=first.after,
            rules=first.rules,
            physical_plan=first.physical_plan,
            failure=problem.detail,
            execution_ms=milliseconds,
        )
        return replace(safer, report=safer.report.model_copy(update={"first_run": failed}))

    def _cautiously_planned(
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
        session = cautious_session(self._session)
        session.conf.set(*_NO_LISTING_JOBS)
        return replace(_planned(session, plan, tables, statistics, settings, check), cautious=True)

    def _statistics(
        self, built: Node, tables: Mapping[str, TableInput], settings: JobSettings, check: Callable[[], None]
    ) -> Statistics:
        """Sizes of all tables; of the branches that are read, what the rules need to know of keys and conditions."""
        scans, memory = scans_of(built), task_memory(self._session, self._slots)
        built = without_excluded_branches(built)
        if is_all_forced(built, settings):
            return replace(sizes_only(scans, tables, self._slots, NOT_READ), task_memory=memory)
        is_open = undecided(built, settings)
        keys = statistics_keys(built, is_open)
        known = gather_statistics(
            keys,
            scans,
            tables,
            self._slots,
            conditions=conditions_of(built),
            ranged=summed_columns(built),
            texts=Texts(joined_texts(built, is_open), memory / BROADCAST_PARTS / ROW_BYTES),
            cache=self._cache,
            check=check,
        )
        is_whole = are_all_undecided(built, settings) or keys == statistics_keys(built)
        warnings = () if is_whole else ((None, READ_IN_PART),)
        return replace(known, warnings=(*known.warnings, *warnings), task_memory=memory)

    def look_beside(self, planned: PlannedQuery, tables: Mapping[str, TableInput]) -> LateStatistics | None:
        """Begins to read, while the query runs, what its skew report needs; None where it was read before."""
        if (None, NOT_READ) not in planned.statistics.warnings:
            return None
        before, slots, cache = without_excluded_branches(planned.made.before), self._slots, self._cache
        keys, scans = statistics_keys(before), scans_of(before)
        return LateStatistics(lambda: gather_statistics(keys, scans, tables, slots, cache=cache))

    def execute(self, planned: PlannedQuery, directory: Path) -> WrittenResult:
        """Runs the query and writes its rows as Parquet below `directory`. Raises what Spark raises."""
        return write_parquet(planned.frame, directory)


def _budget(settings: JobSettings, check: Callable[[], None]) -> PlanningBudget:
    return PlanningBudget(check, settings.optimizer.timeout.total_seconds())


def _tells_values_apart(plan: Node) -> bool:
    return any(call.distinct for node in walk_up(plan) if isinstance(node, Aggregate) for call in node.calls)


def _planned(
    session: SparkSession,
    plan: Plan,
    tables: Mapping[str, TableInput],
    statistics: Statistics,
    settings: JobSettings,
    check: Callable[[], None],
) -> PlannedQuery:
    hash_blocks(session, plan.after, statistics.task_memory)
    scans = read_scans(session, plan.after, tables)
    check()
    frame = lower(plan.after, scans)
    check()
    physical = physical_plan(frame)
    check()
    report = plan_report(plan, statistics, physical)
    return PlannedQuery(report, plan.after, frame, statistics, plan, settings)
