"""Worker processes: their heartbeats, the queues that they listen to, their free slots, and the gauges of a scrape.

The statements of a scrape use indexes, and read only the rows of jobs that workers run: with a hundred thousand jobs,
they take about a tenth of a second together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import BigInteger, BindParameter, ColumnElement, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.orm import Session

from service.contract.enums import LEASED, JobStatus, Queue, SparkState, WorkerStatus
from service.store.accounts import exceeds_running_jobs
from service.store.jobs import RUN, WITHOUT_LEASE
from service.store.tables import AttemptRow, JobRow, OutboxRow, WorkerRow

KEPT_MS = 60 * 60 * 1000
"""How long a worker without a heartbeat is still listed."""

_STATUS_OF_SPARK = {
    SparkState.STARTING: WorkerStatus.STARTING,
    SparkState.READY: WorkerStatus.READY,
    SparkState.UNAVAILABLE: WorkerStatus.UNAVAILABLE,
}
_STATES = tuple(sorted(state.value for state in SparkState))
_LEASED = tuple(sorted(status.value for status in LEASED))


def _can_run_jobs(since: int | BindParameter[int]) -> tuple[ColumnElement[bool], ...]:
    unavailable = SparkState.UNAVAILABLE.value
    return (
        WorkerRow.heartbeat_at >= since,
        WorkerRow.drain_requested_at.is_(None),
        or_(WorkerRow.spark_state.is_(None), WorkerRow.spark_state != unavailable),
    )


LISTENED_TO = select(WorkerRow.queues).where(*_can_run_jobs(bindparam("since", type_=BigInteger))).distinct()


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker reports with every heartbeat: columns of `WorkerRow`, None for what it does not report."""

    host: str | None = None
    pid: int | None = None
    concurrency: int | None = None
    queues: str | None = None
    cluster: str | None = None
    """Spark's master URL, without secrets."""
    app_id: str | None = None
    spark_state: str | None = None
    spark_fault: str | None = None
    slots: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class RunningJob:
    """A job on which a worker has a lease, and its attempt. Times in milliseconds."""

    worker: str
    job_id: str
    tenant: str
    kind: str
    name: str
    status: JobStatus
    attempt: int
    started_at: int


def record_heartbeat(
    session: Session, worker: str, now: int, version: str, facts: WorkerFacts | None = None, *, leaving: bool = False
) -> bool:
    """Stores a heartbeat and what the worker reports; adds a new worker. Returns whether it must drain.

    A worker that is `leaving` is stored as draining.
    """
    reported: dict[str, Any] = asdict(facts or WorkerFacts())
    if leaving:
        reported["drain_requested_at"] = func.coalesce(WorkerRow.drain_requested_at, now)
    known = session.execute(
        update(WorkerRow)
        .where(WorkerRow.id == worker)
        .values(heartbeat_at=now, **reported)
        .returning(WorkerRow.id, WorkerRow.drain_requested_at)
    ).one_or_none()
    if known is None:
        reported["drain_requested_at"] = now if leaving else None
        session.add(WorkerRow(id=worker, started_at=now, heartbeat_at=now, version=version, **reported))
        return leaving
    return known.drain_requested_at is not None


def remove_worker(session: Session, worker: str) -> None:
    """Removes a worker that stops."""
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker))


def remove_silent_workers(session: Session, before: int) -> None:
    """Removes workers whose last heartbeat is older than `before`."""
    session.execute(delete(WorkerRow).where(WorkerRow.heartbeat_at < before))


def count_alive(session: Session, since: int) -> int:
    """Returns the number of workers with a heartbeat at `since` or later."""
    return session.execute(
        select(func.count()).select_from(WorkerRow).where(WorkerRow.heartbeat_at >= since)
    ).scalar_one()


def has_other_version(session: Session, since: int, version: str) -> bool:
    """Returns whether a worker of another version has a heartbeat at `since` or later: an upgrade is in progress."""
    found = select(WorkerRow.id).where(WorkerRow.heartbeat_at >= since, WorkerRow.version != version).limit(1)
    return session.execute(found).first() is not None


def list_workers(session: Session, since: int) -> Sequence[WorkerRow]:
    """Returns the workers with a heartbeat at `since` or later, oldest first."""
    statement = select(WorkerRow).where(WorkerRow.heartbeat_at >= since)
    return session.scalars(statement.order_by(WorkerRow.started_at, WorkerRow.id)).all()


