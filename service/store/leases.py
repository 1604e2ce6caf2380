"""Who works on what, and until when.

A claim gives a worker a lease on a job and a fencing token, `fence`, which grows with every claim. Everything a worker
writes about the job afterwards is conditional on that token: a worker that lost its lease without noticing changes
nothing. All times are milliseconds by the database's clock.

Tasks that one process at a time does: who it is and until when.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, delete, null, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus, Mode, Queue, known_status
from service.contract.job import SPEC_VERSION
from service.contract.problems import Problem
from service.contract.reports import Progress
from service.store.accounts import NO_QUOTA, Quota, held_back
from service.store.jobs import EXPLAIN, append_event, crashed_attempts, end_attempt, mark_attempt_running, start_attempt
from service.store.session import NO_SYNC
from service.store.streaming_state import StoppedBecause, note_rest
from service.store.tables import AttemptRow, JobEventRow, JobRow, LeaderRow
from service.store.transitions import (
    LEASED_VALUES,
    NO_LEASE,
    append_status_event,
    cancel_queued_job,
    claim_queued_job,
    update_fenced,
)


@dataclass(frozen=True)
class Claim:
    """A job in the hands of a worker. `fence` is the fencing token and the number of the attempt."""

    job_id: str
    tenant: str
    kind: str
    name: str
    spec: Mapping[str, Any] = field(compare=False)
    fence: int
    worker: str
    claimed_at: int
    started_at: int
    """First claim of the job: its time limit counts from here."""
    timeout_ms: int
    """0 for a job without a time limit."""
    queue: str = field(default=Queue.SHORT.value, compare=False)
    submitted_at: int | None = field(default=None, compare=False)
    crashes: int = field(default=0, compare=False)
    """Earlier attempts of the job that lost their worker or its Spark driver."""
    max_attempts: int = field(default=0, compare=False)
    """How many it may lose."""

    @property
    def waited_ms(self) -> int | None:
        """From its submission to this claim; None where that was not the job's first, or is not known."""
        return self.claimed_at - self.submitted_at if self.fence == 1 and self.submitted_at is not None else None

    @property
    def remaining_ms(self) -> float:
        """What was left of the time limit at the moment of the claim; may be negative, or infinite for want of one.

        Who waits for an explanation has done so since it was asked for.
        """
        begun = self.started_at if self.kind != EXPLAIN or self.submitted_at is None else self.submitted_at
        return begun + self.timeout_ms - self.claimed_at if self.timeout_ms else math.inf


@dataclass(frozen=True)
class Standing:
    """A claimed job as the database has it now."""

    status: JobStatus
    cancel_requested: bool
    stop_requested: bool = False


def claim(session: Session, job_id: str, worker: str, now: int, lease_ms: int) -> Claim | None:
    """Takes a QUEUED job: QUEUED -> PLANNING with the next fencing token, a lease and an attempt.

    None where there is nothing to take: another worker has the job, it has ended, it is gone, it is to be tried again
    later, a newer version stored it in words that this one does not know; or its cancellation was asked for, and it is
    now CANCELLED.
    """
    row = claim_queued_job(session, job_id, worker, now, lease_ms)
    if row is None:
        cancel_queued_job(session, job_id, now)
        return None
    taken = Claim(
        job_id=job_id,
        tenant=row.tenant,
        kind=row.kind,
        name=row.name,
        spec=row.spec,
        fence=row.fence,
        worker=worker,
        claimed_at=now,
        started_at=row.started_at if row.started_at is not None else now,
        timeout_ms=row.timeout_ms,
        queue=row.queue,
        submitted_at=row.submitted_at,
        crashes=crashed_attempts(session, job_id) if row.fence > 1 else 0,
        max_attempts=row.max_attempts,
    )
    start_attempt(session, job_id=job_id, tenant=taken.tenant, fence=taken.fence, worker=worker, now=now)
    append_status_event(session, taken, JobStatus.PLANNING, now)
    return taken


