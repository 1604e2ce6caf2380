"""What attempts write for readers: the plan before the run, then result, metrics and end in one fenced transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import null, select, update
from sqlalchemy.orm import Session

from service.spec.problem import Problem
from service.spec.reports import (
    EstimateReport,
    PlanReport,
    Progress,
    RuleOutcome,
    RunFigures,
    SkewReport,
    StageMetrics,
)
from service.spec.status import AttemptStatus, JobStatus, known_status
from service.store.attempts import end_attempt
from service.store.events import append_event
from service.store.leases import NO_LEASE, Claim, tell_status, update_fenced
from service.store.plans import split
from service.store.session import NO_SYNC
from service.store.tables import JobRow, PlanRow, StageMetricsRow

_IDS_PER_QUERY = 500


@dataclass(frozen=True)
class PublishedResult:
    """Where the rows are (`path` is relative to the results directory) and how many."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class AttemptMetrics:
    """What was measured. `skew`, `progress`, the last one, `estimates` and `figures` are None where Spark did not
    tell.
    """

    execution_ms: int
    stages: Sequence[StageMetrics]
    skew: SkewReport | None
    progress: Progress | None
    estimates: EstimateReport | None = None
    figures: RunFigures | None = None


@dataclass(frozen=True)
class Ending:
    """How a job ends: `error` is set unless `status` is SUCCEEDED, `result` only then."""

    status: JobStatus
    error: Problem | None = None
    result: PublishedResult | None = None
    metrics: AttemptMetrics | None = None


def save_plan(session: Session, held: Claim, report: PlanReport, planning_ms: int, now: int) -> bool:
    """Stores the plan of an attempt, with an event, in place of one that it had. False, and nothing changed, where the
    lease is lost.

    Storing it once more, after an answer that was lost, changes nothing.
    """
    if not update_fenced(session, held, now):
        return False
    told, details = split(report)
    stored = session.get(PlanRow, (held.job_id, held.fence))
    if stored is not None and (stored.report, stored.details) == (told, details):
        return True
    if stored is None:
        stored = PlanRow(job_id=held.job_id, fence=held.fence, tenant=held.tenant, planning_ms=planning_ms)
        session.add(stored)
    stored.report, stored.details = told, details
    fired = sorted({trace.rule for trace in report.rules if trace.outcome is RuleOutcome.FIRED})
    data = {"attempt": held.fence, "rules_fired": fired}
    append_event(session, job_id=held.job_id, tenant=held.tenant, now=now, type="plan", data=data)
    return True


def publish(session: Session, held: Claim, ending: Ending, now: int) -> bool:
    """Ends the job: status, error, result, metrics, attempt and events at once.

    False, and nothing changed, where the claim is no longer the newest and held: the attempt's result counts for
    nothing then, and the caller removes it.
    """
    if not ending.status.is_terminal:
        raise ValueError(f"{ending.status} does not end a job")
    result = ending.result
    progress = None if ending.metrics is None else ending.metrics.progress
    moved = update_fenced(
        session,
        held,
        now,
        target=ending.status,
        values={
            **NO_LEASE,
            **({} if progress is None else {"progress": progress.model_dump(mode="json")}),
            "finished_at": now,
            "error": null() if ending.error is None else ending.error.model_dump(mode="json"),
            "result_path": None if result is None else result.path,
            "result_rows": None if result is None else result.rows,
            "result_bytes": None if result is None else result.bytes,
        },
    )
    if not moved:
        return False
    if ending.metrics is not None:
        _save_metrics(session, held, ending.metrics)
    end_attempt(
        session,
        job_id=held.job_id,
        tenant=held.tenant,
        fence=held.fence,
        status=AttemptStatus(ending.status.value),
        error=ending.error,
        now=now,
    )
    tell_status(session, held, ending.status, now)
    return True


def is_published(session: Session, held: Claim, status: JobStatus) -> bool:
    """Whether this very claim has ended its job with `status`."""
    found = select(JobRow.id).where(JobRow.id == held.job_id, JobRow.fence == held.fence, JobRow.status == status.value)
    return session.execute(found).scalar_one_or_none() is not None


def published_paths(session: Session, job_ids: Sequence[str]) -> dict[str, str | None]:
    """The published directory of each of these jobs that has ended or is gone; None for one without a result.

    Those that have not ended are left out: their attempts may be writing. So are those in a status that only a newer
    version knows.
    """
    found: dict[str, str | None] = dict.fromkeys(job_ids)
    for start in range(0, len(job_ids), _IDS_PER_QUERY):
        chunk = job_ids[start : start + _IDS_PER_QUERY]
        for job_id, status, path in session.execute(
            select(JobRow.id, JobRow.status, JobRow.result_path).where(JobRow.id.in_(chunk))
        ):
            known = known_status(status)
            if known is not None and known.is_terminal:
                found[job_id] = path
            else:
                del found[job_id]
    return found


def _save_metrics(session: Session, held: Claim, metrics: AttemptMetrics) -> None:
    skew, estimates, figures = (
        null() if part is None else part.model_dump(mode="json")
        for part in (metrics.skew, metrics.estimates, metrics.figures)
    )
    session.execute(
        update(PlanRow)
        .where(PlanRow.job_id == held.job_id, PlanRow.fence == held.fence)
        .values(execution_ms=metrics.execution_ms, skew=skew, estimates=estimates, figures=figures)
        .execution_options(**NO_SYNC)
    )
    for stage in metrics.stages:
        session.add(
            StageMetricsRow(
                job_id=held.job_id,
                fence=held.fence,
                stage_id=stage.stage_id,
                stage_attempt=stage.stage_attempt,
                tenant=held.tenant,
                metrics=stage.model_dump(mode="json"),
            )
        )
