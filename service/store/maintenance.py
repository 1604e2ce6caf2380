"""What workers do from time to time: sweeps, retention, and the reset of streams after a restore.

A sweep finds lost attempts, jobs that nobody has claimed, and messages that were not sent. Retention removes old jobs
and results, a few at a time. Any number of processes may do either at once, while jobs run: every change is
conditional on what was read, and on PostgreSQL rows that another process has locked are left to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, update
from sqlalchemy.orm import Session

from service.contract.enums import LEASED, TERMINAL, JobStatus, known_status, sources_of
from service.store.attempts import claim_of, end_abandoned_attempt
from service.store.jobs import LONGEST_LEASE_MS, has_finished
from service.store.leases import ClaimState, add_leader, requeue_or_end, take_over
from service.store.publication import release_due_retries
from service.store.streaming_jobs import queue_due_streams
from service.store.streaming_state import StreamStopReason, reset
from service.store.tables import JobRow, LeaderRow, OutboxRow, StreamRow
from service.store.transitions import UNDERSTOOD, stop_unclaimed_job

_MAX_ROWS = 200
"""The limit of the rows that one statement of a sweep changes."""
_LONGEST_PAUSE = 10
"""Multiple of `announce_again_ms`: the longest pause between two announcements of a job."""
_OUTBOX_GRACE_MS = 2_000
_ATTEMPTS_SINCE_BACKUP = 1_000_000
"""More than the number of attempts that a job can have had between its backup and the restore."""
_RETENTION = "retention"
_ENDED = tuple(sorted(status.value for status in TERMINAL))


@dataclass
class Sweep:
    """What a sweep found."""

    announce: list[tuple[str, str]] = field(default_factory=list)
    """Id and queue of each job to announce."""
    ended: list[tuple[str, str]] = field(default_factory=list)
    """Tenant and id of each job that has ended and whose files the caller removes."""
    recovered: list[str] = field(default_factory=list)
    """Ids of the jobs to announce whose lease had expired."""


def sweep(
    session: Session,
    now: int,
    *,
    announce_again_ms: int,
    free: Mapping[str, int],
    other_versions: bool = False,
    end_lost: bool = True,
) -> Sweep:
    """Ends attempts whose lease has expired, and finds every job to announce. The caller announces them after the
    commit.

    A lost attempt is CRASHED; `leases.requeue_or_end` says what its job becomes. A stream whose next run is due is
    QUEUED, and a failed job can be claimed again once its pause is over.

    A job that has been queued for `announce_again_ms` is announced again, each time after a longer pause, up to ten
    times as long. Workers that are merely busy should not get many messages: `free` has the number of jobs of each
    queue that could start now, and only so many jobs are announced, the oldest, and at least one, since workers may
    have more free slots than they report. A worker that ends a job takes the next by itself. No worker listens to a
    queue that is not in `free`.

    `other_versions` also announces jobs that a newer version stored, since workers of that version may run. Without
    `end_lost` no attempt is ended, since the workers may not have been able to renew their leases yet.
    """
    found = Sweep()
    if end_lost:
        _end_lost_attempts(session, now, found)
    found.announce.extend(queue_due_streams(session, now, _MAX_ROWS))
    found.announce.extend(release_due_retries(session, now, _MAX_ROWS))
    found.announce.extend(_unsent(session, now))
    for queue, slots in free.items():
        waits = JobRow.queue == queue if other_versions else (JobRow.queue == queue) & UNDERSTOOD
        found.announce.extend(_unclaimed(session, now, announce_again_ms, waits, min(max(1, slots), _MAX_ROWS)))
    found.announce = list(dict.fromkeys(found.announce))
    return found


def has_cancelled_to_end(session: Session, now: int) -> bool:
    """Returns whether `end_cancelled` has anything to do."""
    return session.execute(select(JobRow.id).where(*_lost({JobStatus.CANCELLING}, now)).limit(1)).first() is not None


def end_cancelled(session: Session, now: int) -> list[str]:
    """Ends the CANCELLING jobs whose lease has expired, and returns their ids. Their files are not removed."""
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
        .limit(_MAX_ROWS)
        # On PostgreSQL, leaves out rows that a heartbeat is renewing or another sweeper has locked.
        .with_for_update(skip_locked=True)
    ).all()
    for row in lost:
        state = ClaimState(
            JobStatus(row.status), row.cancel_requested_at is not None, row.stop_requested_at is not None
        )
        end_abandoned_attempt(session, row, now)
        target = requeue_or_end(session, claim_of(row, row.lease_owner or "", now), state, now)
        if target is JobStatus.QUEUED:
            found.announce.append((row.id, row.queue))
            found.recovered.append(row.id)
        elif target is not None and target.is_terminal:
            found.ended.append((row.tenant, row.id))


def _unsent(session: Session, now: int) -> list[tuple[str, str]]:
    """Takes messages out of the outbox. Returns the id and queue of each job that is still QUEUED."""
    # The API is about to send younger messages. Those of the future were stored before the clock was set back.
    is_old = or_(OutboxRow.created_at <= now - _OUTBOX_GRACE_MS, OutboxRow.created_at > now + _OUTBOX_GRACE_MS)
    unsent = session.execute(select(OutboxRow.id, OutboxRow.job_id).where(is_old).limit(_MAX_ROWS)).all()
    if not unsent:
        return []
    session.execute(delete(OutboxRow).where(OutboxRow.id.in_([row_id for row_id, _ in unsent])))
    # If the broker is unavailable now, they are announced again like every job that nobody claims.
    return _announced_now(session, now, JobRow.id.in_([job_id for _, job_id in unsent]))


def _unclaimed(
    session: Session, now: int, announce_again_ms: int, waits: ColumnElement[bool], at_most: int
) -> list[tuple[str, str]]:
    due = or_(
        JobRow.announced_at <= now - _LONGEST_PAUSE * announce_again_ms,
        # Announced before the clock was set back.
        JobRow.announced_at > now + announce_again_ms,
        # The pauses double: the time since the last announcement is at least what the job had waited before it.
        and_(JobRow.announced_at <= now - announce_again_ms, 2 * JobRow.announced_at - JobRow.updated_at <= now),
    )
    oldest = (
        select(JobRow.id)
        .where(JobRow.status == JobStatus.QUEUED.value, JobRow.next_run_at.is_(None), waits, due)
        .order_by(JobRow.submitted_at)
        .limit(at_most)
    )
    return _announced_now(session, now, JobRow.id.in_(oldest), due)


def _announced_now(session: Session, now: int, *conditions: ColumnElement[bool]) -> list[tuple[str, str]]:
    """Stores that QUEUED jobs are announced now. Returns their ids and queues."""
    announced = session.execute(
        update(JobRow)
        .where(*conditions, JobRow.status == JobStatus.QUEUED.value)
        .values(announced_at=now)
        .returning(JobRow.id, JobRow.queue)
    )
    return [(job_id, queue) for job_id, queue in announced]


def reset_streams(session: Session, now: int) -> int:
    """Makes every stream of a restored database that had begun start from scratch, since a backup has no state of
    streams. Returns their number.

    They are STOPPED until a client resumes them: a start from scratch writes the sink again, which a client must want.
    """
    begun = session.execute(select(StreamRow, JobRow).join(JobRow, JobRow.id == StreamRow.job_id)).all()
    for stream, row in begun:
        reset(stream)
        # Attempts and generations since the backup have used the next numbers, for directories and in sinks.
        stream.generation = max(stream.generation, now // 10_000)
        row.fence += _ATTEMPTS_SINCE_BACKUP
        stream.updated_at = now
        status = known_status(row.status)
        if status is JobStatus.STOPPED:
            row.next_run_at = None
        elif status in sources_of(JobStatus.STOPPED):
            stop_unclaimed_job(session, row, now)
        if not has_finished(row):
            stream.stopped_because = StreamStopReason.RESTORED.value
    session.flush()
    return len(begun)


@dataclass(frozen=True)
class Removed:
    """A job that was removed, or whose result was. `bytes` is the size of the result, if it had one."""

    job_id: str
    finished_at: int
    had_result: bool
    bytes: int


@dataclass(frozen=True)
class Expired:
    """The numbers of jobs and results to remove, and the size of these results."""

    jobs: int
    results: int
    bytes: int


def remove_jobs(session: Session, before: int, since: int, limit: int) -> Sequence[Removed]:
    """Removes at most `limit` jobs that ended in [`since`, `before`), oldest first, with all rows that refer to them.

    Times in milliseconds. The caller removes their files after the commit.
    """
    due = _ended(since, before)
    found = session.execute(
        delete(JobRow)
        .where(JobRow.id.in_(_oldest(due, limit)), due)
        .returning(JobRow.id, JobRow.finished_at, JobRow.result_path, JobRow.result_bytes)
    )
    return [
        Removed(job_id, finished_at or 0, path is not None, (size or 0) if path is not None else 0)
        for job_id, finished_at, path, size in found
    ]


def remove_results(session: Session, before: int, since: int, limit: int) -> Sequence[Removed]:
    """Removes the results of at most `limit` jobs that SUCCEEDED in [`since`, `before`), oldest first.

    The job keeps the size of its result; `has_lost_result` is true from then on. The caller removes the files after the
    commit.
    """
    due = and_(_ended(since, before), _has_result())
    found = session.execute(
        update(JobRow)
        .where(JobRow.id.in_(_oldest(due, limit)), due)
        .values(result_path=None)
        .returning(JobRow.id, JobRow.finished_at, JobRow.result_bytes)
    )
    return [Removed(job_id, finished_at or 0, True, size or 0) for job_id, finished_at, size in found]


def has_lost_result(row: JobRow) -> bool:
    """Returns whether retention has removed the job's result."""
    return row.status == JobStatus.SUCCEEDED.value and row.result_path is None and row.result_rows is not None


