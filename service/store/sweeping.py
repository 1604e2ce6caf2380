"""What falls by the wayside is picked up here: lost attempts, jobs nobody came for, messages never sent.

Any number of processes may sweep at once: every change is conditional on what was read, so each is made once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, and_, delete, or_, select, update
from sqlalchemy.orm import Session

from service.spec import ends
from service.spec.job import SPEC_VERSION
from service.spec.status import LEASED, AttemptStatus, JobStatus
from service.store.attempts import end_attempt
from service.store.jobs import LONGEST_LEASE_MS
from service.store.leases import Claim, Standing, give_up
from service.store.retries import release_due
from service.store.session import NO_SYNC
from service.store.stream_orders import due_streams
from service.store.tables import JobRow, OutboxRow

_AT_ONCE = 200
_SLOWEST_RING = 10
_OUTBOX_GRACE_MS = 2_000
_UNDERSTOOD = JobRow.spec_version <= SPEC_VERSION


@dataclass
class Sweep:
    """What a sweep found: jobs (id, queue) to announce, and jobs (tenant, id) that ended and left files of no use."""

    ring: list[tuple[str, str]] = field(default_factory=list)
    ended: list[tuple[str, str]] = field(default_factory=list)
    recovered: list[str] = field(default_factory=list)
    """Of those to announce: whose lease had expired."""


def sweep(
    session: Session,
    now: int,
    *,
    ring_again_ms: int,
    free: Mapping[str, int],
    other_versions: bool = False,
    end_lost: bool = True,
) -> Sweep:
    """Ends attempts whose lease expired and finds every job that workers must be told of, again.

    A lost attempt is CRASHED; its job is QUEUED again, or CRASHED where its attempts are spent, or CANCELLED where that
    was asked for, or STOPPED. A stream whose next run is due is QUEUED; a job that failed may be claimed again once its
    pause is over.

    A job queued for `ring_again_ms` is announced again, each time after a longer pause, up to ten times as long:
    workers that are merely busy must not drown in messages. So of these the oldest alone are announced, as many as
    could start now: `free` slots of each queue, one at least, since workers may have more than they seem to; a worker
    that ends a job takes the next by itself. A queue that is not in `free` has nobody who would listen. Jobs that a
    newer version stored are announced only with `other_versions`: workers live that may understand them. Without
    `end_lost`, no attempt is ended: living workers may not have come to renew their leases. The caller rings after the
    commit.
    """
    found = Sweep()
    if end_lost:
        _end_lost_attempts(session, now, found)
    found.ring.extend(due_streams(session, now, _AT_ONCE))
    found.ring.extend(release_due(session, now, _AT_ONCE))
    _collect_owed(session, now, found)
    for queue, slots in free.items():
        waits = JobRow.queue == queue if other_versions else (JobRow.queue == queue) & _UNDERSTOOD
        _collect_forgotten(session, now, ring_again_ms, waits, min(max(1, slots), _AT_ONCE), found)
    found.ring = list(dict.fromkeys(found.ring))
    return found


def is_any_to_end(session: Session, now: int) -> bool:
    """Whether `end_cancelled` has anything to do."""
    return session.execute(select(JobRow.id).where(*_lost({JobStatus.CANCELLING}, now)).limit(1)).first() is not None


def end_cancelled(session: Session, now: int) -> list[str]:
    """Ends jobs that are CANCELLING and whose lease has run out, and gives their ids: nobody else has to be waited for.
    Their files are not removed.
    """
    found = Sweep()
    _end_lost_attempts(session, now, found, {JobStatus.CANCELLING})
    return [job_id for _, job_id in found.ended]


def _lost(statuses: Collection[JobStatus], now: int) -> tuple[ColumnElement[bool], ...]:
    return (
        JobRow.status.in_([status.value for status in statuses]),
        or_(JobRow.lease_expires_at <= now, JobRow.lease_expires_at > now + LONGEST_LEASE_MS),
    )


def _end_lost_attempts(session: Session, now: int, found: Sweep, statuses: Collection[JobStatus] = LEASED) -> None:
    lost = session.scalars(
        select(JobRow)
        .where(*_lost(statuses, now))
        .order_by(JobRow.lease_expires_at)
        .limit(_AT_ONCE)
        # On PostgreSQL a heartbeat that is just renewing, or another sweeper, has the row: leave it to them.
        .with_for_update(skip_locked=True)
    ).all()
    for row in lost:
        held = _claim_of(row, now)
        standing = Standing(
            JobStatus(row.status), row.cancel_requested_at is not None, row.stop_requested_at is not None
        )
        end_attempt(
            session,
            job_id=held.job_id,
            tenant=held.tenant,
            fence=held.fence,
            status=AttemptStatus.CRASHED,
            error=ends.lease_lost(held.worker),
            now=now,
        )
        target = give_up(session, held, standing, now)
        if target is JobStatus.QUEUED:
            found.ring.append((held.job_id, row.queue))
            found.recovered.append(held.job_id)
        elif target is not None and target.is_terminal:
            found.ended.append((held.tenant, held.job_id))


def _collect_owed(session: Session, now: int, found: Sweep) -> None:
    # Younger rows are those of submissions that are just ringing themselves; rows of the future, those that were there
    # when the clock went back.
    is_old = or_(OutboxRow.created_at <= now - _OUTBOX_GRACE_MS, OutboxRow.created_at > now + _OUTBOX_GRACE_MS)
    owed = session.execute(select(OutboxRow.id, OutboxRow.job_id).where(is_old).limit(_AT_ONCE)).all()
    if not owed:
        return
    session.execute(
        delete(OutboxRow).where(OutboxRow.id.in_([row_id for row_id, _ in owed])).execution_options(**NO_SYNC)
    )
    # Should ringing fail now, these are rung again like every job that nobody claims.
    rung = session.execute(
        update(JobRow)
        .where(JobRow.id.in_([job_id for _, job_id in owed]), JobRow.status == JobStatus.QUEUED.value)
        .values(rung_at=now)
        .returning(JobRow.id, JobRow.queue)
        .execution_options(**NO_SYNC)
    )
    found.ring.extend((job_id, queue) for job_id, queue in rung)


def _collect_forgotten(
    session: Session, now: int, ring_again_ms: int, waits: ColumnElement[bool], at_most: int, found: Sweep
) -> None:
    due = or_(
        JobRow.rung_at <= now - _SLOWEST_RING * ring_again_ms,
        # The clock has gone back since.
        JobRow.rung_at > now + ring_again_ms,
        # Rung last at least as long ago as it had waited by then: the pauses double.
        and_(JobRow.rung_at <= now - ring_again_ms, 2 * JobRow.rung_at - JobRow.updated_at <= now),
    )
    forgotten = (
        select(JobRow.id)
        .where(JobRow.status == JobStatus.QUEUED.value, JobRow.next_run_at.is_(None), waits, due)
        .order_by(JobRow.submitted_at)
        .limit(at_most)
    )
    rung = session.execute(
        update(JobRow)
        .where(JobRow.id.in_(forgotten), JobRow.status == JobStatus.QUEUED.value, due)
        .values(rung_at=now)
        .returning(JobRow.id, JobRow.queue)
        .execution_options(**NO_SYNC)
    )
    found.ring.extend((job_id, queue) for job_id, queue in rung)


def _claim_of(row: JobRow, now: int) -> Claim:
    return Claim(
        job_id=row.id,
        tenant=row.tenant,
        kind=row.kind,
        name=row.name,
        spec=row.spec,
        fence=row.fence,
        worker=row.lease_owner or "",
        claimed_at=now,
        started_at=row.started_at if row.started_at is not None else now,
        timeout_ms=row.timeout_ms,
        queue=row.queue,
    )
