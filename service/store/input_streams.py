"""Input streams, to which clients post rows, and their batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

from sqlalchemy import delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.contract.enums import TERMINAL
from service.sql.ddl import parse_schema
from service.sql.types.data_types import Schema
from service.store.jobs import RUN
from service.store.tables import InputBatchRow, InputStreamRow, JobRow

_ENDED = tuple(sorted(status.value for status in TERMINAL))
_STREAM = "stream"


@dataclass(frozen=True)
class InputStream:
    """A declared stream. `ddl` is its schema in canonical form; times in milliseconds."""

    tenant: str
    name: str
    id: str
    ddl: str
    batches: int
    rows: int
    bytes: int
    created_at: int
    newest_at: int | None

    @property
    def schema(self) -> Schema:
        """The stream's columns."""
        return _schema(self.ddl)


@dataclass(frozen=True)
class InputBatch:
    """An accepted batch. `sha256` is the digest of the request; `file` the id of its file while that is hidden."""

    batch_id: str
    sha256: str
    seq: int
    file: str
    rows: int


@dataclass(frozen=True)
class NewBatch:
    """A batch whose rows are in a hidden file of `bytes` bytes."""

    batch_id: str
    sha256: str
    file: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class Hidden:
    """A hidden file of an accepted batch, and what its visible name is made of."""

    file: str
    tenant: str
    stream: str
    stream_id: str
    seq: int
    sha256: str


def find_stream(session: Session, tenant: str, name: str, *, lock: bool = False) -> InputStream | None:
    """Returns the tenant's stream of this name. With `lock`, nobody else changes it before the transaction ends."""
    statement = select(InputStreamRow).where(InputStreamRow.tenant == tenant, InputStreamRow.name == name)
    row = session.scalars(statement.with_for_update() if lock else statement).one_or_none()
    return None if row is None else _stream(row)


def find_schemas(session: Session, tenant: str, names: Collection[str], *, lock: bool = False) -> dict[str, Schema]:
    """Returns the columns of the tenant's streams that have these names. With `lock`, nobody deletes the streams before
    the transaction ends, but rows can be posted to them.
    """
    statement = select(InputStreamRow).where(InputStreamRow.tenant == tenant, InputStreamRow.name.in_(names))
    # The same order in every transaction prevents deadlocks.
    statement = statement.order_by(InputStreamRow.name)
    rows = session.scalars(statement.with_for_update(read=True, key_share=True) if lock else statement)
    return {row.name: _schema(row.columns) for row in rows}


def insert_stream(session: Session, *, tenant: str, name: str, stream_id: str, ddl: str, now: int) -> bool:
    """Adds a stream; False if the tenant has one of this name."""
    row = InputStreamRow(
        tenant=tenant, name=name, id=stream_id, columns=ddl, batches=0, rows=0, bytes=0, created_at=now
    )
    try:
        with session.begin_nested():
            session.add(row)
    except IntegrityError:
        return False
    return True


def list_streams(session: Session, *, tenant: str, after: str, limit: int) -> Sequence[InputStream]:
    """Returns at most `limit` of the tenant's streams with names after `after`, by name."""
    statement = (
        select(InputStreamRow)
        .where(InputStreamRow.tenant == tenant, InputStreamRow.name > after)
        .order_by(InputStreamRow.name)
        .limit(limit)
    )
    return [_stream(row) for row in session.scalars(statement)]


def delete_stream(session: Session, *, tenant: str, name: str) -> None:
    """Deletes a stream with its batches. The caller removes the files after the commit."""
    of_stream = (InputBatchRow.tenant == tenant, InputBatchRow.stream == name)
    session.execute(delete(InputBatchRow).where(*of_stream))
    named = (InputStreamRow.tenant == tenant, InputStreamRow.name == name)
    session.execute(delete(InputStreamRow).where(*named))


def find_batch(session: Session, *, tenant: str, stream: str, batch_id: str) -> InputBatch | None:
    """Returns the accepted batch of this id."""
    row = session.get(InputBatchRow, (tenant, stream, batch_id))
    return None if row is None else InputBatch(row.batch_id, row.sha256, row.seq, row.file, row.rows)