def is_claimed(session: Session, taken: Claim) -> bool:
    """Whether this very claim, the answer of whose commit was lost, is stored and holds.

    Waits for the lost transaction where the server has not ended it yet. Where it was rolled back, another claim may
    have the same fencing token, even one by the same worker; but that began later.
    """
    found = session.execute(
        select(JobRow.id)
        .join(AttemptRow, (AttemptRow.job_id == JobRow.id) & (AttemptRow.fence == JobRow.fence))
        .where(
            JobRow.id == taken.job_id,
            JobRow.fence == taken.fence,
            JobRow.lease_owner == taken.worker,
            JobRow.status.in_(LEASED_VALUES),
            AttemptRow.started_at == taken.claimed_at,
        )
        .with_for_update(of=JobRow)
    )
    return found.scalar_one_or_none() is not None


def oldest_waiting(
    session: Session, queues: Collection[str], quota: Quota = NO_QUOTA, apart: ColumnElement[bool] | None = None
) -> str | None:
    """The job that has waited longest in these queues, for `claim` in the same transaction; None where none waits.

    Jobs of tenants that have as many with workers as their `quota` are left out, and those that are to stay `apart`.
    Whoever asks at the same time gets another one, and does not wait.
    """
    waiting = select(JobRow.id).where(
        JobRow.status == JobStatus.QUEUED.value,
        JobRow.queue.in_(queues),
        JobRow.cancel_requested_at.is_(None),
        JobRow.next_run_at.is_(None),
        JobRow.spec_version <= SPEC_VERSION,
    )
    for excluded in (held_back(quota), apart):
        if excluded is not None:
            waiting = waiting.where(~excluded)
    found = session.scalars(waiting.order_by(JobRow.submitted_at).limit(1).with_for_update(skip_locked=True))
    return found.one_or_none()


def renew(session: Session, worker: str, claims: Collection[Claim], now: int, lease_ms: int) -> set[Claim]:
    """Extends the leases of these claims in one statement; gives those that still hold."""
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
        .execution_options(**NO_SYNC)
    ).all()
    still = {(job_id, fence) for job_id, fence in held}
    return {item for item in claims if (item.job_id, item.fence) in still}


