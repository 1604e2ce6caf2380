"""Plan reports, skew reports and stage metrics, as attempts wrote them.

What attempts write for readers: the plan before the run, then result, metrics and end in one fenced transaction.

Jobs that are tried again after an attempt FAILED, as often as their `limits.failure_retries` say.

This budget is separate from that of lost attempts (`max_attempts`). It is spent only on failures that may pass: a store
that is away, a full disk, a file that was written while the job ran, a failure of the service itself. What is wrong
with the job itself would be wrong again. Such a job is QUEUED with `next_run_at` set; nobody claims it until the
sweeper clears that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, null, or_, select, update
from sqlalchemy.orm import Session

from service.contract.enums import AttemptStatus, JobStatus, known_status
from service.contract.problems import Problem
from service.contract.reports import (
    EstimateReport,
    PlanReport,
    Progress,
    RuleOutcome,
    RunFigures,
    SkewReport,
    StageMetrics,
)
from service.store.jobs import RUN, append_event, end_attempt
from service.store.leases import Claim
from service.store.session import NO_SYNC
from service.store.tables import AttemptRow, JobRow, PlanRow, StageMetricsRow
from service.store.transitions import NO_LEASE, append_status_event, update_fenced


def latest_plan(session: Session, job_id: str) -> PlanRow | None:
    """The plan of the newest attempt that made one."""
    statement = select(PlanRow).where(PlanRow.job_id == job_id).order_by(PlanRow.fence.desc()).limit(1)
    return session.scalars(statement).one_or_none()


def stage_metrics(session: Session, job_id: str, fence: int) -> Sequence[StageMetricsRow]:
    """The stages of one attempt, in the order in which Spark numbered them."""
    statement = (
        select(StageMetricsRow)
        .where(StageMetricsRow.job_id == job_id, StageMetricsRow.fence == fence)
        .order_by(StageMetricsRow.stage_id, StageMetricsRow.stage_attempt)
    )
    return session.scalars(statement).all()


def queries_ms(plan: PlanRow) -> int | None:
    """What running the query took, with a first run that failed; None where it has not run to its end."""
    if plan.execution_ms is None:
        return None
    first_run = (plan.details or {}).get("first_run")
    return plan.execution_ms + (first_run["execution_ms"] if first_run else 0)


def split(report: PlanReport) -> tuple[dict[str, Any], dict[str, Any]]:
    """`report` as `plans.report` and `plans.details` hold it: the API of a version before may still read the former,
    and refuses what it does not know.
    """
    told = report.model_dump(mode="json")
    details = {"sql": [told[side].pop("sql") for side in ("before", "after")]}
    details["cached"] = [table.pop("cached") for table in told["tables"]]
    details["node_ids"] = [trace.pop("node_id") for trace in told["rules"]]
    details["first_run"] = told.pop("first_run")
    return told, details


def report_of(plan: PlanRow) -> PlanReport:
    """The report that `plan` holds, by whichever version's worker it was written: what is not known yet is left out."""
    told = dict(plan.report)
    if plan.details is not None:
        for side, sql in zip(("before", "after"), plan.details["sql"], strict=True):
            told[side] = {**told[side], "sql": sql}
        known = zip(told["tables"], plan.details["cached"], strict=True)
        told["tables"] = [{**table, "cached": cached} for table, cached in known]
        if "node_ids" in plan.details:
            ids = zip(told["rules"], plan.details["node_ids"], strict=True)
            told["rules"] = [{**trace, "node_id": node_id} for trace, node_id in ids]
        told["first_run"] = plan.details.get("first_run")
    return PlanReport.model_validate(told, extra="ignore")


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
    append_status_event(session, held, ending.status, now)
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


FIRST_PAUSE_MS = 10_000
LONGEST_PAUSE_MS = 300_000
_LEAST_LEFT_MS = 15_000
"""Of the time limit, for a try: less would be over before a worker has it, and hide the error behind TIMED_OUT."""

