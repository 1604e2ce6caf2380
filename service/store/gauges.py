"""What a scrape asks the database. Each question is answered from an index, and none reads a job's row but those of
jobs that workers have at hand: with a hundred thousand jobs, they take about a tenth of a second together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.spec.queues import Queue
from service.spec.status import LEASED, JobStatus
from service.store.jobs import RUN, WITHOUT_LEASE
from service.store.tables import JobRow, OutboxRow

_LEASED = tuple(sorted(status.value for status in LEASED))


@dataclass(frozen=True)
class JobGauges:
    """Jobs that clients submitted, of all tenants. Times in milliseconds."""

    counts: Mapping[tuple[str, str], int]
    """(status, queue) -> how many, by effective status."""
    oldest_queued_at: Mapping[str, int]
    """Queue -> when the one that has waited longest was submitted; nothing while none waits."""
    expired_leases: int
    ended_recently: Mapping[str, int]
    """Status -> how many."""
    outbox: int


def read_gauges(session: Session, now: int, recent_ms: int) -> JobGauges:
    """Everything at once, as it stands at `now`; what ended in the last `recent_ms` counts as recent."""
    counts = Counter({(status, queue): number for status, queue, number in _stored(session)})
    oldest = {queue.value: at for queue in Queue if (at := _oldest_queued(session, queue)) is not None}
    expired = 0
    for status, queue, number, submitted_at in _expired(session, now):
        expired += number
        true = WITHOUT_LEASE.get(JobStatus(status))
        if true is None:
            continue
        # Nobody works on it: it counts as what it reads as everywhere else.
        counts[status, queue] -= number
        counts[true.value, queue] += number
        if true is JobStatus.QUEUED:
            oldest[queue] = min(submitted_at, oldest.get(queue, submitted_at))
    return JobGauges(counts, oldest, expired, _ended(session, now - recent_ms), _owed(session))


def _stored(session: Session) -> list[tuple[str, str, int]]:
    statement = select(JobRow.status, JobRow.queue, func.count()).where(JobRow.kind == RUN)
    found = session.execute(statement.group_by(JobRow.status, JobRow.queue))
    return [(status, queue, number) for status, queue, number in found]


def _oldest_queued(session: Session, queue: Queue) -> int | None:
    # In the index's order up to the first that is no exception: nobody may claim what pauses before it is tried again.
    statement = (
        select(JobRow.submitted_at)
        .where(
            JobRow.kind == RUN,
            JobRow.status == JobStatus.QUEUED.value,
            JobRow.queue == queue.value,
            JobRow.next_run_at.is_(None),
        )
        .order_by(JobRow.submitted_at)
        .limit(1)
    )
    return session.execute(statement).scalar_one_or_none()


def _expired(session: Session, now: int) -> list[tuple[str, str, int, int]]:
    at_hand = select(JobRow.status, JobRow.queue, func.count(), func.min(JobRow.submitted_at)).where(
        JobRow.status.in_(_LEASED), JobRow.kind == RUN, func.coalesce(JobRow.lease_expires_at, 0) <= now
    )
    found = session.execute(at_hand.group_by(JobRow.status, JobRow.queue))
    return [(status, queue, number, submitted_at or 0) for status, queue, number, submitted_at in found]


def _ended(session: Session, since: int) -> dict[str, int]:
    # As expressions, or SQLite would read an index that begins with one of them, and all of it.
    status, kind = func.coalesce(JobRow.status, ""), func.coalesce(JobRow.kind, "")
    found = session.execute(
        select(status, func.count()).where(JobRow.finished_at >= since, kind == RUN).group_by(status)
    )
    return {ended: number for ended, number in found}  # noqa: C416 - rows are no pairs to the type checker


def _owed(session: Session) -> int:
    return session.execute(select(func.count()).select_from(OutboxRow)).scalar_one()
