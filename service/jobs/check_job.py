"""Checks a job before it is stored: finds the files of its tables, reads their columns and compiles its query, as a
worker does later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import BoundedSemaphore
from types import MappingProxyType

from service.contract.errors import StorageUnavailableError
from service.contract.job import FILES_VERSION, JobSpec
from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.contract.tables import ORDER_OF_ENVELOPE, RateTable, StreamTable, Table, TableSource
from service.data.files import pointer_of
from service.data.roots import Root, StoreUnavailableError
from service.data.schemas import RATE_SCHEMA
from service.data.table_resolution import resolve_table
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import STRING, TIMESTAMP, Field, Schema
from service.store import input_streams
from service.store.session import Database

_NO_STREAMS: Mapping[str, Schema] = MappingProxyType({})
_compile_slots = BoundedSemaphore(2)
"""Limits concurrent compilations. The compiler is pure Python and holds the GIL: more threads gain nothing and slow
down other requests.
"""
_NO_FILES_CODES = frozenset({"empty_directory", "path_not_found"})


@dataclass(frozen=True)
class CheckedJob:
    """The compiled query, the total bytes of all table files, the job with inferred columns added as declared schemas,
    and the lowest SPEC_VERSION whose workers can run it.
    """

    query: BoundQuery
    table_bytes: int
    spec: JobSpec
    needs_version: int


@dataclass(frozen=True)
class _ResolvedTable:
    """A table, its columns, the total bytes of its files, and whether workers of job format 9 cannot read these."""

    table: Table
    schema: Schema
    bytes: int = 0
    needs_version_10: bool = False


def check_job(
    spec: JobSpec,
    roots: Sequence[Root],
    streams: Mapping[str, Schema] = _NO_STREAMS,
    *,
    is_accepted: bool = False,
    has_state: bool = False,
) -> CheckedJob:
    """Compiles the job's query against the columns of its tables. `streams` maps the tenant's streams to their columns.

    `is_accepted`: the job is stored and only its settings are new. Its query and tables are then exempt from
    limits that the version that accepted it did not have. A job `has_state` if it resumes from a checkpoint; it then
    has copies of its followed tables and does not need their files.

    Raises SpecError with all issues found, and StorageUnavailableError if a store of the data roots cannot be used.
    """
    found: dict[str, _ResolvedTable] = {}
    for name, table in spec.tables.items():
        try:
            found[name] = _resolve_table(
                name,
                table,
                roots,
                streams,
                may_be_empty=name in spec.streams,
                pins_version=not spec.mode.is_streaming,
                is_accepted=is_accepted,
            )
        except SpecError as error:
            if not has_state or name not in spec.refreshed or error.code not in _NO_FILES_CODES:
                raise
            found[name] = _resolve_without_files(name, spec.refreshed[name], error)
        _check_event_time(name, table, found[name].schema)
        _check_operation(name, table, found[name].schema)
        _check_upsert(name, table, found[name].schema)
    with _compile_slots:
        schemas = {name: one.schema for name, one in found.items()}
        query = compile_job(spec, schemas, is_accepted=is_accepted, has_new_settings=is_accepted)
    with_schemas = spec.model_copy(update={"tables": {name: one.table for name, one in found.items()}})
    of_files = FILES_VERSION if any(one.needs_version_10 for one in found.values()) else 0
    needs_version = max(of_files, query.needs_version, with_schemas.needs_version)
    return CheckedJob(query, sum(one.bytes for one in found.values()), with_schemas, needs_version)


def posted_schemas(database: Database, tenant: str, spec: JobSpec) -> dict[str, Schema]:
    """Returns the columns of the streams of posted rows that a job names; streams that do not exist are left out."""
    names = {table.stream for table in spec.tables.values() if isinstance(table, StreamTable)}
    if not names:
        return {}
    with database.read() as session:
        return input_streams.find_schemas(session, tenant, names)


def _resolve_table(
    name: str,
    table: Table,
    roots: Sequence[Root],
    streams: Mapping[str, Schema],
    *,
    may_be_empty: bool,
    pins_version: bool,
    is_accepted: bool,
) -> _ResolvedTable:
    """Finds a table's files and columns. `may_be_empty`: the table may have no files yet. `pins_version`: later runs
    read the version of a Delta table that exists now.
    """
    if isinstance(table, RateTable):
        return _ResolvedTable(table, RATE_SCHEMA)
    if isinstance(table, StreamTable):
        return _ResolvedTable(table, _stream_schema(name, table, streams))
    try:
        resolved = resolve_table(
            name,
            table,
            roots,
            is_stream=may_be_empty,
            may_have_partitions=not table.refresh,
            pins_version=pins_version,
            is_accepted=is_accepted,
        )
        return _ResolvedTable(resolved.source, resolved.schema, resolved.bytes, resolved.needs_version_10)
    except StoreUnavailableError as error:
        raise StorageUnavailableError(f"{error} Nothing was stored; try again.") from None


def _resolve_without_files(name: str, table: TableSource, error: SpecError) -> _ResolvedTable:
    """Returns a followed table that has no files now. Raises SpecError if its schema is not declared."""
    if table.declared_schema is not None:
        return _ResolvedTable(table, parse_schema(table.declared_schema, f"{pointer_of(name)}/schema"))
    raise SpecError.of(
        error.code,
        f"{error.issues[0].detail} The job continues with its copy of the table, but a change of settings is checked "
        "against the columns in the table's files. Restore the files, then change the settings.",
        pointer=error.issues[0].pointer,
    )


def _stream_schema(name: str, table: StreamTable, streams: Mapping[str, Schema]) -> Schema:
    known = streams.get(table.stream)
    if known is None:
        nearest = nearest_names(table.stream, list(streams))
        raise SpecError.of(
            "stream_unknown",
            f"There is no stream '{table.stream}'.{did_you_mean(nearest)} Create it with PUT /v1/streams/{{name}}.",
            pointer=f"{pointer_of(name)}/stream",
            suggestions=nearest,
        )
    return known


def _check_operation(name: str, table: Table, schema: Schema) -> None:
    if isinstance(table, RateTable) or table.operation is None:
        return
    pointer = f"{pointer_of(name)}/operation"
    found = _column(name, schema, table.operation, pointer)
    if found.type != STRING:
        detail = f"The operation of a row must be a STRING; '{found.name}' is {found.type}."
        raise SpecError.of("operation_not_text", detail, pointer=pointer)


def _check_upsert(name: str, table: Table, schema: Schema) -> None:
    if isinstance(table, RateTable) or table.upsert is None:
        return
    pointer = f"{pointer_of(name)}/upsert"
    for place, key in enumerate(table.upsert.keys):
        _require_comparable(_column(name, schema, key, f"{pointer}/keys/{place}"), f"{pointer}/keys/{place}")
    order = table.upsert.order
    if isinstance(table, TableSource) and table.envelope is not None:
        if order is not None and not ORDER_OF_ENVELOPE.fullmatch(order):
            ways = "'ts_ms', 'ts_us', 'ts_ns', or a number of the source, such as 'source.lsn'"
            detail = f"'{order}' does not order Debezium's records. Write {ways}."
            raise SpecError.of("upsert_not_comparable", detail, pointer=f"{pointer}/order")
    elif order is not None:
        _require_comparable(_column(name, schema, order, f"{pointer}/order"), f"{pointer}/order")


def _require_comparable(column: Field, pointer: str) -> None:
    if not column.type.is_groupable:
        detail = f"Rows cannot be compared by '{column.name}', which is {column.type}. Name another column."
        raise SpecError.of("upsert_not_comparable", detail, pointer=pointer)


def _column(table: str, schema: Schema, column: str, pointer: str) -> Field:
    found = schema.find(column)
    if found is None:
        nearest = nearest_names(column, list(schema.names))
        detail = f"Table '{table}' has no column '{column}'.{did_you_mean(nearest)}"
        raise SpecError.of("unknown_column", detail, pointer=pointer, suggestions=nearest)
    return found


def _check_event_time(name: str, table: Table, schema: Schema) -> None:
    if table.event_time is None:
        return
    column, pointer = table.event_time.column, f"{pointer_of(name)}/event_time/column"
    found = _column(name, schema, column, pointer)
    if found.type != TIMESTAMP:
        detail = f"The event time must be a TIMESTAMP; '{column}' is {found.type}."
        raise SpecError.of("event_time_not_timestamp", detail, pointer=pointer)
