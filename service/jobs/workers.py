"""Workers as the API returns them: reads one, lists recent ones, and requests a drain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Self

from pydantic import Field, WithJsonSchema
from sqlalchemy.orm import Session

from service.contract.enums import Queue, StatusText, WorkerStatus
from service.contract.errors import WorkerNotFoundError, WorkerSilentError
from service.contract.model import Frozen
from service.jobs.views import timestamp
from service.store import workers
from service.store.jobs import RUN
from service.store.session import Database
from service.store.tables import WorkerRow
from service.store.workers import RunningJob, request_drain, running_jobs_of, worker_status

_ID = re.compile(r"[\x21-\x7e]{1,128}")
_STATES = [status.value for status in WorkerStatus]


def require_worker(session: Session, worker_id: str, now: int, *, for_change: bool = False) -> WorkerRow:
    """Returns the worker if it had a heartbeat within the last hour; `for_change` locks it until the transaction ends.

    Raises WorkerNotFoundError, also for an invalid id.
    """
    row = None
    if _ID.fullmatch(worker_id):
        row = workers.find_worker(session, worker_id, now - workers.KEPT_MS, lock=for_change)
    if row is None:
        raise WorkerNotFoundError("No worker has this id; it may have ended. GET /v1/workers lists the workers.")
    return row


WorkerStatusText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["READY"],
            "x-extensible-enum": _STATES,
            "description": f"One of {', '.join(_STATES)}; later versions may add more. STARTING: Spark is "
            "starting. DRAINING: it ends after its current jobs. UNAVAILABLE: it cannot run jobs because of "
            "`unavailable_reason`. SILENT: it sent no heartbeat for the duration of a lease.",
        }
    ),
]


class WorkerJob(Frozen):
    """One of your jobs that a worker is running."""

    id: str = Field(examples=["0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a"])
    name: str
    status: StatusText
    attempt: int = Field(description="Number of the attempt.")
    started_at: datetime = Field(description="When the attempt started.")


class Worker(Frozen):
    """A worker process, as its last heartbeat described it. Fields that it did not report are null."""

    id: str = Field(examples=["node-1-4711-a1b2c3"])
    host: str | None = Field(examples=["node-1"])
    version: str = Field(description="Its version of Evenkeel.", examples=["0.1.0"])
    started_at: datetime
    heartbeat_at: datetime = Field(description="Time of its last heartbeat.")
    status: WorkerStatusText
    queues: tuple[str, ...] = Field(description="The queues that it listens to.", examples=[["short", "long"]])
    concurrency: int | None = Field(description="Number of jobs that it runs concurrently.")
    cluster: str | None = Field(description="Master URL of its Spark.", examples=["spark://spark-master:7077"])
    app_id: str | None = Field(
        description="Its application id in the Spark cluster.", examples=["app-20261121120000-0001"]
    )
    slots: int | None = Field(description="Number of Spark tasks that it runs concurrently.")
    memory_bytes: int | None = Field(description="Resident memory of the process and its Spark driver.")
    unavailable_reason: str | None = Field(
        description="Why it cannot run jobs, and what to do; null unless UNAVAILABLE."
    )
    jobs: tuple[WorkerJob, ...] = Field(
        description="Your jobs that it is running, in the order in which it started them."
    )
    other_jobs: int = Field(
        description="Number of other jobs that it is running: jobs of other tenants, and explanations."
    )

    @classmethod
    def of(cls, row: WorkerRow, at_hand: Iterable[RunningJob], tenant: str, silent_before: int) -> Self:
        """Returns the worker of `row` as `tenant` sees it; it is SILENT if its last heartbeat was before
        `silent_before`.
        """
        status = worker_status(row, silent_before)
        held = [job for job in at_hand if job.worker == row.id]
        own = [job for job in held if job.tenant == tenant and job.kind == RUN]
        return cls(
            id=row.id,
            host=row.host,
            version=row.version,
            started_at=timestamp(row.started_at),
            heartbeat_at=timestamp(row.heartbeat_at),
            status=status.value,
            # Workers of the previous version had one queue and did not report it.
            queues=(Queue.SHORT.value,) if row.queues is None else tuple(row.queues.split(",")),
            concurrency=row.concurrency,
            cluster=row.cluster,
            app_id=row.app_id,
            slots=row.slots,
            memory_bytes=row.memory_bytes,
            unavailable_reason=row.spark_fault if status is WorkerStatus.UNAVAILABLE else None,
            jobs=tuple(_job(job) for job in own),
            other_jobs=len(held) - len(own),
        )


def workers_of(session: Session, rows: Sequence[WorkerRow], tenant: str, now: int, silence_ms: int) -> list[Worker]:
    """Returns the workers of these rows as `tenant` sees them at `now` (milliseconds)."""
    at_hand = running_jobs_of(session, [row.id for row in rows], now)
    return [Worker.of(row, at_hand, tenant, now - silence_ms) for row in rows]


def _job(job: RunningJob) -> WorkerJob:
    return WorkerJob(
        id=job.job_id, name=job.name, status=job.status.value, attempt=job.attempt, started_at=timestamp(job.started_at)
    )


def get_worker(database: Database, tenant: str, worker_id: str, silence_ms: int) -> Worker:
    """Returns the worker as its last heartbeat described it. Raises WorkerNotFoundError."""
    with database.read() as session:
        now = database.now(session)
        row = require_worker(session, worker_id, now)
        (worker,) = workers_of(session, [row], tenant, now, silence_ms)
    return worker


class WorkerList(Frozen):
    """All workers with a heartbeat within the last hour."""

    workers: tuple[Worker, ...]


def list_workers(database: Database, tenant: str, silence_ms: int) -> WorkerList:
    """Returns all workers with a heartbeat within the last hour, oldest first; those without one for `silence_ms` are
    SILENT.
    """
    with database.read() as session:
        now = database.now(session)
        rows = workers.list_workers(session, now - workers.KEPT_MS)
        return WorkerList(workers=tuple(workers_of(session, rows, tenant, now, silence_ms)))


def drain_worker(database: Database, tenant: str, worker_id: str, silence_ms: int) -> Worker:
    """Requests a drain, which the worker reads at its next heartbeat. A repeated request changes nothing.

    Raises WorkerNotFoundError, and WorkerSilentError for a worker that sends no heartbeats.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_worker(session, worker_id, now, for_change=True)
        if worker_status(row, now - silence_ms) is WorkerStatus.SILENT:
            raise WorkerSilentError(
                f"The worker's last heartbeat was {(now - row.heartbeat_at) // 1000} s ago. If it hangs, end its "
                "process; other workers take over its jobs automatically."
            )
        request_drain(session, worker_id, now)
        session.refresh(row)
        (worker,) = workers_of(session, [row], tenant, now, silence_ms)
    return worker
