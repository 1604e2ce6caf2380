"""Refuses what a tenant asks for beyond its limits, before anything of it is stored.

Finds a job's files, reads their columns and compiles its query: what a worker will do, done before accepting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore
from types import MappingProxyType

from sqlalchemy.orm import Session

from service.config.settings import LimitSettings
from service.contract.errors import (
    StorageUnavailableError,
    TooManyExplanationsError,
    TooManyJobsError,
    TooManyPostedBytesError,
    TooManyStreamsError,
)
from service.contract.job import JobSpec, RateTable, StreamTable, Table, TableSource
from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.data.files import find_stream_files, find_table_files, pointer_of
from service.data.roots import Root, StoreUnavailableError
from service.data.schema_inference import infer_schema
from service.data.schemas import RATE_SCHEMA, read_schema
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema, schema_text
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import TIMESTAMP, Schema
from service.store import accounts, input_streams
from service.store.session import Database

_SOON_SECONDS = 10
"""When a slot may have become free: nobody knows how long the jobs take that are before."""
_LATER_SECONDS = 60
"""When somebody may have deleted a stream."""


def require_room_to_wait(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyJobsError where as many jobs of the tenant wait as may. Those that come at the same instant do not
    see each other: they may be some more.
    """
    most = limits.queued_jobs
    if most and accounts.count_waiting(session, tenant, most) >= most:
        raise TooManyJobsError(
            f"{most} jobs of tenant '{tenant}' wait already, as many as may (EVENKEEL_LIMITS_QUEUED_JOBS). "
            "Submit this one when some of them have started, or cancel some.",
            retry_after_seconds=_SOON_SECONDS,
        )


def require_room_to_explain(session: Session, limits: LimitSettings, tenant: str, since: int) -> None:
    """Raises TooManyExplanationsError where the tenant waits for as many as it may of those that it asked for after
    `since` (milliseconds): for earlier ones, nobody waits any more.
    """
    most = limits.explanations
    if most and accounts.count_explanations(session, tenant, since) >= most:
        raise TooManyExplanationsError(
            f"Tenant '{tenant}' waits for {most} explanations already, as many as may at once "
            "(EVENKEEL_LIMITS_EXPLANATIONS). Ask for this one when they are answered.",
            retry_after_seconds=_SOON_SECONDS,
        )


