"""Looks a worker up for the other use cases.

Workers as clients and operators see them.

Reads one worker.

Lists the workers heard of lately.

Asks a worker to end once its jobs have.
"""

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
from service.store.workers import JobAtHand, jobs_at_hand, request_drain, worker_status

_ID = re.compile(r"[\x21-\x7e]{1,128}")


def require_worker(session: Session, worker_id: str, now: int, *, for_change: bool = False) -> WorkerRow:
    """The worker, if it was heard of lately; locked until the transaction ends where it is read `for_change`.

    Raises WorkerNotFoundError, also for an id that no worker can have.
    """
    row = None
    if _ID.fullmatch(worker_id):
        row = workers.find_worker(session, worker_id, now - workers.KEPT_MS, lock=for_change)
    if row is None:
        raise WorkerNotFoundError("No worker has this id; it may have ended. GET /v1/workers lists those there are.")
    return row


_STATES = [status.value for status in WorkerStatus]

WorkerStatusText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["READY"],
            "x-extensible-enum": _STATES,
            "description": f"One of {', '.join(_STATES)}; more may come. STARTING: its Spark is not there yet. "
            "DRAINING: it takes no more jobs and ends after those at hand. UNAVAILABLE: `fault` keeps it from running "
            "jobs. SILENT: it has given no sign of life for as long as a lease lasts.",
        }
    ),
]


class WorkerJob(Frozen):
    """A job of yours that a worker is at."""

    id: str = Field(examples=["0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a"])
    name: str
    status: StatusText
    attempt: int = Field(description="Number of the attempt that the worker makes.")
    started_at: datetime = Field(description="When that attempt began.")


class Worker(Frozen):
    """A worker process, as it last described itself; null is what it did not tell."""

    id: str = Field(examples=["node-1-4711-a1b2c3"])
    host: str | None = Field(examples=["node-1"])
    version: str = Field(description="Version of Evenkeel that it runs.", examples=["0.1.0"])
    started_at: datetime
    heartbeat_at: datetime = Field(description="Its last sign of life.")
    status: WorkerStatusText
    queues: tuple[str, ...] = Field(description="The queues that it listens to.", examples=[["short", "long"]])
    concurrency: int | None = Field(description="Jobs that it runs at once.")
    cluster: str | None = Field(description="Master URL of its Spark.", examples=["spark://spark-master:7077"])
    app_id: str | None = Field(
        description="Spark's application id, by which the cluster knows it.", examples=["app-20261121120000-0001"]
    )
    slots: int | None = Field(description="Spark tasks that it runs at once.")
    memory_bytes: int | None = Field(description="Resident memory of the process and its Spark driver.")
    fault: str | None = Field(description="What keeps it from running jobs, and what to do; null unless UNAVAILABLE.")
    jobs: tuple[WorkerJob, ...] = Field(description="Your jobs that it is at, in the order in which it began them.")
    other_jobs: int = Field(description="How much else it is at: jobs of others, and explanations.")

    @classmethod
    def of(cls, row: WorkerRow, at_hand: Iterable[JobAtHand], tenant: str, silent_before: int) -> Self:
        """The worker of `row` for `tenant`, with what it is at; SILENT if last heard of before `silent_before`."""
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
            # The version before knew one queue and said nothing of it.
            queues=(Queue.SHORT.value,) if row.queues is None else tuple(row.queues.split(",")),
            concurrency=row.concurrency,
            cluster=row.cluster,
            app_id=row.app_id,
            slots=row.slots,
            memory_bytes=row.memory_bytes,
            fault=row.spark_fault if status is WorkerStatus.UNAVAILABLE else None,
            jobs=tuple(_job(job) for job in own),
            other_jobs=len(held) - len(own),
        )


def workers_of(session: Session, rows: Sequence[WorkerRow], tenant: str, now: int, silence_ms: int) -> list[Worker]:
    """The workers of these rows for `tenant` as they stand at `now` (milliseconds)."""
    at_hand = jobs_at_hand(session, [row.id for row in rows], now)
    return [Worker.of(row, at_hand, tenant, now - silence_ms) for row in rows]


def _job(job: JobAtHand) -> WorkerJob:
    return WorkerJob(
        id=job.job_id, name=job.name, status=job.status.value, attempt=job.attempt, started_at=timestamp(job.started_at)
    )


def get_worker(database: Database, tenant: str, worker_id: str, silence_ms: int) -> Worker:
    """The worker as it last described itself. Raises WorkerNotFoundError."""
    with database.read() as session:
        now = database.now(session)
        row = require_worker(session, worker_id, now)
        (worker,) = workers_of(session, [row], tenant, now, silence_ms)
    return worker


class WorkerList(Frozen):
    """All workers heard of within the last hour."""

    workers: tuple[Worker, ...]


def list_workers(database: Database, tenant: str, silence_ms: int) -> WorkerList:
    """Every worker that gave a sign of life within the hour, oldest first; those silent for `silence_ms` as such."""
    with database.read() as session:
        now = database.now(session)
        rows = workers.list_workers(session, now - workers.KEPT_MS)
        return WorkerList(workers=tuple(workers_of(session, rows, tenant, now, silence_ms)))


def drain_worker(database: Database, tenant: str, worker_id: str, silence_ms: int) -> Worker:
    """Notes that the worker is to drain, which it learns with its next sign of life. Asking twice changes nothing.

    Raises WorkerNotFoundError, and WorkerSilentError for one that would not learn of it.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_worker(session, worker_id, now, for_change=True)
        if worker_status(row, now - silence_ms) is WorkerStatus.SILENT:
            raise WorkerSilentError(
                f"The worker was last heard of {(now - row.heartbeat_at) // 1000} s ago. If it hangs, end its process; "
                "its jobs are taken over by themselves."
            )
        request_drain(session, worker_id, now)
        session.refresh(row)
        (worker,) = workers_of(session, [row], tenant, now, silence_ms)
    return worker
