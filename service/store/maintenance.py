"""What falls by the wayside is picked up here: lost attempts, jobs nobody came for, messages never sent.

Any number of processes may sweep at once: every change is conditional on what was read, so each is made once.

Streaming jobs of a database that was restored: a backup holds none of their state, so none may go on from it.

What has been kept for long enough: finished jobs, their results, expired keys. Always a few at a time.

Any number of processes may do this at once, and jobs run meanwhile: every statement names again that the job has ended
and when, and on PostgreSQL rows that another one has at hand are left to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.contract import problems
from service.contract.enums import LEASED, TERMINAL, AttemptStatus, JobStatus, known_status, sources_of
from service.contract.job import SPEC_VERSION
from service.store import jobs
from service.store.jobs import LONGEST_LEASE_MS, end_attempt
from service.store.leases import Claim, Standing, give_up
from service.store.publication import release_due
from service.store.session import NO_SYNC
from service.store.streaming_jobs import due_streams
from service.store.streaming_state import StoppedBecause, start_over
from service.store.tables import IdempotencyKeyRow, JobRow, LeaderRow, OutboxRow, StreamRow
from service.store.transitions import stop_unclaimed_job

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
            error=problems.lease_lost(held.worker),
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


_ATTEMPTS_SINCE = 1_000_000
"""More attempts of a job than there can have been between its backup and the restore."""


def start_streams_over(session: Session, now: int) -> int:
    """Lets every stream that had begun start from scratch, once it is resumed; gives how many there are.

    They rest until then: what begins anew writes its sink anew, and somebody should want that.
    """
    begun = session.execute(select(StreamRow, JobRow).join(JobRow, JobRow.id == StreamRow.job_id)).all()
    for stream, row in begun:
        start_over(stream)
        # Whatever ran since the backup was made used the numbers behind it, for directories and in sinks.
        stream.generation = max(stream.generation, now // 10_000)
        row.fence += _ATTEMPTS_SINCE
        stream.updated_at = now
        status = known_status(row.status)
        if status is JobStatus.STOPPED:
            row.next_run_at = None
        elif status in sources_of(JobStatus.STOPPED):
            stop_unclaimed_job(session, row, now)
        if not jobs.has_finished(row):
            stream.stopped_because = StoppedBecause.RESTORED.value
    session.flush()
    return len(begun)


_TASK = "retention"
_ENDED = tuple(sorted(status.value for status in TERMINAL))


@dataclass(frozen=True)
class Removed:
    """A job that is gone, or has lost its result. `had_result` tells whether it had one; `bytes` how large it was."""

    job_id: str
    finished_at: int
    had_result: bool
    bytes: int


@dataclass(frozen=True)
class Expired:
    """How many there are to remove, and the size of the results among them."""

    jobs: int
    results: int
    bytes: int


def remove_jobs(session: Session, before: int, since: int, limit: int) -> Sequence[Removed]:
    """Removes at most `limit` jobs, the oldest first, that ended in [`since`, `before`), with all that hangs on them.

    Times in milliseconds. The caller removes their files after the commit.
    """
    due = _ended(since, before)
    found = session.execute(
        delete(JobRow)
        .where(JobRow.id.in_(_oldest(due, limit)), due)
        .returning(JobRow.id, JobRow.finished_at, JobRow.result_path, JobRow.result_bytes)
        .execution_options(**NO_SYNC)
    )
    return [
        Removed(job_id, finished_at or 0, path is not None, (size or 0) if path is not None else 0)
        for job_id, finished_at, path, size in found
    ]


def forget_results(session: Session, before: int, since: int, limit: int) -> Sequence[Removed]:
    """Takes their results from at most `limit` jobs, the oldest first, that SUCCEEDED in [`since`, `before`).

    The job stays, and so does what it tells of its result; `has_lost_its_result` is true from then on. The caller
    removes the files after the commit.
    """
    due = and_(_ended(since, before), _has_result())
    found = session.execute(
        update(JobRow)
        .where(JobRow.id.in_(_oldest(due, limit)), due)
        .values(result_path=None)
        .returning(JobRow.id, JobRow.finished_at, JobRow.result_bytes)
        .execution_options(**NO_SYNC)
    )
    return [Removed(job_id, finished_at or 0, True, size or 0) for job_id, finished_at, size in found]


def has_lost_its_result(row: JobRow) -> bool:
    """Whether the job had a result, which was removed because it had been kept for long enough."""
    return row.status == JobStatus.SUCCEEDED.value and row.result_path is None and row.result_rows is not None


def count_expired(session: Session, jobs_before: int | None, results_before: int | None) -> Expired:
    """What `remove_jobs` and `forget_results` would remove, together; None removes nothing."""
    jobs = 0
    if jobs_before is not None:
        jobs = session.execute(select(func.count()).select_from(JobRow).where(_ended(0, jobs_before))).scalar_one()
    # A result goes with its job at the latest.
    latest = max(jobs_before or 0, results_before or 0)
    counted = select(func.count(), func.sum(JobRow.result_bytes))
    results, size = session.execute(counted.where(_ended(0, latest), _has_result())).one()
    return Expired(jobs, results, int(size or 0))


def find_expired(
    session: Session, job_ids: Collection[str], jobs_before: int | None, results_before: int | None
) -> set[str]:
    """Those of these jobs that `remove_jobs` would remove, or from which `forget_results` would take the result."""
    due = or_(_ended(0, jobs_before or 0), and_(_ended(0, results_before or 0), _has_result()))
    return set(session.scalars(select(JobRow.id).where(JobRow.id.in_(job_ids), due)))


def count_expired_keys(session: Session, now: int) -> int:
    """What `remove_expired_keys` would remove in the end."""
    expired = select(func.count()).select_from(IdempotencyKeyRow).where(IdempotencyKeyRow.expires_at <= now)
    return session.execute(expired).scalar_one()


def remove_expired_keys(session: Session, now: int, limit: int) -> int:
    """Removes at most `limit` idempotency keys whose time is over; gives how many."""
    primary = tuple_(IdempotencyKeyRow.tenant, IdempotencyKeyRow.key)
    some = (
        select(IdempotencyKeyRow.tenant, IdempotencyKeyRow.key)
        .where(IdempotencyKeyRow.expires_at <= now)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("expired")
    )
    removed = session.execute(
        delete(IdempotencyKeyRow)
        .where(primary.in_(select(some.c.tenant, some.c.key)), IdempotencyKeyRow.expires_at <= now)
        .returning(IdempotencyKeyRow.key)
        .execution_options(**NO_SYNC)
    )
    return len(removed.all())


def is_due(session: Session, owner: str, now: int, every_ms: int) -> bool:
    """Whether it is time again, and for this caller alone: the others are told so `every_ms` later.

    The first time of all comes only `every_ms` after somebody asked first, so that whoever upgrades to a version that
    removes by default has that long to say otherwise.
    """
    again = now + every_ms
    mine = session.execute(
        update(LeaderRow)
        .where(LeaderRow.task == _TASK, LeaderRow.expires_at <= now)
        .values(owner=owner, expires_at=again)
        .returning(LeaderRow.task)
        .execution_options(**NO_SYNC)
    ).scalar_one_or_none()
    if mine is not None:
        return True
    if session.execute(select(LeaderRow.task).where(LeaderRow.task == _TASK)).scalar_one_or_none() is None:
        try:
            with session.begin_nested():
                session.add(LeaderRow(task=_TASK, owner=owner, expires_at=again))
        except IntegrityError:
            # Another process was first to ask.
            return False
    return False


def _ended(since: int, before: int) -> ColumnElement[bool]:
    # As an expression, since SQLite would read all jobs of a status by its index rather than the oldest by theirs.
    ended = func.coalesce(JobRow.status, "").in_(_ENDED)
    return and_(ended, JobRow.finished_at >= since, JobRow.finished_at < before)


def _has_result() -> ColumnElement[bool]:
    return and_(func.coalesce(JobRow.status, "") == JobStatus.SUCCEEDED.value, JobRow.result_path.is_not(None))


def _oldest(due: ColumnElement[bool], limit: int) -> Select[Any]:
    some = select(JobRow.id).where(due).order_by(JobRow.finished_at).limit(limit).with_for_update(skip_locked=True)
    # As a common table expression PostgreSQL runs it once: as a subquery, a plan may run it for every row.
    return select(some.cte("oldest").c.id)
