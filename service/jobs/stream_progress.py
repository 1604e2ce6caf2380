"""Reads the progress of a streaming job: its state (`get_job_stream`) and its mini-batches (`list_job_batches`).

The database stores metrics and backlog of a mini-batch in one JSON column; the API returns them as two fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, WithJsonSchema

from service.contract.enums import Mode
from service.contract.model import Frozen, renamed
from service.contract.stream_reports import Backlog, BatchMetrics
from service.jobs.lifecycle import require_streaming
from service.jobs.views import DocumentedAs, decode_cursor, encode_cursor, timestamp
from service.store.session import Database
from service.store.streaming_jobs import BACKLOG, FOLLOWED, batches_before
from service.store.streaming_state import UNMEASURED, Stream, StreamStopReason, find_stream, unmeasured_batches
from service.store.tables import JobRow, StreamBatchRow

MAX_BATCH_PAGE_SIZE = 200
"""A larger `page_size` is reduced to this."""


def split_metrics(stored: dict[str, Any] | None) -> dict[str, Any]:
    """Splits the stored JSON into the fields `metrics` and `backlog`; each is None if nothing was measured.

    Stored names of fields are converted to the current ones, so that clients read one shape.
    """
    figures = {name: value for name, value in (stored or {}).items() if name != BACKLOG}
    backlog = (stored or {}).get(BACKLOG)
    return {
        "metrics": _convert_metrics(figures) if figures else None,
        "backlog": None if backlog is None else Backlog.from_stored(backlog),
    }


def _convert_metrics(figures: dict[str, Any]) -> dict[str, Any]:
    state = [_convert_state(one) for one in figures.get("state", ())]
    return {"busy": None, **figures, "state": state}


def _convert_state(stored: dict[str, Any]) -> dict[str, Any]:
    """Renames the former field `bytes` (memory of the state stores), and adds `state_bytes`, which was not measured
    then.
    """
    kept = {name: value for name, value in stored.items() if name != "bytes"}
    memory = {"memory_bytes": stored["bytes"]} if "bytes" in stored else {}
    return {"state_bytes": None, **memory, **kept}


BecauseText = Annotated[
    str,
    WithJsonSchema(
        {
            "type": "string",
            "examples": ["caught_up"],
            "x-extensible-enum": [because.value for because in StreamStopReason],
            "description": "Why the job is STOPPED: `stopped` by request, `caught_up` with all input processed, "
            "`failed` with an `error`, or `restored` from a backup, which has no state. Otherwise null.",
        }
    ),
]


class RefreshError(Frozen):
    """Why the table's current files are not used."""

    code: str = Field(examples=["schema_changed"])
    detail: str


class RefreshedTable(Frozen):
    """A table with `refresh`: the version that mini-batches are joined with now."""

    table: str
    version: int = Field(description="Counts from 1 in each generation.")
    since_batch: int | None = Field(
        description="The first mini-batch joined with this version; null if there is none yet."
    )
    loaded_at: datetime = Field(description="When its files were copied.")
    files: int
    bytes: int
    refresh_error: RefreshError | None = Field(
        description="Why the table's current files are not used; null if they are."
    )

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Self:
        """Returns the table as a worker stored it. The names of fields before 1.0 are still stored, so that workers and
        services of the version before can share the database during an upgrade.
        """
        return cls.model_validate(renamed(renamed(stored, "taken_at", "loaded_at"), "not_taken", "refresh_error"))