def find_worker(session: Session, worker: str, since: int, *, lock: bool = False) -> WorkerRow | None:
    """Returns the worker of this id if it has a heartbeat at `since` or later. With `lock`, nobody else changes it
    before the transaction ends."""
    statement = select(WorkerRow).where(WorkerRow.id == worker, WorkerRow.heartbeat_at >= since)
    return session.scalars(statement.with_for_update() if lock else statement).one_or_none()


def request_drain(session: Session, worker: str, now: int) -> None:
    """Requests that a worker claims no more jobs and ends once it has none. An earlier request keeps its time."""
    session.execute(
        update(WorkerRow)
        .where(WorkerRow.id == worker, WorkerRow.drain_requested_at.is_(None))
        .values(drain_requested_at=now)
    )


def worker_status(row: WorkerRow, silent_before: int) -> WorkerStatus:
    """Returns the status of a worker; SILENT if its last heartbeat is older than `silent_before`.

    A worker of another version may report no state of Spark that this version knows: it counts as READY.
    """
    if row.heartbeat_at < silent_before:
        return WorkerStatus.SILENT
    if row.drain_requested_at is not None:
        return WorkerStatus.DRAINING
    if row.spark_state not in _STATES:
        return WorkerStatus.READY
    return _STATUS_OF_SPARK[SparkState(row.spark_state)]


def count_by_status(session: Session, now: int, silence_ms: int) -> dict[WorkerStatus, int]:
    """Returns the number of workers in each status, zeros included; silent workers count while they are listed."""
    counts = dict.fromkeys(WorkerStatus, 0)
    for row in list_workers(session, now - KEPT_MS):
        counts[worker_status(row, now - silence_ms)] += 1
    return counts


def running_jobs_of(session: Session, workers: Collection[str], now: int) -> Sequence[RunningJob]:
    """Returns the jobs on which these workers have a lease, of every tenant and kind, by the start of their
    attempts."""
    found = session.execute(
        select(JobRow.lease_owner, JobRow.id, JobRow.tenant, JobRow.kind, JobRow.name, JobRow.status, JobRow.fence)
        .add_columns(AttemptRow.started_at)
        .join(AttemptRow, and_(AttemptRow.job_id == JobRow.id, AttemptRow.fence == JobRow.fence))
        .where(
            JobRow.lease_owner.in_(workers),
            JobRow.lease_expires_at > now,
            JobRow.status.in_(_LEASED),
        )
        .order_by(AttemptRow.started_at, JobRow.id)
    )
    return [
        RunningJob(owner or "", job_id, tenant, kind, name, JobStatus(status), fence, started_at)
        for owner, job_id, tenant, kind, name, status, fence, started_at in found
    ]


def queues_listened_to(session: Session, since: int) -> frozenset[str]:
    """Returns the queues of the workers that have a heartbeat at `since` (milliseconds) or later and can run jobs."""
    found = session.connection().execute(LISTENED_TO, {"since": since}).scalars()
    return names_in(found)


def names_in(queues: Iterable[str | None]) -> frozenset[str]:
    """Returns the names of all queues in these values of the column `queues`."""
    return frozenset(queue for listed in queues for queue in _split(listed))


def free_slots(session: Session, since: int, concurrency: int) -> dict[str, int]:
    """Returns the number of jobs of each queue that could start now, without queues to which no worker listens.

    The free slots of a worker count for each of its queues. `concurrency` is used for workers that do not report it.
    """
    held = (
        select(JobRow.lease_owner.label("owner"), func.count().label("jobs"))
        # Streams need no slot.
        .where(JobRow.status.in_(_LEASED), JobRow.queue != Queue.STREAM.value)
        .group_by(JobRow.lease_owner)
        .subquery()
    )
    rows = session.execute(
        select(WorkerRow.queues, WorkerRow.concurrency, func.coalesce(held.c.jobs, 0))
        .outerjoin(held, held.c.owner == WorkerRow.id)
        .where(*_can_run_jobs(since))
    )
    free: Counter[str] = Counter()
    for queues, slots, jobs in rows:
        for queue in _split(queues):
            free[queue] += max(0, (concurrency if slots is None else slots) - jobs)
    return dict(free)


