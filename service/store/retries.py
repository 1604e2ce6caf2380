"""Jobs that are tried again after an attempt FAILED, as often as their `limits.failure_retries` say.

This budget is separate from that of lost attempts (`max_attempts`). It is spent only on failures that may pass: a store
that is away, a full disk, a file that was written while the job ran, a failure of the service itself. What is wrong
with the job itself would be wrong again. Such a job is QUEUED with `next_run_at` set; nobody claims it until the
sweeper clears that.
"""

from __future__ import annotations

from sqlalchemy import func, null, or_, select, update
from sqlalchemy.orm import Session

from service.spec.problem import Problem
from service.spec.status import AttemptStatus, JobStatus
from service.store import publication
from service.store.attempts import end_attempt
from service.store.jobs import RUN
from service.store.leases import NO_LEASE, Claim, tell_status, update_fenced
from service.store.publication import Ending
from service.store.session import NO_SYNC
from service.store.tables import AttemptRow, JobRow

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
    if publication.publish(session, held, ending, now):
        return ending.status
    if not again:
        return None
    if publication.is_published(session, held, ending.status):
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
    tell_status(session, held, JobStatus.QUEUED, now)
    return True


def _has_failed(session: Session, held: Claim) -> bool:
    """Whether this very attempt is told as FAILED."""
    found = select(AttemptRow.id).where(
        AttemptRow.job_id == held.job_id,
        AttemptRow.fence == held.fence,
        AttemptRow.status == AttemptStatus.FAILED.value,
    )
    return session.execute(found).scalar_one_or_none() is not None