class JobStream(Frozen):
    """State and progress of a streaming job."""

    job_id: str
    mode: Mode
    generation: int = Field(
        description="Incremented by every start from scratch; mini-batches are numbered from 0 in each generation."
    )
    layout: dict[str, Any] | None = Field(
        description="The layout of its state, with which changed settings must be compatible; null before the first "
        "mini-batch."
    )
    schemas: dict[str, str] = Field(
        description="The columns of CSV and JSON tables as DDL, declared or inferred at submission. Inferred columns "
        "do not change in later runs, including runs from scratch.",
        examples=[{"orders": "uid BIGINT, category STRING"}],
    )
    last_batch: int | None = Field(description="The newest mini-batch that the sink has committed.")
    rows_in: int = Field(
        description="Rows read in this generation by committed mini-batches, except those in `unmeasured_batches`."
    )
    unmeasured_batches: int = Field(
        description="Committed mini-batches of this generation that `rows_in` does not include: not measured yet, or "
        "their measurement was lost. The result is exact."
    )
    rows_out: int = Field(description="Rows written to the sink in this generation.")
    sink_version: int | None = Field(description="Version of the result, if the sink has versions.")
    refreshed_tables: tuple[RefreshedTable, ...] = Field(
        default=(),
        description="The versions in use of tables with `refresh`; those of each mini-batch are in its metrics.",
    )
    metrics: Annotated[dict[str, Any], DocumentedAs(BatchMetrics)] | None = Field(
        description="Metrics of the newest measured mini-batch."
    )
    backlog: Annotated[dict[str, Any], DocumentedAs(Backlog)] | None = Field(
        description="Unread input when the worker last checked; null before the first check."
    )
    stopped_because: BecauseText | None
    next_run_at: datetime | None = Field(description="When a STOPPED incremental job runs next.")
    updated_at: datetime | None = Field(
        description="When one of these fields last changed; null before the first change."
    )


def get_job_stream(database: Database, tenant: str, job_id: str) -> JobStream:
    """Returns state and progress of a streaming job. Raises JobNotFoundError and NotAStreamError."""
    with database.read() as session:
        row = require_streaming(session, tenant, job_id, with_spec=True)
        stream = find_stream(session, row.id)
        unmeasured = 0 if stream is None else unmeasured_batches(session, row.id, stream.generation, stream.metrics)
        return _stream_view(row, stream, unmeasured)


def _stream_view(row: JobRow, stream: Stream | None, unmeasured: int) -> JobStream:
    measured = dict((stream.metrics if stream is not None else None) or {})
    measured.pop(UNMEASURED, None)
    refreshed = measured.pop(FOLLOWED, [])
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
        refreshed_tables=tuple(RefreshedTable.from_stored(table) for table in refreshed),
        **split_metrics(measured),
        stopped_because=None if stream is None else stream.stopped_because,
        next_run_at=None if row.next_run_at is None else timestamp(row.next_run_at),
        updated_at=None if stream is None else timestamp(stream.updated_at),
    )


def _schemas(spec: dict[str, Any]) -> dict[str, str]:
    tables: dict[str, dict[str, Any]] = spec["tables"]
    return {name: schema for name, table in sorted(tables.items()) if (schema := table.get("schema")) is not None}


class JobBatch(Frozen):
    """One mini-batch. Fields are null until they are known; most are known when it is committed."""

    generation: int
    batch_id: int = Field(description="Counts from 0 in each generation.")
    attempt: int = Field(description="The attempt that last ran it.")
    begun_at: datetime
    committed_at: datetime | None = Field(description="When the sink was known to have committed it.")
    rows_in: int | None = Field(
        description="Rows read. Null until the mini-batch is measured, shortly after its commit; it stays null if the "
        "worker was lost before that."
    )
    rows_out: int | None
    elapsed_ms: int | None = Field(description="Time from the start of the mini-batch until the sink had committed it.")
    sink_version: int | None
    metrics: Annotated[dict[str, Any], DocumentedAs(BatchMetrics)] | None
    backlog: Annotated[dict[str, Any], DocumentedAs(Backlog)] | None = Field(
        description="Unread input at the last check before this mini-batch was measured. If several mini-batches were "
        "measured together, it is null for all but the newest."
    )


class JobBatchPage(Frozen):
    """One page of the mini-batches of a job."""

    batches: tuple[JobBatch, ...]
    next_cursor: str = Field(description="The `cursor` of the next page; empty on the last page.")


def list_job_batches(database: Database, tenant: str, job_id: str, cursor: str, page_size: int) -> JobBatchPage:
    """Returns a page of at most `page_size` mini-batches, newest first, that follow `cursor`; an empty cursor starts at
    the newest.

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
        # One extra row shows whether there is a next page.
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
        **split_metrics(row.metrics),
    )