def unresponsive_workers(
    session: Session, version: str, alive_since: int, since: int, most_running: int = 0
) -> Sequence[str]:
    """Returns the ids of workers of `version` that no message seems to reach: each has a heartbeat at `alive_since` or
    later, Spark and a free slot, but has claimed nothing after `since`, although a job has waited in one of its queues
    since then.

    Jobs that may wait for another reason do not count: streams; explanations; jobs that lost an attempt, which may have
    to run apart from others; jobs that need a driver of their own; and jobs of a tenant of which `most_running` run, if
    that is not 0. A worker of another version may not know the format of a job.
    """
    waiting: tuple[ColumnElement[bool], ...] = (
        JobRow.status == JobStatus.QUEUED.value,
        JobRow.kind == RUN,
        JobRow.queue != Queue.STREAM.value,
        JobRow.updated_at <= since,
        JobRow.cancel_requested_at.is_(None),
        JobRow.fence == 0,
        JobRow.isolated.is_(False),
    )
    if most_running:
        waiting = (*waiting, ~exceeds_running_jobs(most_running))
    waiting_queues = set(session.scalars(select(JobRow.queue).where(*waiting).distinct()))
    if not waiting_queues:
        return ()
    held = select(func.count()).where(JobRow.lease_owner == WorkerRow.id, JobRow.queue != Queue.STREAM.value)
    claimed = select(AttemptRow.id).where(AttemptRow.worker == WorkerRow.id, AttemptRow.started_at > since)
    rows = session.execute(
        select(WorkerRow.id, WorkerRow.queues)
        .where(
            *_can_run_jobs(alive_since),
            WorkerRow.spark_state == SparkState.READY.value,
            WorkerRow.version == version,
            WorkerRow.started_at <= since,
            held.correlate(WorkerRow).scalar_subquery() < func.coalesce(WorkerRow.concurrency, 1),
            ~claimed.correlate(WorkerRow).exists(),
        )
        .order_by(WorkerRow.started_at, WorkerRow.id)
    )
    return [worker for worker, queues in rows if waiting_queues & set(_split(queues))]


def _split(queues: str | None) -> list[str]:
    # Version 1 had one queue and did not report it.
    return [Queue.SHORT.value] if queues is None else queues.split(",")


@dataclass(frozen=True)
class JobGauges:
    """Numbers of submitted jobs of all tenants. Times in milliseconds."""

    counts: Mapping[tuple[str, str], int]
    """(effective status, queue) -> number of jobs."""
    oldest_queued_at: Mapping[str, int]
    """Queue -> submission of the job that has waited longest; no entry for an empty queue."""
    expired_leases: int
    ended_recently: Mapping[str, int]
    """Status -> number of jobs."""
    outbox: int


def read_gauges(session: Session, now: int, recent_ms: int) -> JobGauges:
    """Returns all gauges at `now`. A job that ended in the last `recent_ms` has ended recently."""
    counts = Counter({(status, queue): number for status, queue, number in _stored(session)})
    oldest = {queue.value: at for queue in Queue if (at := _oldest_queued(session, queue)) is not None}
    expired = 0
    for status, queue, number, submitted_at in _expired(session, now):
        expired += number
        effective = WITHOUT_LEASE.get(JobStatus(status))
        if effective is None:
            continue
        counts[status, queue] -= number
        counts[effective.value, queue] += number
        if effective is JobStatus.QUEUED:
            oldest[queue] = min(submitted_at, oldest.get(queue, submitted_at))
    return JobGauges(counts, oldest, expired, _ended(session, now - recent_ms), _unsent(session))


def _stored(session: Session) -> list[tuple[str, str, int]]:
    statement = select(JobRow.status, JobRow.queue, func.count()).where(JobRow.kind == RUN)
    found = session.execute(statement.group_by(JobRow.status, JobRow.queue))
    return [(status, queue, number) for status, queue, number in found]


def _oldest_queued(session: Session, queue: Queue) -> int | None:
    # In the order of the index, up to the first job that can be claimed now: failed jobs pause before their next
    # attempt.
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
    expired = select(JobRow.status, JobRow.queue, func.count(), func.min(JobRow.submitted_at)).where(
        JobRow.status.in_(_LEASED), JobRow.kind == RUN, func.coalesce(JobRow.lease_expires_at, 0) <= now
    )
    found = session.execute(expired.group_by(JobRow.status, JobRow.queue))
    return [(status, queue, number, submitted_at or 0) for status, queue, number, submitted_at in found]


def _ended(session: Session, since: int) -> dict[str, int]:
    # `coalesce` keeps SQLite from an index that begins with one of these columns, which it would read in full.
    status, kind = func.coalesce(JobRow.status, ""), func.coalesce(JobRow.kind, "")
    found = session.execute(
        select(status, func.count()).where(JobRow.finished_at >= since, kind == RUN).group_by(status)
    )
    return {ended: number for ended, number in found}  # noqa: C416 - the type checker takes rows for no pairs


def _unsent(session: Session) -> int:
    return session.execute(select(func.count()).select_from(OutboxRow)).scalar_one()