PASSING = frozenset({"storage_unavailable", "disk_full", "files_changed", "internal_error"})
"""Codes of what may pass by itself. What ran out of memory would do so again, and might take others along."""


def publish_or_retry(
    session: Session, held: Claim, ending: Ending, now: int, *, again: bool = False, last: bool = False
) -> JobStatus | None:
    """Ends the attempt, and with it the job, unless it is to be tried again: gives what became of the job. None, and
    nothing changed, where the lease is lost.

    `again` where this was tried before and the answer lost: what that try did counts. `last` where the job ends
    however many tries it has left.
    """
    if not last and ending.error is not None and ending.status is JobStatus.FAILED:
        due = _due(session, held, ending.error, now)
        if due is not None and _queue_again(session, held, ending.error, due, now):
            return JobStatus.QUEUED
    if publish(session, held, ending, now):
        return ending.status
    if not again:
        return None
    if is_published(session, held, ending.status):
        return ending.status
    failed = ending.status is JobStatus.FAILED and _has_failed(session, held)
    return JobStatus.QUEUED if failed else None


def release_due(session: Session, now: int, at_most: int) -> list[tuple[str, str]]:
    """Lets workers claim the jobs whose pause is over, the longest due first; gives id and queue of each, to ring for.

    Should ringing fail, they are rung again like every job that nobody claims.
    """
    # Or the clock has gone back since.
    is_due = or_(JobRow.next_run_at <= now, JobRow.next_run_at > now + LONGEST_PAUSE_MS)
    due = (
        select(JobRow.id)
        .where(JobRow.status == JobStatus.QUEUED.value, is_due)
        .order_by(JobRow.next_run_at)
        .limit(at_most)
        # On PostgreSQL, somebody who cancels the job just now goes first.
        .with_for_update(skip_locked=True)
    )
    released = session.execute(
        update(JobRow)
        .where(JobRow.id.in_(session.scalars(due).all()))
        .values(next_run_at=null(), rung_at=now, updated_at=now, version=JobRow.version + 1)
        .returning(JobRow.id, JobRow.queue)
        .execution_options(**NO_SYNC)
    )
    return [(job_id, queue) for job_id, queue in released]


def _due(session: Session, held: Claim, error: Problem, now: int) -> int | None:
    """When the job is to be tried again, in milliseconds; None where it is not."""
    retries = (held.spec.get("limits") or {}).get("failure_retries", 0)
    if not retries or held.kind != RUN or error.code not in PASSING:
        return None
    failures = session.execute(
        select(func.count()).where(AttemptRow.job_id == held.job_id, AttemptRow.status == AttemptStatus.FAILED.value)
    ).scalar_one()
    due = now + min(FIRST_PAUSE_MS * 2**failures, LONGEST_PAUSE_MS)
    is_in_time = not held.timeout_ms or due + _LEAST_LEFT_MS < held.started_at + held.timeout_ms
    return due if failures < retries and is_in_time else None


def _queue_again(session: Session, held: Claim, error: Problem, due: int, now: int) -> bool:
    """False, and nothing changed, where the lease is lost, or somebody has asked for the job's end."""
    values = {**NO_LEASE, "progress": null(), "next_run_at": due, "rung_at": now}
    if not update_fenced(session, held, now, target=JobStatus.QUEUED, values=values):
        return False
    end_attempt(
        session,
        job_id=held.job_id,
        tenant=held.tenant,
        fence=held.fence,
        status=AttemptStatus.FAILED,
        error=error,
        now=now,
    )
    append_status_event(session, held, JobStatus.QUEUED, now)
    return True


def _has_failed(session: Session, held: Claim) -> bool:
    """Whether this very attempt is told as FAILED."""
    found = select(AttemptRow.id).where(
        AttemptRow.job_id == held.job_id,
        AttemptRow.fence == held.fence,
        AttemptRow.status == AttemptStatus.FAILED.value,
    )
    return session.execute(found).scalar_one_or_none() is not None
