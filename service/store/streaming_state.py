"""How far a streaming job has come, and why it rests: its row in `streams`.

Whoever writes here holds the job's row, by a lock or by a fenced change of it in the same transaction.

Mini-batches that a sink has and that nobody has measured: the rows that they read are not among those of the stream.

A worker measures a mini-batch a moment after it is committed. Where it is killed in between, nobody does any more; nor
where a hundred later ones come before it can store what Spark told of it: Spark keeps that of so many.

Workers of releases that know none of this store `{}` as the metrics of such a mini-batch, which is not counted, forget
it uncounted, and drop UNMEASURED from a stream's metrics when they measure: during a rolling upgrade, and after a way
back, the number is too small. Their API shows UNMEASURED among the metrics. A place of its own would not make it count
what they forget, and the result does not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from sqlalchemy import func, null, select
from sqlalchemy.orm import Session

from service.store.tables import StreamBatchRow, StreamRow


class StoppedBecause(StrEnum):
    """Why a streaming job rests: asked for, nothing left to read, a failure that its `error` tells of, or that the
    database was restored, and its state was not.
    """

    STOPPED = "stopped"
    CAUGHT_UP = "caught_up"
    FAILED = "failed"
    RESTORED = "restored"


@dataclass(frozen=True)
class Stream:
    """What is stored of a streaming job. `generation` grows when its state is thrown away; batches are counted from 0
    in each. `rows_in` and `rows_out` are those of the generation; `updated_at` in milliseconds.
    """

    job_id: str
    generation: int
    layout: dict[str, Any] | None
    """How the state is laid out; None until the first attempt of the generation has told."""
    last_batch: int | None
    """The newest mini-batch that is committed."""
    steady_fence: int
    """The newest attempt that got on: lost attempts after it count against the job."""
    rows_in: int
    rows_out: int
    sink_version: int | None
    metrics: dict[str, Any] | None
    stopped_because: str | None
    """A `StoppedBecause` while the job rests."""
    updated_at: int

    @classmethod
    def of(cls, row: StreamRow) -> Self:
        """What `row` holds."""
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
    """What is stored of a job; None for one that no worker has opened and nobody has stopped."""
    row = session.get(StreamRow, job_id)
    return None if row is None else Stream.of(row)


def stream_row(session: Session, job_id: str, tenant: str, now: int) -> StreamRow:
    """The job's row, made where there is none: of generation 1, with nothing read."""
    row = session.get(StreamRow, job_id, populate_existing=True)
    if row is None:
        row = StreamRow(
            job_id=job_id,
            tenant=tenant,
            generation=1,
            steady_fence=0,
            rows_in=0,
            rows_out=0,
            updated_at=now,
        )
        session.add(row)
    return row


def note_rest(session: Session, job_id: str, tenant: str, because: StoppedBecause, now: int) -> None:
    """Notes why the job rests."""
    row = stream_row(session, job_id, tenant, now)
    row.stopped_because, row.updated_at = because.value, now


def start_over(row: StreamRow) -> None:
    """Throws the state away: the next attempt begins a new generation with nothing read."""
    row.generation += 1
    row.rows_in = row.rows_out = 0
    row.layout = row.last_batch = row.sink_version = row.metrics = None


UNMEASURED = "unmeasured"
"""What stands so in a stream's metrics is the number of those that are forgotten."""


def unmeasured_batches(session: Session, job_id: str, generation: int, metrics: dict[str, Any] | None) -> int:
    """How many of a generation there are and were; `metrics` are the stream's."""
    return forgotten(metrics) + count_unmeasured(session, job_id, generation)


def forgotten(metrics: dict[str, Any] | None) -> int:
    """Those of which a stream's metrics alone still tell."""
    return int((metrics or {}).get(UNMEASURED, 0))


def count_unmeasured(session: Session, job_id: str, generation: int, before: int | None = None) -> int:
    """How many are there, of all, or of those with numbers below `before`."""
    batches = select(func.count()).where(
        StreamBatchRow.job_id == job_id,
        StreamBatchRow.generation == generation,
        StreamBatchRow.committed_at.is_not(None),
        # That is in the row itself: to read metrics, which are large, would take this statement fifty times as long.
        StreamBatchRow.metrics.is_(null()),
    )
    if before is not None:
        batches = batches.where(StreamBatchRow.batch_id < before)
    return session.execute(batches).scalar_one()
