"""What attempts write for readers: the plan before the run; then the result and the end in one fenced transaction, with
the metrics unless the attempt has succeeded; those of a success follow.

An attempt that FAILED may be followed by another one, at most `limits.failure_retries` times. This limit is separate
from that of lost attempts (`max_attempts`). It is used only for failures that may pass: a store that is unavailable, a
full disk, a file that was written while the job ran, an internal error. A fault of the job itself would occur again.
Such a job is QUEUED with `next_run_at` set; no worker claims it until the sweeper clears that.
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
from service.store.attempts import Claim, end_attempt
from service.store.events import append_event
from service.store.jobs import RUN, chunks
from service.store.session import json_or_null
from service.store.tables import AttemptRow, JobRow, PlanRow, StageMetricsRow
from service.store.transitions import NO_LEASE, append_status_event, update_fenced

FIRST_PAUSE_MS = 10_000
LONGEST_PAUSE_MS = 300_000
_MIN_REMAINING_MS = 15_000
"""What must remain of the time limit for another attempt. With less, the job would be TIMED_OUT, which hides its
error."""

TRANSIENT = frozenset({"storage_unavailable", "disk_full", "files_changed", "internal_error"})
"""Codes of failures that may pass by themselves. A query that ran out of memory would do so again, and might crash
other jobs."""


@dataclass(frozen=True)
class PublishedResult:
    """Where the rows are, and how many. `path` is relative to the results directory."""

    path: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class AttemptMetrics:
    """What was measured of an attempt. `skew`, `progress` (the last one), `estimates` and `figures` are None if Spark
    did not report them.
    """

    execution_ms: int
    stages: Sequence[StageMetrics]
    skew: SkewReport | None
    progress: Progress | None
    estimates: EstimateReport | None = None
    figures: RunFigures | None = None


@dataclass(frozen=True)
class Ending:
    """How a job ends. `error` is set unless `status` is SUCCEEDED, `result` only then."""

    status: JobStatus
    error: Problem | None = None
    result: PublishedResult | None = None
    metrics: AttemptMetrics | None = None


def latest_plan(session: Session, job_id: str) -> PlanRow | None:
    """Returns the plan of the newest attempt that stored one."""
    statement = select(PlanRow).where(PlanRow.job_id == job_id).order_by(PlanRow.fence.desc()).limit(1)
    return session.scalars(statement).one_or_none()


def stage_metrics(session: Session, job_id: str, fence: int) -> Sequence[StageMetricsRow]:
    """Returns the stages of one attempt, in the order of Spark's numbers."""
    statement = (
        select(StageMetricsRow)
        .where(StageMetricsRow.job_id == job_id, StageMetricsRow.fence == fence)
        .order_by(StageMetricsRow.stage_id, StageMetricsRow.stage_attempt)
    )
    return session.scalars(statement).all()


def queries_ms(plan: PlanRow) -> int | None:
    """Returns the execution time of the query, a failed first run included; None unless it ran to its end."""
    if plan.execution_ms is None:
        return None
    first_run = (plan.details or {}).get("first_run")
    return plan.execution_ms + (first_run["execution_ms"] if first_run else 0)


