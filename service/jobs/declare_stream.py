"""Declares a stream of posted rows; the same declaration again changes nothing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import structlog

from service.access_errors import TooManyStreamsError
from service.datasets.durable_files import make_directory
from service.datasets.input_streams import stream_directory
from service.errors import StorageUnavailableError, StreamDiffersError
from service.jobs.room import require_room_for_stream
from service.jobs.stream_views import Stream, require_stream
from service.limit_settings import LimitSettings
from service.spec.ddl import parse_schema, schema_text
from service.spec.errors import Issue
from service.spec.types import Field, Schema
from service.store import ingest, quotas
from service.store.ingest import InputStream
from service.store.quotas import Counted
from service.store.session import Database

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
        known = ingest.find_stream(session, tenant, name)
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
        quotas.count_alone(session, tenant, Counted.STREAMS)
        known = ingest.find_stream(session, tenant, name)
        if known is not None:
            return known, False
        require_room_for_stream(session, limits, tenant)
        text, now = schema_text(schema), database.now(session)
        is_new = ingest.insert_stream(session, tenant=tenant, name=name, stream_id=stream_id, ddl=text, now=now)
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


def _told(index: int, old: Field | None, new: Field | None) -> str:
    has = "none" if old is None else f"{old.name} {old.type}"
    says = "none" if new is None else f"{new.name} {new.type}"
    return f"Column {index} is {has} in the stream and {says} in the declaration."
