"""Reads how far a streaming job has come."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from service.jobs.batch_metrics import apart
from service.jobs.streaming import require_streaming
from service.jobs.views import LooksLike, timestamp
from service.spec.model import Frozen
from service.spec.modes import Mode
from service.spec.stream_metrics import Backlog, BatchMetrics
from service.store.session import Database
from service.store.stream_state import StoppedBecause, Stream, find_stream
from service.store.streams import FOLLOWED
from service.store.tables import JobRow
from service.store.unmeasured import UNMEASURED, unmeasured_batches

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
        return _view(row, stream, unmeasured)


def _view(row: JobRow, stream: Stream | None, unmeasured: int) -> JobStream:
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