def count_expired(session: Session, jobs_before: int | None, results_before: int | None) -> Expired:
    """Returns what `remove_jobs` and `remove_results` would remove, together; None removes nothing."""
    jobs = 0
    if jobs_before is not None:
        jobs = session.execute(select(func.count()).select_from(JobRow).where(_ended(0, jobs_before))).scalar_one()
    # A job is removed with its result.
    latest = max(jobs_before or 0, results_before or 0)
    counted = select(func.count(), func.sum(JobRow.result_bytes))
    results, size = session.execute(counted.where(_ended(0, latest), _has_result())).one()
    return Expired(jobs, results, int(size or 0))


def find_expired(
    session: Session, job_ids: Collection[str], jobs_before: int | None, results_before: int | None
) -> set[str]:
    """Returns those of these jobs that `remove_jobs` or `remove_results` would change."""
    due = or_(_ended(0, jobs_before or 0), and_(_ended(0, results_before or 0), _has_result()))
    return set(session.scalars(select(JobRow.id).where(JobRow.id.in_(job_ids), due)))


def is_due(session: Session, owner: str, now: int, every_ms: int) -> bool:
    """Returns whether retention is due, and makes it due again after `every_ms`: other processes get False until then.

    In a new installation, and after an upgrade to a version with retention, it is due only `every_ms` after the first
    call, so that there is time to change the settings.
    """
    again = now + every_ms
    if take_over(session, _RETENTION, owner, again, LeaderRow.expires_at <= now):
        return True
    add_leader(session, _RETENTION, owner, again)
    return False


def _ended(since: int, before: int) -> ColumnElement[bool]:
    # `coalesce` keeps SQLite from the index on the status, which would read all jobs of a status, not the oldest.
    ended = func.coalesce(JobRow.status, "").in_(_ENDED)
    return and_(ended, JobRow.finished_at >= since, JobRow.finished_at < before)


def _has_result() -> ColumnElement[bool]:
    return and_(func.coalesce(JobRow.status, "") == JobStatus.SUCCEEDED.value, JobRow.result_path.is_not(None))


def _oldest(due: ColumnElement[bool], limit: int) -> Select[Any]:
    some = select(JobRow.id).where(due).order_by(JobRow.finished_at).limit(limit).with_for_update(skip_locked=True)
    # PostgreSQL runs a common table expression once; it may run a subquery for every row.
    return select(some.cte("oldest").c.id)
