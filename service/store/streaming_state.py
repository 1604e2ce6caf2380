"""The row of a streaming job in `streams`: its generation, what it has read, and why it is stopped.

A caller that writes here must hold the job's row, by a lock or by a fenced change of it in the same transaction.

A mini-batch is unmeasured if the sink has it and its metrics are not known; the rows that it read are missing from
those of the stream. A worker stores the metrics a moment after the commit of a mini-batch. That never happens if the
worker is killed in between, or if a hundred more mini-batches end before it, since Spark keeps the figures of only a
hundred.

Older versions do not know UNMEASURED. Their workers store `{}` as the metrics of such a mini-batch, delete its row
without counting it, and drop UNMEASURED from a stream's metrics. So during a rolling upgrade, and after a downgrade,
the number is too small, and their API shows UNMEASURED among the metrics. Results do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from sqlalchemy import func, null, select
from sqlalchemy.orm import Session

from service.store.tables import StreamBatchRow, StreamRow

UNMEASURED = "unmeasured"
"""Key of a stream's metrics: the number of unmeasured mini-batches whose rows have been deleted."""


class StreamStopReason(StrEnum):
    """Why a streaming job is STOPPED: by request, because it had read everything, because of the failure in `error`, or
    because the database was restored without the job's state.
    """

    STOPPED = "stopped"
    CAUGHT_UP = "caught_up"
    FAILED = "failed"
    RESTORED = "restored"


@dataclass(frozen=True)
class Stream:
    """What is stored of a streaming job. Mini-batches are numbered from 0 in each generation. `rows_in` and `rows_out`
    are those of the generation; `updated_at` in milliseconds.
    """

    job_id: str
    generation: int
    """Number of the state. Each start from scratch begins a new generation."""
    layout: dict[str, Any] | None
    """The schema of the state; None until the first attempt of the generation has stored it."""
    last_batch: int | None
    """The newest committed mini-batch."""
    steady_fence: int
    """The newest attempt that made progress. Lost attempts after it count against the job."""
    rows_in: int
    rows_out: int
    sink_version: int | None
    metrics: dict[str, Any] | None
    stopped_because: str | None
    """A `StreamStopReason` while the job is STOPPED."""
    updated_at: int

    @classmethod
    def of(cls, row: StreamRow) -> Self:
        """Returns the contents of `row`."""
        return cls(
            job_id=row.job_id,
            generation=row.generation,
            layout=row.layout,
            last_batch=row.last_batch,
            steady_fence=row.steady_fence,
            rows_in=row.rows_in,
            rows_out=row.rows_out,
            sink_version=row.sink_version,
            metrics=row.metrics,
            stopped_because=row.stopped_because,
            updated_at=row.updated_at,
        )


def find_stream(session: Session, job_id: str) -> Stream | None:
    """Returns what is stored of a job; None for a job that was neither started nor stopped yet."""
    row = session.get(StreamRow, job_id)
    return None if row is None else Stream.of(row)


def stream_row(session: Session, job_id: str, tenant: str, now: int) -> StreamRow:
    """Returns the job's row. Adds one of generation 1 with nothing read if there is none."""
    row = session.get(StreamRow, job_id, populate_existing=True)
    if row is None:
        row = StreamRow(
            job_id=job_id, tenant=tenant, generation=1, steady_fence=0, rows_in=0, rows_out=0, updated_at=now
        )
        session.add(row)
    return row


def save_stop_reason(session: Session, job_id: str, tenant: str, reason: StreamStopReason, now: int) -> None:
    """Stores why the job is STOPPED."""
    row = stream_row(session, job_id, tenant, now)
    row.stopped_because, row.updated_at = reason.value, now


def reset(row: StreamRow) -> None:
    """Drops the state: the next attempt begins a new generation with nothing read."""
    row.generation += 1
    row.rows_in = row.rows_out = 0
    row.layout = row.last_batch = row.sink_version = row.metrics = None


def unmeasured_batches(session: Session, job_id: str, generation: int, metrics: dict[str, Any] | None) -> int:
    """Returns the number of unmeasured mini-batches of a generation, deleted ones included. `metrics` are the
    stream's."""
    return deleted_unmeasured(metrics) + count_unmeasured(session, job_id, generation)


def deleted_unmeasured(metrics: dict[str, Any] | None) -> int:
    """Returns the number of unmeasured mini-batches whose rows have been deleted, from a stream's metrics."""
    return int((metrics or {}).get(UNMEASURED, 0))


def count_unmeasured(session: Session, job_id: str, generation: int, before: int | None = None) -> int:
    """Returns the number of stored unmeasured mini-batches, of all or of those with numbers below `before`."""
    batches = select(func.count()).where(
        StreamBatchRow.job_id == job_id,
        StreamBatchRow.generation == generation,
        StreamBatchRow.committed_at.is_not(None),
        # Metrics are large and stored outside the row: to read them would take fifty times as long as this test.
        StreamBatchRow.metrics.is_(null()),
    )
    if before is not None:
        batches = batches.where(StreamBatchRow.batch_id < before)
    return session.execute(batches).scalar_one()
