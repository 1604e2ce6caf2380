"""Worker processes: what each says of itself, when it last did, and whether it is to drain.

Which workers listen to which queue, and how many jobs they could start now.

What a scrape asks the database. Each question is answered from an index, and none reads a job's row but those of
jobs that workers have at hand: with a hundred thousand jobs, they take about a tenth of a second together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import BigInteger, BindParameter, ColumnElement, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.orm import Session

from service.contract.enums import LEASED, JobStatus, Queue, SparkState, WorkerStatus
from service.store.accounts import of_full_tenants
from service.store.jobs import RUN, WITHOUT_LEASE
from service.store.session import NO_SYNC
from service.store.tables import AttemptRow, JobRow, OutboxRow, WorkerRow

KEPT_MS = 60 * 60 * 1000
"""For how long a worker that fell silent is still listed."""

_STATUS_OF_SPARK = {
    SparkState.STARTING: WorkerStatus.STARTING,
    SparkState.READY: WorkerStatus.READY,
    SparkState.UNAVAILABLE: WorkerStatus.UNAVAILABLE,
}
_STATES = tuple(sorted(state.value for state in SparkState))


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker says of itself with every sign of life; the columns of `WorkerRow`, None where it does not say."""

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
class JobAtHand:
    """A job that a worker holds a lease on, and the attempt it is at. Times in milliseconds."""

    worker: str
    job_id: str
    tenant: str
    kind: str
    name: str
    status: JobStatus
    attempt: int
    started_at: int


def beat(
    session: Session, worker: str, now: int, version: str, facts: WorkerFacts | None = None, *, leaving: bool = False
) -> bool:
    """Notes that the worker lives and what it says of itself; adds it when it is new. True where it is to drain.

    One that is `leaving` already, whoever told it, is seen to drain.
    """
    said: dict[str, Any] = asdict(facts or WorkerFacts())
    if leaving:
        said["drain_requested_at"] = func.coalesce(WorkerRow.drain_requested_at, now)
    known = session.execute(
        update(WorkerRow)
        .where(WorkerRow.id == worker)
        .values(heartbeat_at=now, **said)
        .returning(WorkerRow.id, WorkerRow.drain_requested_at)
        .execution_options(**NO_SYNC)
    ).one_or_none()
    if known is None:
        said["drain_requested_at"] = now if leaving else None
        session.add(WorkerRow(id=worker, started_at=now, heartbeat_at=now, version=version, **said))
        return leaving
    return known.drain_requested_at is not None


def leave(session: Session, worker: str) -> None:
    """Forgets a worker that stops."""
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker).execution_options(**NO_SYNC))


def purge(session: Session, silent_since: int) -> None:
    """Forgets workers whose last sign of life is older than `silent_since`."""
    session.execute(delete(WorkerRow).where(WorkerRow.heartbeat_at < silent_since).execution_options(**NO_SYNC))


def count_alive(session: Session, heard_since: int) -> int:
    """How many workers gave a sign of life at `heard_since` or later."""
    return session.execute(
        select(func.count()).select_from(WorkerRow).where(WorkerRow.heartbeat_at >= heard_since)
    ).scalar_one()


def is_any_of_another_version(session: Session, heard_since: int, version: str) -> bool:
    """Whether a worker of another version gave a sign of life at `heard_since` or later: an upgrade is under way."""
    found = select(WorkerRow.id).where(WorkerRow.heartbeat_at >= heard_since, WorkerRow.version != version).limit(1)
    return session.execute(found).first() is not None


def list_workers(session: Session, heard_since: int) -> Sequence[WorkerRow]:
    """The workers that gave a sign of life at `heard_since` or later, oldest first."""
    statement = select(WorkerRow).where(WorkerRow.heartbeat_at >= heard_since)
    return session.scalars(statement.order_by(WorkerRow.started_at, WorkerRow.id)).all()


def find_worker(session: Session, worker: str, heard_since: int, *, lock: bool = False) -> WorkerRow | None:
    """The worker of this id, if it was heard of since; with `lock`, as it stays until the transaction ends."""
    statement = select(WorkerRow).where(WorkerRow.id == worker, WorkerRow.heartbeat_at >= heard_since)
    return session.scalars(statement.with_for_update() if lock else statement).one_or_none()


def request_drain(session: Session, worker: str, now: int) -> None:
    """Asks a worker to take no more jobs and to end once it has none; what was asked before stays as it is."""
    session.execute(
        update(WorkerRow)
        .where(WorkerRow.id == worker, WorkerRow.drain_requested_at.is_(None))
        .values(drain_requested_at=now)
        .execution_options(**NO_SYNC)
    )


def worker_status(row: WorkerRow, silent_before: int) -> WorkerStatus:
    """How the worker of `row` stands; SILENT where its last sign of life is older than `silent_before`.

    One of an older version, or of a newer one with states that this one does not know, says nothing of its Spark: it
    counts as READY.
    """
    if row.heartbeat_at < silent_before:
        return WorkerStatus.SILENT
    if row.drain_requested_at is not None:
        return WorkerStatus.DRAINING
    if row.spark_state not in _STATES:
        return WorkerStatus.READY
    return _STATUS_OF_SPARK[SparkState(row.spark_state)]


