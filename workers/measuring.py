"""What an attempt took, measured after it ran."""

from __future__ import annotations

import structlog

from service.spec.options import JobSettings
from service.store.publication import AttemptMetrics
from workers.engine.spark.engine import PlannedQuery
from workers.engine.spark.late_statistics import LateStatistics
from workers.engine.spark.stage_metrics import SparkMonitor
from workers.engine.spark.status_store import MonitorError
from workers.engine.stats.actuals import estimates_of
from workers.engine.stats.skew import skew_report

_log = structlog.get_logger(__name__)


def measure(
    monitor: SparkMonitor,
    tag: str,
    planned: PlannedQuery,
    settings: JobSettings,
    execution_ms: int,
    beside: LateStatistics | None = None,
) -> AttemptMetrics:
    """Stages of the Spark jobs that carry `tag`, what they tell of skew, and how near the estimates were. Hot keys are
    those of the statistics read `beside` the run, where none were read before.

    Metrics are worth less than the result: where Spark does not give them, they are left out.
    """
    try:
        stages, progress = monitor.outcome(tag)
        known = (None if beside is None else beside.known()) or planned.statistics
        skew = skew_report(known, planned.plan, stages, settings, planned.report.rules)
        estimates = estimates_of(planned.report, planned.plan, planned.statistics, stages)
    except (MonitorError, ValueError):
        _log.warning("metrics_missing", exc_info=True)
        return AttemptMetrics(execution_ms, (), None, None)
    return AttemptMetrics(execution_ms, stages, skew, progress, estimates)