def standings(session: Session, claims: Collection[Claim], *, lock: bool = False) -> dict[Claim, Standing]:
    """Returns the state of each claimed job, in one query, without the claims that do not hold any more: a claim holds
    while its fencing token is the job's and its worker has the lease.

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
        item: Standing(JobStatus(status), cancelled_at is not None, stopped_at is not None)
        for job_id, fence, owner, status, cancelled_at, stopped_at in rows
        if (item := by_token.get((job_id, fence, owner))) is not None
    }


def mark_running(session: Session, held: Claim, now: int) -> bool:
    """PLANNING -> RUNNING. False, and nothing changed, where the lease is lost or the job is being cancelled."""
    if not update_fenced(session, held, now, target=JobStatus.RUNNING):
        return False
    mark_attempt_running(session, held.job_id, held.fence)
    append_status_event(session, held, JobStatus.RUNNING, now)
    return True


def save_progress(session: Session, held: Claim, progress: Progress, now: int) -> bool:
    """Stores how far the attempt is, with an event in place of its last one, since there is one every second.

    False, and nothing changed, where the lease is lost.
    """
    data = progress.model_dump(mode="json")
    if not update_fenced(session, held, now, values={"progress": data}):
        return False
    session.execute(
        delete(JobEventRow)
        .where(
            JobEventRow.job_id == held.job_id,
            JobEventRow.type == "progress",
            # Those of earlier attempts are left: they tell how far it came.
            JobEventRow.at >= held.claimed_at,
        )
        .execution_options(**NO_SYNC)
    )
    append_event(session, job_id=held.job_id, tenant=held.tenant, now=now, type="progress", data=data)
    return True


def hand_back(session: Session, held: Claim, now: int, *, status: AttemptStatus, error: Problem) -> JobStatus | None:
    """Gives a job up before its end, so that another attempt may follow at once; gives what became of it.

    `status` CRASHED (the Spark driver was lost) counts against the job's attempts; CANCELLED (the worker is told to
    stop, or ended the driver for another job's work) does not. The job becomes QUEUED, or CANCELLED or STOPPED where
    that was asked for, or CRASHED where its attempts are spent; a stream is STOPPED then, since it may go on from where
    it is. None, and nothing changed, where the lease is lost. The caller removes files and rings.
    """
    # The job first, as everywhere: events lock its row too, and two that do so in turn would wait for each other.
    standing = standings(session, [held], lock=True).get(held)
    if standing is None:
        return None
    end_attempt(session, job_id=held.job_id, tenant=held.tenant, fence=held.fence, status=status, error=error, now=now)
    return give_up(session, held, standing, now)


def handed_back(session: Session, held: Claim, *, status: AttemptStatus, error: Problem) -> JobStatus | None:
    """What `hand_back` with these arguments made of the job; None where it was somebody else who ended the attempt, or
    a newer version has moved the job since to a status that only it knows."""
    row = session.execute(
        select(JobRow.status, JobRow.fence, AttemptRow.error)
        .join(AttemptRow, AttemptRow.job_id == JobRow.id)
        .where(JobRow.id == held.job_id, AttemptRow.fence == held.fence, AttemptRow.status == status.value)
    ).one_or_none()
    if row is None or (row.error or {}).get("code") != error.code:
        return None
    # One that others have taken since was in its queue.
    return known_status(row.status) if row.fence == held.fence else JobStatus.QUEUED


def give_up(session: Session, held: Claim, standing: Standing, now: int) -> JobStatus | None:
    """Moves a job whose attempt just ended without a result to where it belongs; None where it has moved before."""
    crashes = crashed_attempts(session, held.job_id)
    max_attempts, is_streaming = _budget(session, held.job_id)
    values: dict[str, Any] = {**NO_LEASE}
    error, because = None, StoppedBecause.STOPPED
    if standing.cancel_requested or standing.status is JobStatus.CANCELLING:
        target, error = JobStatus.CANCELLED, problems.cancelled()
    elif standing.stop_requested or standing.status is JobStatus.STOPPING:
        target = JobStatus.STOPPED
    elif crashes >= max_attempts:
        target, error = JobStatus.STOPPED if is_streaming else JobStatus.CRASHED, problems.worker_lost(crashes)
        because = StoppedBecause.FAILED
    else:
        target = JobStatus.QUEUED
        values |= {"rung_at": now}
    if error is not None:
        values |= {"error": error.model_dump(mode="json")}
    values |= {"finished_at": now} if target.is_terminal else {"progress": null()}
    if not update_fenced(session, held, now, target=target, values=values):
        return None
    if target is JobStatus.STOPPED:
        note_rest(session, held.job_id, held.tenant, because, now)
    append_status_event(session, held, target, now)
    return target


def _budget(session: Session, job_id: str) -> tuple[int, bool]:
    """How many attempts may be lost, and whether the job is a stream."""
    found = session.execute(select(JobRow.max_attempts, JobRow.mode).where(JobRow.id == job_id)).one()
    return found.max_attempts, Mode(found.mode).is_streaming


_LONGEST_MS = 3_600_000
"""No task is led for longer at a time: an end that is further off was set before the database's clock went back."""


def elect(session: Session, task: str, owner: str, now: int, ttl_ms: int) -> bool:
    """Makes `owner` the leader of `task` for `ttl_ms`, at most an hour, or extends its time; False while another one
    leads.
    """
    is_over = or_(LeaderRow.expires_at <= now, LeaderRow.expires_at > now + _LONGEST_MS)
    won = session.execute(
        update(LeaderRow)
        .where(LeaderRow.task == task, or_(LeaderRow.owner == owner, is_over))
        .values(owner=owner, expires_at=now + ttl_ms)
        .returning(LeaderRow.task)
        .execution_options(**NO_SYNC)
    ).scalar_one_or_none()
    if won is not None:
        return True
    if session.execute(select(LeaderRow.task).where(LeaderRow.task == task)).scalar_one_or_none() is not None:
        return False
    try:
        with session.begin_nested():
            session.add(LeaderRow(task=task, owner=owner, expires_at=now + ttl_ms))
    except IntegrityError:
        # Another process was first to lead this task ever.
        return False
    return True


def resign(session: Session, task: str, owner: str) -> None:
    """Lets another process lead at once."""
    session.execute(
        delete(LeaderRow).where(LeaderRow.task == task, LeaderRow.owner == owner).execution_options(**NO_SYNC)
    )