def columns_of(report: PlanReport) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the contents of `plans.report` and `plans.details`. The API of an older version may still read the
    former, and refuses unknown fields.
    """
    stored = report.model_dump(mode="json")
    details = {"sql": [stored[side].pop("sql") for side in ("before", "after")]}
    details["cached"] = [table.pop("cached") for table in stored["tables"]]
    details["node_ids"] = [trace.pop("node_id") for trace in stored["rules"]]
    details["first_run"] = stored.pop("first_run")
    return stored, details


def report_of(plan: PlanRow) -> PlanReport:
    """Returns the report in `plan`, written by a worker of any version, without the fields that this version does not
    know."""
    stored = dict(plan.report)
    if plan.details is not None:
        for side, sql in zip(("before", "after"), plan.details["sql"], strict=True):
            stored[side] = {**stored[side], "sql": sql}
        known = zip(stored["tables"], plan.details["cached"], strict=True)
        stored["tables"] = [{**table, "cached": cached} for table, cached in known]
        if "node_ids" in plan.details:
            ids = zip(stored["rules"], plan.details["node_ids"], strict=True)
            stored["rules"] = [{**trace, "node_id": node_id} for trace, node_id in ids]
        stored["first_run"] = plan.details.get("first_run")
    return PlanReport.model_validate(stored, extra="ignore")


def save_plan(session: Session, held: Claim, report: PlanReport, planning_ms: int, now: int) -> bool:
    """Stores the plan of an attempt, with an event, in place of its earlier plan. False, and nothing changed, if the
    lease is lost.

    A second call with the same report, after a commit that was not confirmed, changes nothing.
    """
    if not update_fenced(session, held, now):
        return False
    columns = columns_of(report)
    stored = session.get(PlanRow, (held.job_id, held.fence))
    if stored is not None and (stored.report, stored.details) == columns:
        return True
    if stored is None:
        stored = PlanRow(job_id=held.job_id, fence=held.fence, tenant=held.tenant, planning_ms=planning_ms)
        session.add(stored)
    stored.report, stored.details = columns
    fired = sorted({trace.rule for trace in report.rules if trace.outcome is RuleOutcome.FIRED})
    data = {"attempt": held.fence, "rules_fired": fired}
    append_event(session, job_id=held.job_id, tenant=held.tenant, now=now, type="plan", data=data)
    return True


def publish(session: Session, held: Claim, ending: Ending, now: int) -> bool:
    """Ends the job: stores its status, error, result and metrics, and ends its attempt, with events.

    False, and nothing changed, unless the claim is the newest one and holds. The caller then removes the result.
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
            **({} if progress is None else {"progress": json_or_null(progress)}),
            "finished_at": now,
            "error": json_or_null(ending.error),
            "result_path": None if result is None else result.path,
            "result_rows": None if result is None else result.rows,
            "result_bytes": None if result is None else result.bytes,
        },
    )
    if not moved:
        return False
    if ending.metrics is not None:
        _save_metrics(session, held, ending.metrics)
    end_attempt(session, held, AttemptStatus(ending.status.value), ending.error, now)
    append_status_event(session, held, ending.status, now)
    return True


def is_published(session: Session, held: Claim, status: JobStatus) -> bool:
    """Returns whether this claim has ended its job with `status`."""
    found = select(JobRow.id).where(JobRow.id == held.job_id, JobRow.fence == held.fence, JobRow.status == status.value)
    return session.execute(found).scalar_one_or_none() is not None


def published_paths(session: Session, job_ids: Sequence[str]) -> dict[str, str | None]:
    """Returns the result directory of each of these jobs that has ended or does not exist; None if it has no result.

    Leaves out jobs that have not ended, since their attempts may be writing, and jobs in a status that only a newer
    version knows.
    """
    found: dict[str, str | None] = dict.fromkeys(job_ids)
    for chunk in chunks(job_ids):
        statement = select(JobRow.id, JobRow.status, JobRow.result_path).where(JobRow.id.in_(chunk))
        for job_id, status, path in session.execute(statement):
            known = known_status(status)
            if known is not None and known.is_terminal:
                found[job_id] = path
            else:
                del found[job_id]
    return found


def publish_or_retry(
    session: Session, held: Claim, ending: Ending, now: int, *, again: bool = False, last: bool = False
) -> JobStatus | None:
    """Ends the attempt, and the job unless it gets another attempt. Returns the job's new status; None, and nothing
    changed, if the lease is lost.

    `again` after a call whose commit was not confirmed: its outcome is returned. `last` ends the job even if it has
    retries left.
    """
    if not last and ending.error is not None and ending.status is JobStatus.FAILED:
        due = _retry_at(session, held, ending.error, now)
        if due is not None and _queue_retry(session, held, ending.error, due, now):
            return JobStatus.QUEUED
    if publish(session, held, ending, now):
        return ending.status
    if not again:
        return None
    if is_published(session, held, ending.status):
        return ending.status
    failed = ending.status is JobStatus.FAILED and _has_failed(session, held)
    return JobStatus.QUEUED if failed else None


