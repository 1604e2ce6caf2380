"""Streams of posted rows as clients see them, and how the other use cases look one up.

Declares a stream of posted rows; the same declaration again changes nothing.

Reads a stream of posted rows.

Lists streams of posted rows by name, page by page.

Deletes a stream with its batches and files, unless jobs still read it.
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
from service.jobs.admission import require_room_for_stream
from service.jobs.views import decode_cursor, encode_cursor, timestamp
from service.sql.ddl import parse_schema, schema_text
from service.sql.types.data_types import Field as SchemaField
from service.sql.types.data_types import Schema
from service.store import accounts, input_streams
from service.store.accounts import Counted
from service.store.input_streams import InputStream
from service.store.session import Database


class Stream(Frozen):
    """A stream as declared, and what was posted to it so far."""

    name: str = Field(examples=["clicks"])
    declared_schema: str = Field(
        alias="schema", description="Its columns as DDL.", examples=["uid BIGINT, page STRING, at TIMESTAMP"]
    )
    batches: int = Field(description="How many batches were accepted.")
    rows: int
    bytes: int = Field(description="Size of its files.")
    created_at: datetime
    newest_at: datetime | None = Field(description="When its newest batch was accepted.")

    @classmethod
    def of(cls, stream: InputStream) -> Self:
        """As the database has it."""
        return cls.model_validate(
            {
                "name": stream.name,
                "schema": stream.ddl,
                "batches": stream.batches,
                "rows": stream.rows,
                "bytes": stream.bytes,
                "created_at": timestamp(stream.created_at),
                "newest_at": None if stream.newest_at is None else timestamp(stream.newest_at),
            }
        )


def require_stream(session: Session, tenant: str, name: str, *, lock: bool = False) -> InputStream:
    """The tenant's stream, locked until the transaction ends where that is asked for. Raises StreamNotFoundError."""
    stream = input_streams.find_stream(session, tenant, name, lock=lock)
    if stream is None:
        raise no_such_stream(name)
    return stream


def no_such_stream(name: str) -> StreamNotFoundError:
    """The refusal for a name that no stream has."""
    return StreamNotFoundError(f"No stream is called '{name}'. Declare it: PUT /v1/streams/{name} with its schema.")


_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Declared:
    """The stream, and whether it is new."""

    stream: Stream
    is_new: bool


def declare_stream(
    database: Database, streams_dir: Path, limits: LimitSettings, tenant: str, name: str, ddl: str
) -> Declared:
    """Makes a stream of these columns, or finds the one that has them.

    Raises SpecError `invalid_schema`, StreamDiffersError where the stream has other columns, TooManyStreamsError where
    the tenant has as many as it may, and StorageUnavailableError.
    """
    schema = parse_schema(ddl, "/schema")
    with database.read() as session:
        known = input_streams.find_stream(session, tenant, name)
        if known is None:
            # Before a directory is made; below it is counted so that nobody comes between.
            require_room_for_stream(session, limits, tenant)
    if known is None:
        stream_id = uuid.uuid4().hex[:12]
        directory = stream_directory(streams_dir, tenant, name, stream_id)
        try:
            # Before the stream is there: who reads it may count on its directory.
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
        told = " ".join(issue.detail for issue in differences[:3])
        raise StreamDiffersError(
            f"The stream '{name}' was declared with other columns. {told} Give the new schema another name, or delete "
            "the stream first.",
            issues=differences,
        )
    return Declared(Stream.of(known), is_new=False)


def _insert(
    database: Database, limits: LimitSettings, tenant: str, name: str, stream_id: str, schema: Schema
) -> tuple[InputStream, bool]:
    """The stream of that name, and whether it is this one."""
    with database.write() as session:
        accounts.count_alone(session, tenant, Counted.STREAMS)
        known = input_streams.find_stream(session, tenant, name)
        if known is not None:
            return known, False
        require_room_for_stream(session, limits, tenant)
        text, now = schema_text(schema), database.now(session)
        is_new = input_streams.insert_stream(session, tenant=tenant, name=name, stream_id=stream_id, ddl=text, now=now)
        return require_stream(session, tenant, name), is_new


def storage_unavailable(error: OSError) -> StorageUnavailableError:
    """The refusal where the directory of streams cannot be written."""
    _log.error("streams_directory_unusable", errno=error.errno, error=error.strerror)
    return StorageUnavailableError(
        f"The directory of streams (EVENKEEL_DATA_STREAMS) cannot be used: {error.strerror or type(error).__name__}."
    )


def _differences(known: Schema, wanted: Schema) -> Iterator[Issue]:
    for index, (old, new) in enumerate(zip_longest(known.fields, wanted.fields), start=1):
        if old != new:
            yield Issue(code="stream_differs", detail=_told(index, old, new), pointer="/schema")


def _told(index: int, old: SchemaField | None, new: SchemaField | None) -> str:
    has = "none" if old is None else f"{old.name} {old.type}"
    says = "none" if new is None else f"{new.name} {new.type}"
    return f"Column {index} is {has} in the stream and {says} in the declaration."


def get_stream(database: Database, tenant: str, name: str) -> Stream:
    """The tenant's stream as it stands. Raises StreamNotFoundError."""
    with database.read() as session:
        return Stream.of(require_stream(session, tenant, name))


MAX_PAGE_SIZE = 200
"""A larger `page_size` is read as this."""

_SCOPE = "streams"


class StreamPage(Frozen):
    """One page of the list of streams."""

    streams: tuple[Stream, ...]
    next_cursor: str = Field(description="Give it as `cursor` for the next page; empty on the last one.")


def list_streams(database: Database, tenant: str, cursor: str, page_size: int) -> StreamPage:
    """A page of at most `page_size` streams from behind `cursor` (empty: from the first name on).

    Raises InvalidCursorError.
    """
    after = str(decode_cursor(cursor, _SCOPE, (str,))[0]) if cursor else ""
    limit = min(page_size, MAX_PAGE_SIZE)
    with database.read() as session:
        # One more than asked for tells whether there is a next page.
        found = input_streams.list_streams(session, tenant=tenant, after=after, limit=limit + 1)
    page = found[:limit]
    return StreamPage(
        streams=tuple(Stream.of(stream) for stream in page),
        next_cursor=encode_cursor([page[-1].name], _SCOPE) if len(found) > limit else "",
    )


_NAMED = 5


def delete_stream(database: Database, streams_dir: Path, tenant: str, name: str) -> None:
    """Removes the stream, then every file of it.

    Raises StreamNotFoundError, and StreamInUseError while a job reads it that has not finished.
    """
    with database.write() as session:
        stream = require_stream(session, tenant, name, lock=True)
        readers = input_streams.readers_of(session, tenant, name)
        if readers:
            more = f" and {len(readers) - _NAMED} more" if len(readers) > _NAMED else ""
            raise StreamInUseError(
                f"Jobs read the stream that have not finished: {', '.join(readers[:_NAMED])}{more}. Cancel them first."
            )
        input_streams.delete_stream(session, tenant=tenant, name=name)
    # After the commit: files without a stream are garbage, a stream without its files would be a broken promise.
    directory = stream_directory(streams_dir, tenant, name, stream.id)
    shutil.rmtree(directory, ignore_errors=True)
    if directory.exists():
        _log.warning("files_not_removed", path=str(directory))
