"""Plans and runs one bound query on Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from service.spec.bound import BoundQuery
from service.spec.options import JobSettings
from service.spec.reports import PlanReport
from workers.engine.plan.builder import build
from workers.engine.plan.keys import statistics_keys
from workers.engine.plan.nodes import Node
from workers.engine.planner import plan_query, plan_report
from workers.engine.spark.lowering import lower, physical_plan
from workers.engine.spark.sinks import WrittenResult, write_parquet
from workers.engine.spark.sources import TableInput, read_scans, scans_of
from workers.engine.spark.statistics import gather_statistics
from workers.engine.stats.statistics import Statistics


@dataclass(frozen=True)
class PlannedQuery:
    """A query that is ready to run: its report, its plan after the rules, and that plan as a DataFrame."""

    report: PlanReport
    plan: Node
    frame: DataFrame
    statistics: Statistics


_NO_LISTING_JOBS = ("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000000")
"""Files above which Spark asks for their sizes by a job, a task for each few; local ones are asked for faster here."""


class Engine:
    """Plans and runs queries in one Spark session. `slots` is the number of tasks that run at once."""

    def __init__(self, session: SparkSession, slots: int) -> None:
        session.conf.set(*_NO_LISTING_JOBS)
        self._session = session
        self._slots = slots

    def plan(self, query: BoundQuery, tables: Mapping[str, TableInput], settings: JobSettings) -> PlannedQuery:
        """Statistics, rules, DataFrame and report. Reads footers and a sample of the tables, and runs no Spark job.

        `tables` is by table name. Raises SpecError for files that Spark cannot take, and what Spark raises when it
        analyses a plan.
        """
        built = build(query)
        statistics = gather_statistics(statistics_keys(built), scans_of(built), tables, self._slots)
        plan = plan_query(query, statistics, settings)
        frame = lower(plan.after, read_scans(self._session, plan.after, tables))
        report = plan_report(plan, statistics, physical_plan(frame))
        return PlannedQuery(report, plan.after, frame, statistics)

    def execute(self, planned: PlannedQuery, directory: Path) -> WrittenResult:
        """Runs the query and writes its rows as Parquet below `directory`. Raises what Spark raises."""
        return write_parquet(planned.frame, directory)


__all__ = ["Engine", "PlannedQuery", "TableInput", "WrittenResult"]