def count_by_status(session: Session, now: int, silence_ms: int) -> dict[WorkerStatus, int]:
    """Number of workers in each status, zeros included; the silent ones as long as they are listed."""
    counts = dict.fromkeys(WorkerStatus, 0)
    for row in list_workers(session, now - KEPT_MS):
        counts[worker_status(row, now - silence_ms)] += 1
    return counts


def jobs_at_hand(session: Session, workers: Collection[str], now: int) -> Sequence[JobAtHand]:
    """The jobs on which these workers hold a lease, of every tenant and kind, in the order in which they were begun."""
    found = session.execute(
        select(JobRow.lease_owner, JobRow.id, JobRow.tenant, JobRow.kind, JobRow.name, JobRow.status, JobRow.fence)
        .add_columns(AttemptRow.started_at)
        .join(AttemptRow, and_(AttemptRow.job_id == JobRow.id, AttemptRow.fence == JobRow.fence))
        .where(
            JobRow.lease_owner.in_(workers),
            JobRow.lease_expires_at > now,
            JobRow.status.in_([status.value for status in LEASED]),
        )
        .order_by(AttemptRow.started_at, JobRow.id)
    )
    return [
        JobAtHand(owner or "", job_id, tenant, kind, name, JobStatus(status), fence, started_at)
        for owner, job_id, tenant, kind, name, status, fence, started_at in found
    ]


def queues_listened_to(session: Session, heard_since: int) -> frozenset[str]:
    """The queues of the workers that gave a sign of life at `heard_since` (milliseconds) or later and take jobs."""
    found = session.scalars(_LISTENED_TO, {"heard_since": heard_since})
    return frozenset(queue for queues in found for queue in _split(queues))


def free_slots(session: Session, heard_since: int, concurrency: int) -> dict[str, int]:
    """How many jobs of each queue could start now; of a worker with two queues, all its free slots count for both.

    Queues that nobody listens to are left out. `concurrency` is taken for that of a worker which does not say it.
    """
    held = (
        select(JobRow.lease_owner.label("owner"), func.count().label("jobs"))
        # Streams stay with their worker beside its slots.
        .where(JobRow.status.in_([status.value for status in LEASED]), JobRow.queue != Queue.STREAM.value)
        .group_by(JobRow.lease_owner)
        .subquery()
    )
    rows = session.execute(
        select(WorkerRow.queues, WorkerRow.concurrency, func.coalesce(held.c.jobs, 0))
        .outerjoin(held, held.c.owner == WorkerRow.id)
        .where(*_takes_jobs(heard_since))
    )
    free: Counter[str] = Counter()
    for queues, slots, jobs in rows:
        for queue in _split(queues):
            free[queue] += max(0, (concurrency if slots is None else slots) - jobs)
    return dict(free)


def deaf_workers(session: Session, version: str, heard_since: int, since: int, most_running: int = 0) -> Sequence[str]:
    """Workers of `version`, by id, that live, have their Spark and a free slot, and took nothing since `since`
    (milliseconds) although a job has waited in a queue of theirs all the time: no message reaches them.

    Jobs that wait for something else count for nothing: streams have places of their own, jobs that lost an attempt may
    be kept apart from others, workers of another version may not know what a job asks for, of a tenant no more than
    `most_running` jobs run, or any number where that is 0, and explanations wait while others of their tenant are at
    work.
    """
    waiting: tuple[ColumnElement[bool], ...] = (
        JobRow.status == JobStatus.QUEUED.value,
        JobRow.kind == RUN,
        JobRow.queue != Queue.STREAM.value,
        JobRow.updated_at <= since,
        JobRow.cancel_requested_at.is_(None),
        JobRow.fence == 0,
    )
    if most_running:
        waiting = (*waiting, ~of_full_tenants(most_running))
    unheard = set(session.scalars(select(JobRow.queue).where(*waiting).distinct()))
    if not unheard:
        return ()
    held = select(func.count()).where(JobRow.lease_owner == WorkerRow.id, JobRow.queue != Queue.STREAM.value)
    took = select(AttemptRow.id).where(AttemptRow.worker == WorkerRow.id, AttemptRow.started_at > since)
    rows = session.execute(
        select(WorkerRow.id, WorkerRow.queues)
        .where(
            *_takes_jobs(heard_since),
            WorkerRow.spark_state == SparkState.READY.value,
            WorkerRow.version == version,
            WorkerRow.started_at <= since,
            held.correlate(WorkerRow).scalar_subquery() < func.coalesce(WorkerRow.concurrency, 1),
            ~took.correlate(WorkerRow).exists(),
        )
        .order_by(WorkerRow.started_at, WorkerRow.id)
    )
    return [worker for worker, queues in rows if unheard & set(_split(queues))]


def _takes_jobs(heard_since: int | BindParameter[int]) -> tuple[ColumnElement[bool], ...]:
    unavailable = SparkState.UNAVAILABLE.value
    return (
        WorkerRow.heartbeat_at >= heard_since,
        WorkerRow.drain_requested_at.is_(None),
        or_(WorkerRow.spark_state.is_(None), WorkerRow.spark_state != unavailable),
    )


_LISTENED_TO = select(WorkerRow.queues).where(*_takes_jobs(bindparam("heard_since", type_=BigInteger))).distinct()


def _split(queues: str | None) -> list[str]:
    # The version before knew one queue and said nothing of it.
    return [Queue.SHORT.value] if queues is None else queues.split(",")


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
