"""Streams of posted rows: declares, reads, lists and deletes them, and looks them up for other use cases.

A repeated declaration with the same columns changes nothing. A stream that jobs still read cannot be deleted.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import Self

import structlog
from pydantic import Field
from sqlalchemy.orm import Session

from service.config.settings import LimitSettings
from service.contract.errors import (
    StorageUnavailableError,
    StreamDiffersError,
    StreamInUseError,
    StreamNotFoundError,
    TooManyStreamsError,
)
from service.contract.model import Frozen
from service.contract.problems import Issue
from service.data.file_io import make_directory
from service.data.posted_rows import stream_directory
from service.jobs.limits import require_stream_capacity
from service.jobs.views import decode_cursor, encode_cursor, timestamp
from service.sql.ddl import parse_schema, schema_text
from service.sql.types.data_types import Field as SchemaField
from service.sql.types.data_types import Schema
from service.store import accounts, input_streams
from service.store.accounts import Counted
from service.store.input_streams import InputStream
from service.store.session import Database

_log = structlog.get_logger(__name__)
MAX_PAGE_SIZE = 200
"""A larger `page_size` is reduced to this."""
_SCOPE = "streams"
_MAX_NAMED_JOBS = 5


class Stream(Frozen):
    """A declared stream, and what has been posted to it."""

    name: str = Field(examples=["clicks"])
    declared_schema: str = Field(
        alias="schema", description="Its columns as DDL.", examples=["uid BIGINT, page STRING, at TIMESTAMP"]
    )
    batches: int = Field(description="Number of accepted batches.")
    rows: int
    bytes: int = Field(description="Total size of the files.")
    created_at: datetime
    last_appended_at: datetime | None = Field(description="When its newest batch was accepted.")

    @classmethod
    def of(cls, stream: InputStream) -> Self:
        """Returns the stream as it is stored in the database."""
        return cls.model_validate(
            {
                "name": stream.name,
                "schema": stream.ddl,
                "batches": stream.batches,
                "rows": stream.rows,
                "bytes": stream.bytes,
                "created_at": timestamp(stream.created_at),
                "last_appended_at": None if stream.newest_at is None else timestamp(stream.newest_at),
            }
        )


def require_stream(session: Session, tenant: str, name: str, *, lock: bool = False) -> InputStream:
    """Returns the tenant's stream; `lock` locks it until the transaction ends. Raises StreamNotFoundError."""
    stream = input_streams.find_stream(session, tenant, name, lock=lock)
    if stream is None:
        raise no_such_stream(name)
    return stream


def no_such_stream(name: str) -> StreamNotFoundError:
    """Returns the error for an unknown stream name."""
    return StreamNotFoundError(f"There is no stream '{name}'. Declare it with its schema: PUT /v1/streams/{name}.")


@dataclass(frozen=True)
class Declared:
    """The stream, and whether this request created it."""

    stream: Stream
    is_new: bool


def declare_stream(
    database: Database, streams_dir: Path, limits: LimitSettings, tenant: str, name: str, ddl: str
) -> Declared:
    """Creates a stream with these columns, or returns the existing stream that has them.

    Raises SpecError `invalid_schema`, StreamDiffersError if the stream exists with other columns, TooManyStreamsError
    if the tenant's limit is reached, and StorageUnavailableError.
    """
    schema = parse_schema(ddl, "/schema", is_atomic=True)
    with database.read() as session:
        known = input_streams.find_stream(session, tenant, name)
        if known is None:
            # Checked before a directory is created, and again below with a lock.
            require_stream_capacity(session, limits, tenant)
    if known is None:
        stream_id = uuid.uuid4().hex[:12]
        directory = stream_directory(streams_dir, tenant, name, stream_id)
        try:
            # Before the stream is stored: its readers expect the directory to exist.
            make_directory(directory)
        except OSError as error:
            raise storage_unavailable(error) from error
        try:
            known, is_new = _insert(database, limits, tenant, name, stream_id, schema)
        except TooManyStreamsError:
            directory.rmdir()
            raise
        if is_new:
            return Declared(Stream.of(known), is_new=True)
        directory.rmdir()
    differences = tuple(_differences(known.schema, schema))
    if differences:
        details = " ".join(issue.detail for issue in differences[:3])
        raise StreamDiffersError(
            f"The stream '{name}' was declared with other columns. {details} Use another name for the new schema, or "
            "delete the stream first.",
            issues=differences,
        )
    return Declared(Stream.of(known), is_new=False)


