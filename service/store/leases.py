"""Claims and leases of workers, and the election of one process for a task.

A claim gives a worker a lease on a job and a fencing token, `fence`, which grows with every claim. Everything that a
worker writes about the job afterwards is conditional on that token, so a worker that lost its lease without noticing
changes nothing. All times are milliseconds by the database's clock.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, delete, null, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus, Mode, known_status
from service.contract.problems import Problem
from service.contract.reports import Progress
from service.store.accounts import NO_QUOTA, Quota, excluded_by
from service.store.attempts import Claim, claim_of, crashed_attempts, end_attempt, mark_attempt_running, start_attempt
from service.store.events import append_event
from service.store.session import json_or_null
from service.store.streaming_state import StreamStopReason, save_stop_reason
from service.store.tables import AttemptRow, JobEventRow, JobRow, LeaderRow
from service.store.transitions import (
    LEASED_VALUES,
    NO_LEASE,
    UNDERSTOOD,
    append_status_event,
    cancel_queued_job,
    claim_queued_job,
    held_by,
    update_fenced,
)

_LONGEST_TERM_MS = 3_600_000
"""The longest time for which a process is elected. One that ends later was stored before the database's clock was set
back, and counts as over."""


@dataclass(frozen=True)
class ClaimState:
    """The state of a claimed job."""

    status: JobStatus
    cancel_requested: bool
    stop_requested: bool = False


def claim(session: Session, job_id: str, worker: str, now: int, lease_ms: int) -> Claim | None:
    """Claims a QUEUED job: QUEUED -> PLANNING with the next fencing token, a lease and an attempt.

    None if it cannot be claimed: another worker has claimed it, it has ended or does not exist, its next attempt is due
    later, or a newer version stored it. Also None, and the job CANCELLED, if its cancellation was requested.
    """
    row = claim_queued_job(session, job_id, worker, now, lease_ms)
    if row is None:
        cancel_queued_job(session, job_id, now)
        return None
    taken = claim_of(row, worker, now, crashes=crashed_attempts(session, job_id) if row.fence > 1 else 0)
    start_attempt(session, taken)
    append_status_event(session, taken, JobStatus.PLANNING, now)
    return taken


def is_claimed(session: Session, taken: Claim) -> bool:
    """Returns whether this claim, whose commit was not confirmed, is stored and holds.

    Waits for its transaction if the server has not ended it yet. If that was rolled back, another claim may have the
    same fencing token, even of the same worker; but it began later.
    """
    found = session.execute(
        select(JobRow.id)
        .join(AttemptRow, (AttemptRow.job_id == JobRow.id) & (AttemptRow.fence == JobRow.fence))
        .where(*held_by(taken), AttemptRow.started_at == taken.claimed_at)
        .with_for_update(of=JobRow)
    )
    return found.scalar_one_or_none() is not None


def oldest_waiting(
    session: Session,
    queues: Collection[str],
    quota: Quota = NO_QUOTA,
    excluded: ColumnElement[bool] | None = None,
    *,
    tenant: str | None = None,
) -> str | None:
    """Returns the job that has waited longest in these queues, for `claim` in the same transaction; None if none waits.

    Leaves out jobs that `quota` keeps from the worker, and those that meet the condition `excluded`; with `tenant`,
    those of others. Processes that ask at the same time get different jobs, and none of them waits.
    """
    waiting = select(JobRow.id).where(*waiting_in(queues, quota, excluded))
    if tenant is not None:
        waiting = waiting.where(JobRow.tenant == tenant)
    found = session.scalars(waiting.order_by(JobRow.submitted_at).limit(1).with_for_update(skip_locked=True))
    return found.one_or_none()


def waiting_in(
    queues: Collection[str], quota: Quota, excluded: ColumnElement[bool] | None
) -> tuple[ColumnElement[bool], ...]:
    """Conditions: a worker can claim the job now. The arguments are those of `oldest_waiting`."""
    return (
        JobRow.status == JobStatus.QUEUED.value,
        JobRow.queue.in_(queues),
        JobRow.cancel_requested_at.is_(None),
        JobRow.next_run_at.is_(None),
        UNDERSTOOD,
        *(~condition for condition in (excluded_by(quota), excluded) if condition is not None),
    )


def renew(session: Session, worker: str, claims: Collection[Claim], now: int, lease_ms: int) -> set[Claim]:
    """Extends the leases of these claims in one statement. Returns the claims that still hold."""
    if not claims:
        return set()
    tokens = [(item.job_id, item.fence) for item in claims]
    held = session.execute(
        update(JobRow)
        .where(
            JobRow.lease_owner == worker,
            JobRow.status.in_(LEASED_VALUES),
            tuple_(JobRow.id, JobRow.fence).in_(tokens),
        )
        .values(lease_expires_at=now + lease_ms)
        .returning(JobRow.id, JobRow.fence)
    ).all()
    still = {(job_id, fence) for job_id, fence in held}
    return {item for item in claims if (item.job_id, item.fence) in still}


def claim_states(session: Session, claims: Collection[Claim], *, lock: bool = False) -> dict[Claim, ClaimState]:
    """Returns the state of each claimed job, in one query, without the claims that no longer hold: a claim holds while
    its fencing token is the job's and its worker has the lease.

    With `lock`, nobody else changes these jobs before the transaction ends.
    """
    if not claims:
        return {}
    by_token: dict[tuple[str, int, str | None], Claim] = {(one.job_id, one.fence, one.worker): one for one in claims}
    statement = select(
        JobRow.id,
        JobRow.fence,
        JobRow.lease_owner,
        JobRow.status,
        JobRow.cancel_requested_at,
        JobRow.stop_requested_at,
    ).where(JobRow.id.in_([item.job_id for item in claims]), JobRow.status.in_(LEASED_VALUES))
    rows = session.execute(statement.with_for_update() if lock else statement)
    return {
        item: ClaimState(JobStatus(status), cancelled_at is not None, stopped_at is not None)
        for job_id, fence, owner, status, cancelled_at, stopped_at in rows
        if (item := by_token.get((job_id, fence, owner))) is not None
    }


def mark_running(session: Session, held: Claim, now: int) -> bool:
    """PLANNING -> RUNNING. False, and nothing changed, if the lease is lost or the job is being cancelled."""
    if not update_fenced(session, held, now, target=JobStatus.RUNNING):
        return False
    mark_attempt_running(session, held)
    append_status_event(session, held, JobStatus.RUNNING, now)
    return True


def save_progress(session: Session, held: Claim, progress: Progress, now: int) -> bool:
    """Stores the attempt's progress. Its event replaces the previous one of the attempt, since there is one a second.

    False, and nothing changed, if the lease is lost.
    """
    data = progress.model_dump(mode="json")
    if not update_fenced(session, held, now, values={"progress": data}):
        return False
    # Events of earlier attempts stay: they show how far each came.
    session.execute(
        delete(JobEventRow).where(
            JobEventRow.job_id == held.job_id, JobEventRow.type == "progress", JobEventRow.at >= held.claimed_at
        )
    )
    append_event(session, job_id=held.job_id, tenant=held.tenant, now=now, type="progress", data=data)
    return True


def hand_back(session: Session, held: Claim, now: int, *, status: AttemptStatus, error: Problem) -> JobStatus | None:
    """Ends the attempt without a result, so that another one can follow at once. Returns the job's new status; None,
    and nothing changed, if the lease is lost.

    `status` CRASHED (the Spark driver was lost) counts against the job's attempts. CANCELLED (the worker stops, or has
    ended the driver because of another job) does not. See `requeue_or_end` for the new status. The caller removes files
    and announces the job.
    """
    # Locks the job first, as all transactions do: events lock its row too, and another order could deadlock.
    state = claim_states(session, [held], lock=True).get(held)
    if state is None:
        return None
    end_attempt(session, held, status, error, now)
    return requeue_or_end(session, held, state, now)


def outcome_of_hand_back(session: Session, held: Claim, *, status: AttemptStatus, error: Problem) -> JobStatus | None:
    """Returns the job's status after an earlier `hand_back` with these arguments whose commit was not confirmed. None
    if another process ended the attempt, or a newer version has moved the job to a status that only it knows."""
    row = session.execute(
        select(JobRow.status, JobRow.fence, AttemptRow.error)
        .join(AttemptRow, AttemptRow.job_id == JobRow.id)
        .where(JobRow.id == held.job_id, AttemptRow.fence == held.fence, AttemptRow.status == status.value)
    ).one_or_none()
    if row is None or (row.error or {}).get("code") != error.code:
        return None
    # A job that another worker has claimed since was queued.
    return known_status(row.status) if row.fence == held.fence else JobStatus.QUEUED


def requeue_or_end(session: Session, held: Claim, state: ClaimState, now: int) -> JobStatus | None:
    """Moves a job whose attempt has just ended without a result, and returns its new status; None if it is no longer
    the claim's.

    The job becomes CANCELLED or STOPPED if that was requested, else QUEUED. If all its attempts are used up it becomes
    CRASHED; a stream becomes STOPPED, since it can be resumed from its checkpoint.
    """
    crashes = crashed_attempts(session, held.job_id)
    job = session.execute(select(JobRow.max_attempts, JobRow.mode).where(JobRow.id == held.job_id)).one()
    values: dict[str, Any] = {**NO_LEASE}
    error, reason = None, StreamStopReason.STOPPED
    if state.cancel_requested or state.status is JobStatus.CANCELLING:
        target, error = JobStatus.CANCELLED, problems.cancelled()
    elif state.stop_requested or state.status is JobStatus.STOPPING:
        target = JobStatus.STOPPED
    elif crashes >= job.max_attempts:
        target = JobStatus.STOPPED if Mode(job.mode).is_streaming else JobStatus.CRASHED
        error, reason = problems.worker_lost(crashes), StreamStopReason.FAILED
    else:
        target = JobStatus.QUEUED
        values |= {"announced_at": now}
    if error is not None:
        values |= {"error": json_or_null(error)}
    values |= {"finished_at": now} if target.is_terminal else {"progress": null()}
    if not update_fenced(session, held, now, target=target, values=values):
        return None
    if target is JobStatus.STOPPED:
        save_stop_reason(session, held.job_id, held.tenant, reason, now)
    append_status_event(session, held, target, now)
    return target


def elect(session: Session, task: str, owner: str, now: int, ttl_ms: int) -> bool:
    """Makes `owner` the leader of `task` for `ttl_ms`, at most an hour, or extends its term; False while another
    process leads.
    """
    is_over = or_(LeaderRow.expires_at <= now, LeaderRow.expires_at > now + _LONGEST_TERM_MS)
    is_mine = or_(LeaderRow.owner == owner, is_over)
    if take_over(session, task, owner, now + ttl_ms, is_mine):
        return True
    return add_leader(session, task, owner, now + ttl_ms)


def resign(session: Session, task: str, owner: str) -> None:
    """Ends the term of `owner`, so that another process can lead at once."""
    session.execute(delete(LeaderRow).where(LeaderRow.task == task, LeaderRow.owner == owner))


def take_over(session: Session, task: str, owner: str, expires_at: int, condition: ColumnElement[bool]) -> bool:
    """Makes `owner` the leader of `task` until `expires_at` if the stored row meets the condition."""
    won = session.execute(
        update(LeaderRow)
        .where(LeaderRow.task == task, condition)
        .values(owner=owner, expires_at=expires_at)
        .returning(LeaderRow.task)
    )
    return won.scalar_one_or_none() is not None


def add_leader(session: Session, task: str, owner: str, expires_at: int) -> bool:
    """Stores the first leader of a task; False if there is one."""
    if session.execute(select(LeaderRow.task).where(LeaderRow.task == task)).scalar_one_or_none() is not None:
        return False
    try:
        with session.begin_nested():
            session.add(LeaderRow(task=task, owner=owner, expires_at=expires_at))
    except IntegrityError:
        # Another process stored one at the same time.
        return False
    return True