def release_due_retries(session: Session, now: int, at_most: int) -> list[tuple[str, str]]:
    """Lets workers claim the jobs whose pause is over, in the order of their due times. Returns the id and queue of
    each.

    The caller announces them. A job whose message is lost is announced again, like every job that nobody claims.
    """
    # A time far in the future was stored before the clock was set back.
    is_due = or_(JobRow.next_run_at <= now, JobRow.next_run_at > now + LONGEST_PAUSE_MS)
    due = (
        select(JobRow.id)
        .where(JobRow.status == JobStatus.QUEUED.value, is_due)
        .order_by(JobRow.next_run_at)
        .limit(at_most)
        # On PostgreSQL, leaves out a job that a client is cancelling.
        .with_for_update(skip_locked=True)
    )
    released = session.execute(
        update(JobRow)
        .where(JobRow.id.in_(session.scalars(due).all()))
        .values(next_run_at=null(), announced_at=now, updated_at=now, version=JobRow.version + 1)
        .returning(JobRow.id, JobRow.queue)
    )
    return [(job_id, queue) for job_id, queue in released]


def add_metrics(session: Session, held: Claim, metrics: AttemptMetrics) -> None:
    """Stores what was measured after the attempt had ended its job with its run time only. Changes nothing if the job
    has been deleted, or restarted.
    """
    if is_published(session, held, JobStatus.SUCCEEDED):
        _save_metrics(session, held, metrics)


def _save_metrics(session: Session, held: Claim, metrics: AttemptMetrics) -> None:
    session.execute(
        update(PlanRow)
        .where(PlanRow.job_id == held.job_id, PlanRow.fence == held.fence)
        .values(
            execution_ms=metrics.execution_ms,
            skew=json_or_null(metrics.skew),
            estimates=json_or_null(metrics.estimates),
            figures=json_or_null(metrics.figures),
        )
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


def _retry_at(session: Session, held: Claim, error: Problem, now: int) -> int | None:
    """Returns the time of the next attempt, in milliseconds; None if there is none."""
    retries = (held.spec.get("limits") or {}).get("failure_retries", 0)
    if not retries or held.kind != RUN or error.code not in TRANSIENT:
        return None
    failures = session.execute(
        select(func.count()).where(AttemptRow.job_id == held.job_id, AttemptRow.status == AttemptStatus.FAILED.value)
    ).scalar_one()
    due = now + min(FIRST_PAUSE_MS * 2**failures, LONGEST_PAUSE_MS)
    is_in_time = not held.timeout_ms or due + _MIN_REMAINING_MS < held.started_at + held.timeout_ms
    return due if failures < retries and is_in_time else None


def _queue_retry(session: Session, held: Claim, error: Problem, due: int, now: int) -> bool:
    """Returns False, and changes nothing, if the lease is lost or the job's end was requested."""
    values = {**NO_LEASE, "progress": null(), "next_run_at": due, "announced_at": now}
    if not update_fenced(session, held, now, target=JobStatus.QUEUED, values=values):
        return False
    end_attempt(session, held, AttemptStatus.FAILED, error, now)
    append_status_event(session, held, JobStatus.QUEUED, now)
    return True


def _has_failed(session: Session, held: Claim) -> bool:
    """Returns whether this attempt is stored as FAILED."""
    found = select(AttemptRow.id).where(
        AttemptRow.job_id == held.job_id,
        AttemptRow.fence == held.fence,
        AttemptRow.status == AttemptStatus.FAILED.value,
    )
    return session.execute(found).scalar_one_or_none() is not None
