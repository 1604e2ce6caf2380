"""Mini-batches that a sink has and that nobody has measured: the rows that they read are not among those of the stream.

A worker measures a mini-batch a moment after it is committed. Where it is killed in between, nobody does any more; nor
where a hundred later ones come before it can store what Spark told of it: Spark keeps that of so many.

Workers of releases that know none of this store `{}` as the metrics of such a mini-batch, which is not counted, forget
it uncounted, and drop UNMEASURED from a stream's metrics when they measure: during a rolling upgrade, and after a way
back, the number is too small. Their API shows UNMEASURED among the metrics. A place of its own would not make it count
what they forget, and the result does not depend on it.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import func, null, select
from sqlalchemy.orm import Session

from service.store.tables import StreamBatchRow

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
