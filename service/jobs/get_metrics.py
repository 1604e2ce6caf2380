"""Reads what was measured while a job ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from service.errors import MetricsNotReadyError
from service.jobs.comparison import compare
from service.jobs.find import require_job
from service.jobs.makespan import simulate
from service.spec.modes import Mode
from service.spec.reports import (
    EstimateReport,
    MetricsReport,
    OperatorReport,
    RunFigures,
    SkewReport,
    StageMetrics,
)
from service.spec.savings import Comparison, SavingsReport
from service.spec.status import JobStatus
from service.store import plans
from service.store.session import Database


def get_metrics(database: Database, tenant: str, job_id: str, slots: int | None = None) -> MetricsReport:
    """Stages, operators, skew and savings of the attempt that ended the job; what even tasks would save at `slots`, by
    default those that it ran on. Raises JobNotFoundError and MetricsNotReadyError.
    """
    with database.read() as session:
        row = require_job(session, tenant, job_id, with_spec=True)
        plan = plans.latest_plan(session, row.id)
        if plan is None or plan.skew is None or plan.execution_ms is None:
            raise MetricsNotReadyError(_reason(row.status, Mode(row.mode)))
        # A worker of the version after may tell more.
        stages = tuple(
            StageMetrics.model_validate(stage.metrics, extra="ignore")
            for stage in plans.stage_metrics(session, row.id, plan.fence)
        )
        figures = None if plan.figures is None else RunFigures.model_validate(plan.figures, extra="ignore")
        comparison = compare(session, row, plan)
        told = _Told(
            skew=SkewReport.model_validate(plan.skew, extra="ignore"),
            estimates=_estimates(plan.estimates),
            planning_ms=plan.planning_ms,
            execution_ms=plan.execution_ms,
            result_rows=row.result_rows,
            result_bytes=row.result_bytes,
        )
    return _report(stages, figures, comparison, told, slots)


@dataclass(frozen=True)
class _Told:
    skew: SkewReport
    estimates: EstimateReport | None
    planning_ms: int
    execution_ms: int
    result_rows: int | None
    result_bytes: int | None


def _report(
    stages: tuple[StageMetrics, ...],
    figures: RunFigures | None,
    comparison: Comparison | None,
    told: _Told,
    slots: int | None,
) -> MetricsReport:
    ran_on = None if figures is None else figures.slots
    at = ran_on if slots is None else slots
    run_by = OperatorReport() if figures is None else figures.run_by
    return MetricsReport(
        stages=stages,
        operators=run_by.operators,
        operators_cut=run_by.is_cut,
        nodes=run_by.nodes,
        skew=told.skew,
        estimates=told.estimates,
        slots=ran_on,
        savings=SavingsReport(
            simulated=None if at is None else simulate(stages, at),
            estimated=() if figures is None else figures.estimated,
        ),
        comparison=comparison,
        planning_ms=told.planning_ms,
        execution_ms=told.execution_ms,
        result_rows=told.result_rows,
        result_bytes=told.result_bytes,
    )


def _estimates(stored: dict[str, Any] | None) -> EstimateReport | None:
    return None if stored is None else EstimateReport.model_validate(stored, extra="ignore")


def _reason(status: str, mode: Mode) -> str:
    if mode.is_streaming:
        return "A streaming job is measured by mini-batch: see /stream and /batches of the job."
    if status == JobStatus.SUCCEEDED.value:
        return "The job SUCCEEDED, but Spark did not tell its worker what the stages took."
    return f"The job is {status} and no attempt of it has run to its end."