def _insert(
    database: Database, limits: LimitSettings, tenant: str, name: str, stream_id: str, schema: Schema
) -> tuple[InputStream, bool]:
    """Returns the stream with that name, and whether this call created it."""
    with database.write() as session:
        accounts.lock_count(session, tenant, Counted.STREAMS)
        known = input_streams.find_stream(session, tenant, name)
        if known is not None:
            return known, False
        require_stream_capacity(session, limits, tenant)
        text, now = schema_text(schema), database.now(session)
        is_new = input_streams.insert_stream(session, tenant=tenant, name=name, stream_id=stream_id, ddl=text, now=now)
        return require_stream(session, tenant, name), is_new


def storage_unavailable(error: OSError) -> StorageUnavailableError:
    """Returns the error for a directory of streams that cannot be written."""
    _log.error("streams_directory_unusable", errno=error.errno, error=error.strerror)
    return StorageUnavailableError(
        f"The directory of streams (EVENKEEL_DATA_STREAMS) cannot be used: {error.strerror or type(error).__name__}."
    )


def _differences(known: Schema, wanted: Schema) -> Iterator[Issue]:
    for index, (old, new) in enumerate(zip_longest(known.fields, wanted.fields), start=1):
        if old != new:
            yield Issue(code="stream_differs", detail=_describe_difference(index, old, new), pointer="/schema")


def _describe_difference(index: int, old: SchemaField | None, new: SchemaField | None) -> str:
    has = "none" if old is None else f"{old.name} {old.type}"
    says = "none" if new is None else f"{new.name} {new.type}"
    return f"Column {index} is {has} in the stream and {says} in the declaration."


def get_stream(database: Database, tenant: str, name: str) -> Stream:
    """Returns the tenant's stream. Raises StreamNotFoundError."""
    with database.read() as session:
        return Stream.of(require_stream(session, tenant, name))


class StreamPage(Frozen):
    """One page of the list of streams."""

    streams: tuple[Stream, ...]
    next_cursor: str = Field(description="The `cursor` of the next page; empty on the last page.")


def list_streams(database: Database, tenant: str, cursor: str, page_size: int) -> StreamPage:
    """Returns a page of at most `page_size` streams by name that follow `cursor`; an empty cursor starts at the first
    name.

    Raises InvalidCursorError.
    """
    after = str(decode_cursor(cursor, _SCOPE, (str,))[0]) if cursor else ""
    limit = min(page_size, MAX_PAGE_SIZE)
    with database.read() as session:
        # One extra row shows whether there is a next page.
        found = input_streams.list_streams(session, tenant=tenant, after=after, limit=limit + 1)
    page = found[:limit]
    return StreamPage(
        streams=tuple(Stream.of(stream) for stream in page),
        next_cursor=encode_cursor([page[-1].name], _SCOPE) if len(found) > limit else "",
    )


def delete_stream(database: Database, streams_dir: Path, tenant: str, name: str) -> None:
    """Deletes the stream, then all of its files.

    Raises StreamNotFoundError, and StreamInUseError if an unfinished job reads it.
    """
    with database.write() as session:
        stream = require_stream(session, tenant, name, lock=True)
        readers = input_streams.readers_of(session, tenant, name)
        if readers:
            more = f" and {len(readers) - _MAX_NAMED_JOBS} more" if len(readers) > _MAX_NAMED_JOBS else ""
            raise StreamInUseError(
                f"Unfinished jobs read the stream: {', '.join(readers[:_MAX_NAMED_JOBS])}{more}. Cancel them first."
            )
        input_streams.delete_stream(session, tenant=tenant, name=name)
    # After the commit: files without a stream are harmless, but a stream without its files would be broken.
    directory = stream_directory(streams_dir, tenant, name, stream.id)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        _log.warning("files_not_removed", path=str(directory))