def insert_batch(session: Session, stream: InputStream, new: NewBatch, now: int) -> InputBatch | None:
    """Accepts a batch into the stream for which it was read; None if that has been deleted.

    Raises IntegrityError if the stream has a batch of this id.
    """
    # Locks the stream's row first: a stream accepts one batch at a time, and none once it is deleted.
    seq = session.execute(
        update(InputStreamRow)
        .where(
            InputStreamRow.tenant == stream.tenant, InputStreamRow.name == stream.name, InputStreamRow.id == stream.id
        )
        .values(
            batches=InputStreamRow.batches + 1,
            rows=InputStreamRow.rows + new.rows,
            bytes=InputStreamRow.bytes + new.bytes,
            newest_at=now,
        )
        .returning(InputStreamRow.batches)
    ).scalar_one_or_none()
    if seq is None:
        return None
    session.add(
        InputBatchRow(
            tenant=stream.tenant,
            stream=stream.name,
            batch_id=new.batch_id,
            sha256=new.sha256,
            seq=seq,
            file=new.file,
            rows=new.rows,
            bytes=new.bytes,
            at=now,
        )
    )
    session.flush()
    return InputBatch(new.batch_id, new.sha256, seq, new.file, new.rows)


def find_hidden(session: Session, files: Collection[str]) -> Sequence[Hidden]:
    """Returns those of the hidden files that belong to an accepted batch."""
    statement = (
        select(
            InputBatchRow.file,
            InputBatchRow.tenant,
            InputBatchRow.stream,
            InputStreamRow.id,
            InputBatchRow.seq,
            InputBatchRow.sha256,
        )
        .join(
            InputStreamRow,
            (InputStreamRow.tenant == InputBatchRow.tenant) & (InputStreamRow.name == InputBatchRow.stream),
        )
        .where(InputBatchRow.file.in_(files))
    )
    return [Hidden(*row) for row in session.execute(statement)]


@dataclass(frozen=True)
class UnreadBatches:
    """Number of accepted batches that a job has not read yet, and their rows and bytes."""

    batches: int
    rows: int
    bytes: int
    oldest_at: int | None
    """When the oldest of them was accepted, in milliseconds."""


def unread_batches(session: Session, tenant: str, name: str, read_to: int, also_read: Collection[int]) -> UnreadBatches:
    """Returns the batches of a stream after number `read_to`, without the numbers `also_read`, at most a thousand.

    Scans the rows of all of the stream's batches.
    """
    statement = select(
        func.count(), func.sum(InputBatchRow.rows), func.sum(InputBatchRow.bytes), func.min(InputBatchRow.at)
    ).where(
        InputBatchRow.tenant == tenant,
        InputBatchRow.stream == name,
        InputBatchRow.seq > read_to,
        InputBatchRow.seq.not_in(also_read),
    )
    batches, rows, size, oldest_at = session.execute(statement).one()
    return UnreadBatches(batches, int(rows or 0), int(size or 0), oldest_at)


def readers_of(session: Session, tenant: str, name: str) -> Sequence[str]:
    """Returns the ids of the tenant's jobs that read the stream and have not finished, oldest first."""
    unfinished = (
        select(JobRow.id, JobRow.spec)
        .where(JobRow.tenant == tenant, JobRow.kind == RUN, JobRow.status.not_in(_ENDED))
        .order_by(JobRow.submitted_at, JobRow.id)
        .execution_options(yield_per=100)
    )
    return [job_id for job_id, spec in session.execute(unfinished) if _reads(spec, name)]


@lru_cache(maxsize=64)
def _schema(ddl: str) -> Schema:
    # Every request that posts rows needs it.
    return parse_schema(ddl, "/schema")


def _reads(spec: object, name: str) -> bool:
    tables = spec.get("tables") if isinstance(spec, dict) else None
    return isinstance(tables, dict) and any(
        isinstance(table, dict) and table.get("format") == _STREAM and table.get(_STREAM) == name
        for table in tables.values()
    )


def _stream(row: InputStreamRow) -> InputStream:
    return InputStream(
        tenant=row.tenant,
        name=row.name,
        id=row.id,
        ddl=row.columns,
        batches=row.batches,
        rows=row.rows,
        bytes=row.bytes,
        created_at=row.created_at,
        newest_at=row.newest_at,
    )
