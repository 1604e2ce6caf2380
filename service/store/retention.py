"""What has been kept for long enough: finished jobs, their results, expired keys. Always a few at a time.

Any number of processes may do this at once, and jobs run meanwhile: every statement names again that the job has ended
and when, and on PostgreSQL rows that another one has at hand are left to it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, or_, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.spec.status import TERMINAL, JobStatus
from service.store.session import NO_SYNC
from service.store.tables import IdempotencyKeyRow, JobRow, LeaderRow

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
