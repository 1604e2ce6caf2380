"""What was measured of a stream, as clients see it: figures and backlog apart, which are stored together.

Reads how far a streaming job has come.

Lists the mini-batches of a streaming job, newest first, page by page.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from service.contract.enums import Mode
from service.contract.model import Frozen
from service.contract.reports import Backlog, BatchMetrics
from service.jobs.lifecycle import require_streaming
from service.jobs.views import LooksLike, decode_cursor, encode_cursor, timestamp
from service.store.session import Database
from service.store.streaming_jobs import BACKLOG, FOLLOWED, batches_before
from service.store.streaming_state import UNMEASURED, StoppedBecause, Stream, find_stream, unmeasured_batches
from service.store.tables import JobRow, StreamBatchRow


def apart(stored: dict[str, Any] | None) -> dict[str, Any]:
    """The fields `metrics` and `backlog`; either is None where nothing was measured.

    What an earlier release stored gets the names of today: clients read one shape, however old a mini-batch is.
    """
    figures = {name: value for name, value in (stored or {}).items() if name != BACKLOG}
    return {"metrics": _of_today(figures) if figures else None, "backlog": (stored or {}).get(BACKLOG)}


def _of_today(figures: dict[str, Any]) -> dict[str, Any]:
    state = [_state_of_today(one) for one in figures.get("state", ())]
    return {"busy": None, **figures, "state": state}


def _state_of_today(told: dict[str, Any]) -> dict[str, Any]:
    """What was called `bytes` is what the stores hold in memory; the size of the state was not told."""
    kept = {name: value for name, value in told.items() if name != "bytes"}
    memory = {"memory_bytes": told["bytes"]} if "bytes" in told else {}
    return {"state_bytes": None, **memory, **kept}


BecauseText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["caught_up"],
            "x-extensible-enum": [because.value for because in StoppedBecause],
            "description": "Why it rests: `stopped` by request, `caught_up` with all that was there, `failed` (the "
            "job's `error` tells), or `restored` from a backup, which holds no state. Null while it does not rest.",
        }
    ),
]


class NotTaken(Frozen):
    """Why the newest state of a table is not used."""

    code: str = Field(examples=["schema_changed"])
    detail: str


class FollowedTable(Frozen):
    """A table with `follow`, as mini-batches are joined with it now."""

    table: str
    version: int = Field(description="Counts from 1 in each generation.")
    since_batch: int | None = Field(description="The first mini-batch that was joined with it; null before that.")
    taken_at: datetime = Field(description="When its files were copied.")
    files: int
    bytes: int
    not_taken: NotTaken | None = Field(description="Why what its files are now is not taken; null where it is.")


class JobStream(Frozen):
    """A streaming job's state and how far it has come."""

    job_id: str
    mode: Mode
    generation: int = Field(description="Grows with every start from scratch; mini-batches count from 0 in each.")
    layout: dict[str, Any] | None = Field(
        description="How its state is laid out, which settings may not contradict; null before its first mini-batch."
    )
    schemas: dict[str, str] = Field(
        description="The columns of tables of CSV and JSON files, as DDL: as declared, or as inferred when the job was "
        "submitted, and then kept for all of its runs, those from scratch included.",
        examples=[{"orders": "uid BIGINT, category STRING"}],
    )
    last_batch: int | None = Field(description="The newest mini-batch that its sink has.")
    rows_in: int = Field(
        description="Rows read in this generation, of committed mini-batches but those of `unmeasured_batches`."
    )
    unmeasured_batches: int = Field(
        description="Committed mini-batches of this generation whose rows are not in `rows_in`. The newest may be "
        "about to be measured. The others never will be: their workers were lost before, or, while the database was "
        "away, a hundred later ones came. The result is exact all the same."
    )
    rows_out: int = Field(description="Rows given to the sink in this generation.")
    sink_version: int | None = Field(description="Version of the result, where its sink counts any.")
    followed: tuple[FollowedTable, ...] = Field(
        default=(), description="The versions in use of tables that are followed; of each mini-batch its metrics tell."
    )
    metrics: Annotated[dict[str, Any], LooksLike(BatchMetrics)] | None = Field(
        description="What its worker measured of its newest mini-batch."
    )
    backlog: Annotated[dict[str, Any], LooksLike(Backlog)] | None = Field(
        description="How far it was behind its streams when its worker last looked; null before it has."
    )
    stopped_because: BecauseText | None
    next_run_at: datetime | None = Field(description="When an incremental job at rest runs again by itself.")
    updated_at: datetime | None = Field(description="When any of this changed; null before anything has.")


def get_job_stream(database: Database, tenant: str, job_id: str) -> JobStream:
    """The stream of a job. Raises JobNotFoundError and NotAStreamError."""
    with database.read() as session:
        row = require_streaming(session, tenant, job_id, with_spec=True)
        stream = find_stream(session, row.id)
        unmeasured = 0 if stream is None else unmeasured_batches(session, row.id, stream.generation, stream.metrics)
        return _stream_view(row, stream, unmeasured)


def _stream_view(row: JobRow, stream: Stream | None, unmeasured: int) -> JobStream:
    measured = dict((stream.metrics if stream is not None else None) or {})
    measured.pop(UNMEASURED, None)
    followed = measured.pop(FOLLOWED, [])
    return JobStream(
        job_id=row.id,
        mode=Mode(row.mode),
        generation=1 if stream is None else stream.generation,
        layout=None if stream is None else stream.layout,
        schemas=_schemas(row.spec),
        last_batch=None if stream is None else stream.last_batch,
        rows_in=0 if stream is None else stream.rows_in,
        unmeasured_batches=unmeasured,
        rows_out=0 if stream is None else stream.rows_out,
        sink_version=None if stream is None else stream.sink_version,
        followed=tuple(FollowedTable.model_validate(table) for table in followed),
        **apart(measured),
        stopped_because=None if stream is None else stream.stopped_because,
        next_run_at=None if row.next_run_at is None else timestamp(row.next_run_at),
        updated_at=None if stream is None else timestamp(stream.updated_at),
    )


def _schemas(spec: dict[str, Any]) -> dict[str, str]:
    tables: dict[str, dict[str, Any]] = spec["tables"]
    return {name: schema for name, table in sorted(tables.items()) if (schema := table.get("schema")) is not None}


MAX_BATCH_PAGE_SIZE = 200
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
    limit = min(page_size, MAX_BATCH_PAGE_SIZE)
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
        batches=tuple(_batch_view(batch) for batch in page),
        next_cursor=encode_cursor([page[-1].generation, page[-1].batch_id], scope) if more else "",
    )


def _batch_view(row: StreamBatchRow) -> JobBatch:
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