def require_room_for_stream(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyStreamsError where the tenant has as many streams of posted rows as it may."""
    most = limits.streams
    if most and accounts.count_streams(session, tenant) >= most:
        raise TooManyStreamsError(
            f"Tenant '{tenant}' has {most} streams, as many as may be (EVENKEEL_LIMITS_STREAMS). Delete one that is no "
            "longer needed: DELETE /v1/streams/{name}.",
            retry_after_seconds=_LATER_SECONDS,
        )


def require_room_for_rows(session: Session, limits: LimitSettings, tenant: str) -> None:
    """Raises TooManyPostedBytesError once the tenant's posted rows take as much room as they may. The batch with which
    they reach the limit is accepted.
    """
    most = limits.posted_bytes
    if most and accounts.posted_bytes(session, tenant) >= most:
        raise TooManyPostedBytesError(
            f"The rows that tenant '{tenant}' has posted take {most} bytes or more, as many as may be "
            "(EVENKEEL_LIMITS_POSTED_BYTES). Delete a stream whose rows are no longer needed: "
            "DELETE /v1/streams/{name}.",
            retry_after_seconds=_LATER_SECONDS,
        )


_NO_STREAMS: Mapping[str, Schema] = MappingProxyType({})

_COMPILING = BoundedSemaphore(2)
"""The compiler is Python, which runs on one thread at a time: further compiling threads gain nothing and slow down
other requests.
"""

_WITHOUT_FILES = frozenset({"empty_directory", "path_not_found"})


@dataclass(frozen=True)
class CheckedJob:
    """The compiled query, how large the files of all its tables are together, and the job with the columns that were
    inferred, as if they had been declared.
    """

    query: BoundQuery
    table_bytes: int
    spec: JobSpec


@dataclass(frozen=True)
class _Found:
    """A table with its columns, and the bytes of its files."""

    table: Table
    schema: Schema
    bytes: int = 0


def check_job(
    spec: JobSpec,
    roots: Sequence[Root],
    streams: Mapping[str, Schema] = _NO_STREAMS,
    *,
    is_accepted: bool = False,
    goes_on: bool = False,
) -> CheckedJob:
    """The compiled query and what it reads; `streams` are the columns of the tenant's streams, by name.

    `is_accepted`: the job is stored, and its settings are new; limits that earlier versions did not have do not apply
    to its query. A job that `goes_on` has copies of the tables that it follows, and needs no files of them.

    Raises SpecError with every place that is wrong, and StorageUnavailableError where a store of the data roots cannot
    be used.
    """
    found: dict[str, _Found] = {}
    for name, table in spec.tables.items():
        try:
            found[name] = _look_at(name, table, roots, streams, grows=name in spec.streams)
        except SpecError as error:
            if not goes_on or name not in spec.followed or error.code not in _WITHOUT_FILES:
                raise
            found[name] = _without_files(name, spec.followed[name], error)
        _check_event_time(name, table, found[name].schema)
    with _COMPILING:
        schemas = {name: one.schema for name, one in found.items()}
        query = compile_job(spec, schemas, is_accepted=is_accepted, has_new_settings=is_accepted)
    known = spec.model_copy(update={"tables": {name: one.table for name, one in found.items()}})
    return CheckedJob(query, sum(one.bytes for one in found.values()), known)


def posted_schemas(database: Database, tenant: str, spec: JobSpec) -> dict[str, Schema]:
    """The columns of the streams of posted rows that a job names, those that are there."""
    names = {table.stream for table in spec.tables.values() if isinstance(table, StreamTable)}
    if not names:
        return {}
    with database.read() as session:
        return input_streams.find_schemas(session, tenant, names)


def _look_at(name: str, table: Table, roots: Sequence[Root], streams: Mapping[str, Schema], *, grows: bool) -> _Found:
    """What a table is; one that `grows` may have no file yet."""
    if isinstance(table, RateTable):
        return _Found(table, RATE_SCHEMA)
    if isinstance(table, StreamTable):
        return _Found(table, _posted(name, table, streams))
    try:
        files = find_stream_files(name, table, roots) if grows else find_table_files(name, table, roots)
        if not files.files and table.declared_schema is not None:
            return _Found(table, parse_schema(table.declared_schema, f"{pointer_of(name)}/schema"))
        if not files.files:
            raise SpecError.of(
                "schema_cannot_be_inferred",
                f"'{table.path}' holds no file yet that would tell the columns. Put a first one there"
                f"{', or declare its schema' if table.lacks_schema else ''}.",
                pointer=f"{pointer_of(name)}/path",
            )
        if table.lacks_schema:
            schema = schema_text(infer_schema(name, table, files))
            table = table.model_copy(update={"declared_schema": schema})
        return _Found(table, read_schema(name, table, files), files.bytes)
    except StoreUnavailableError as error:
        raise StorageUnavailableError(f"{error} Nothing was stored; try again.") from None


def _without_files(name: str, table: TableSource, error: SpecError) -> _Found:
    """A table that is followed and has no file now, by its declared columns. Raises SpecError where it has none."""
    if table.declared_schema is not None:
        return _Found(table, parse_schema(table.declared_schema, f"{pointer_of(name)}/schema"))
    raise SpecError.of(
        error.code,
        f"{error.issues[0].detail} The job goes on with the version of the table that it has, but settings are checked "
        "against its files, which tell its columns: put them back, then change the settings.",
        pointer=error.issues[0].pointer,
    )


def _posted(name: str, table: StreamTable, streams: Mapping[str, Schema]) -> Schema:
    known = streams.get(table.stream)
    if known is None:
        nearest = nearest_names(table.stream, list(streams))
        raise SpecError.of(
            "stream_unknown",
            f"There is no stream '{table.stream}'.{did_you_mean(nearest)} PUT /v1/streams/{{name}} makes one.",
            pointer=f"{pointer_of(name)}/stream",
            suggestions=nearest,
        )
    return known


def _check_event_time(name: str, table: Table, schema: Schema) -> None:
    if table.event_time is None:
        return
    column, pointer = table.event_time.column, f"{pointer_of(name)}/event_time/column"
    found = schema.find(column)
    if found is None:
        nearest = nearest_names(column, list(schema.names))
        detail = f"Table '{name}' has no column '{column}'.{did_you_mean(nearest)}"
        raise SpecError.of("unknown_column", detail, pointer=pointer, suggestions=nearest)
    if found.type != TIMESTAMP:
        detail = f"The event time must be a TIMESTAMP; '{column}' is {found.type}."
        raise SpecError.of("event_time_not_timestamp", detail, pointer=pointer)
