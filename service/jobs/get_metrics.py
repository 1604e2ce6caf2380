"""Reads what was measured while a job ran."""

from __future__ import annotations

from typing import Any

from service.errors import MetricsNotReadyError
from service.jobs.find import require_job
from service.spec.modes import Mode
from service.spec.reports import EstimateReport, MetricsReport, SkewReport, StageMetrics
from service.spec.status import JobStatus
from service.store import plans
from service.store.session import Database


def get_metrics(database: Database, tenant: str, job_id: str) -> MetricsReport:
    """Stages and skew of the attempt that ended the job. Raises JobNotFoundError and MetricsNotReadyError."""
    with database.read() as session:
        row = require_job(session, tenant, job_id)
        plan = plans.latest_plan(session, row.id)
        if plan is None or plan.skew is None or plan.execution_ms is None:
            raise MetricsNotReadyError(_reason(JobStatus(row.status), Mode(row.mode)))
        stages = plans.stage_metrics(session, row.id, plan.fence)
        return MetricsReport(
            stages=tuple(StageMetrics.model_validate(stage.metrics, extra="ignore") for stage in stages),
            # A worker of the version after may tell more.
            skew=SkewReport.model_validate(plan.skew, extra="ignore"),
            estimates=_estimates(plan.estimates),
            planning_ms=plan.planning_ms,
            execution_ms=plan.execution_ms,
            result_rows=row.result_rows,
            result_bytes=row.result_bytes,
        )


def _estimates(stored: dict[str, Any] | None) -> EstimateReport | None:
    return None if stored is None else EstimateReport.model_validate(stored, extra="ignore")


def _reason(status: JobStatus, mode: Mode) -> str:
    if mode.is_streaming:
        return "A streaming job is measured by mini-batch: see /stream and /batches of the job."
    if status is JobStatus.SUCCEEDED:
        return "The job SUCCEEDED, but Spark did not tell its worker what the stages took."
    return f"The job is {status.value} and no attempt of it has run to its end."
