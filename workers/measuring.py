"""What an attempt took, measured after it ran."""

from __future__ import annotations

import structlog

from service.spec.options import JobSettings
from service.store.publication import AttemptMetrics
from workers.engine.spark.engine import PlannedQuery
from workers.engine.spark.stage_metrics import SparkMonitor
from workers.engine.spark.status_store import MonitorError
from workers.engine.stats.skew import skew_report

_log = structlog.get_logger(__name__)


def measure(
    monitor: SparkMonitor, tag: str, planned: PlannedQuery, settings: JobSettings, execution_ms: int
) -> AttemptMetrics:
    """Stages of the Spark jobs that carry `tag`, and what they tell of skew.

    Metrics are worth less than the result: where Spark does not give them, they are left out.
    """
    try:
        stages, progress = monitor.outcome(tag)
        skew = skew_report(planned.statistics, planned.plan, stages, settings, planned.report.rules)
    except (MonitorError, ValueError):
        _log.warning("metrics_missing", exc_info=True)
        return AttemptMetrics(execution_ms, (), None, None)
    return AttemptMetrics(execution_ms, stages, skew, progress)
