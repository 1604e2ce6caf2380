"""Worker processes: what each says of itself, when it last did, and whether it is to drain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import and_, delete, func, select, update
from sqlalchemy.orm import Session

from service.spec.status import LEASED, JobStatus
from service.spec.workers import SparkState, WorkerStatus
from service.store.session import NO_SYNC
from service.store.tables import AttemptRow, JobRow, WorkerRow

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
