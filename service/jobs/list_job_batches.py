"""Lists the mini-batches of a streaming job, newest first, page by page."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from service.jobs.batch_metrics import apart
from service.jobs.cursors import decode_cursor, encode_cursor
from service.jobs.streaming import require_streaming
from service.jobs.views import LooksLike, timestamp
from service.spec.model import Frozen
from service.spec.stream_metrics import Backlog, BatchMetrics
from service.store.session import Database
from service.store.streams import batches_before
from service.store.tables import StreamBatchRow

MAX_PAGE_SIZE = 200
"""A larger `page_size` is read as this."""


class JobBatch(Frozen):
    """One mini-batch. What is null is not known before it is committed."""

    generation: int
    batch_id: int = Field(description="Counts from 0 in each generation.")
    attempt: int = Field(description="The attempt that was at it last.")
    begun_at: datetime
    committed_at: datetime | None = Field(description="When the sink had it for certain.")
    rows_in: int | None = Field(
        description="Rows read. Null also until it is measured, a moment after it is committed, and for ever where its "
        "worker was lost before that."
    )
    rows_out: int | None
    elapsed_ms: int | None = Field(description="From its begin until the sink had it.")
    sink_version: int | None
    metrics: Annotated[dict[str, Any], LooksLike(BatchMetrics)] | None
    backlog: Annotated[dict[str, Any], LooksLike(Backlog)] | None = Field(
        description="How far the job was behind its streams, as it was last looked up before this was measured; null "
        "where several mini-batches were measured together, for all but the newest."
    )


class JobBatchPage(Frozen):
    """One page of the mini-batches of a job."""

    batches: tuple[JobBatch, ...]
    next_cursor: str = Field(description="Give it as `cursor` for the next page; empty on the last one.")


def list_job_batches(database: Database, tenant: str, job_id: str, cursor: str, page_size: int) -> JobBatchPage:
    """A page of at most `page_size` mini-batches from behind `cursor` (empty: from the newest on).

    Raises JobNotFoundError, NotAStreamError and InvalidCursorError.
    """
    scope = f"batches|{job_id}"
    limit = min(page_size, MAX_PAGE_SIZE)
    position = None
    if cursor:
        generation, batch_id = decode_cursor(cursor, scope, (int, int))
        position = (int(generation), int(batch_id))
    with database.read() as session:
        row = require_streaming(session, tenant, job_id)
        # One row more than asked for tells whether there is a next page.
        rows = batches_before(session, row.id, position, limit + 1)
    page = rows[:limit]
    more = len(rows) > limit
    return JobBatchPage(
        batches=tuple(_view(batch) for batch in page),
        next_cursor=encode_cursor([page[-1].generation, page[-1].batch_id], scope) if more else "",
    )


def _view(row: StreamBatchRow) -> JobBatch:
    return JobBatch(
        generation=row.generation,
        batch_id=row.batch_id,
        attempt=row.fence,
        begun_at=timestamp(row.begun_at),
        committed_at=None if row.committed_at is None else timestamp(row.committed_at),
        rows_in=row.rows_in if row.metrics else None,
        rows_out=row.rows_out,
        elapsed_ms=row.elapsed_ms,
        sink_version=row.sink_version,
        **apart(row.metrics),
    )
