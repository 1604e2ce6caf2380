"""A job as a client posts it: tables, query, settings, sink, schedule and limits.

`JobSpec` is the job; `mode_faults` checks the fields that depend on its mode (roles, sink, schedule, time limit).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .enums import Mode, OutputMode, QueueChoice
from .model import Bounds, Duration, Flag, Frozen, Whole, discriminated_by, renamed
from .options import Isolation, JobSettings, OptimizerSettings, StateSettings, Toggle
from .parameters import Parameters, stored_parameters
from .query import SQL_CHARACTERS, Identifier, Query
from .read_options import TableFormat
from .tables import (
    CHANGE_FIELDS,
    FOLLOW,
    RateTable,
    StreamTable,
    Table,
    TableRole,
    TableSource,
    Upsert,
    remove_new_fields,
    with_new_name,
)

MAX_TABLES = 64

SPEC_VERSION = 23
"""The version of the job format. It grows with every field or value that workers of earlier versions do not support.
The version that a job needs is stored with it, and older workers leave the job to newer ones. 1: the first. 2: `queue`.
3: queries in FROM, UNION, grouping sets, more aggregates, `distinct_method`, `eager_aggregation`, and `join.*` for all
joins or one. `skew.join_strategy`, which had no effect until then, is read as `join.skew`: a job that still waits with
`forced` runs as ISOLATE, with the same result. 4: streaming modes, and `state.*`. 5: `refresh`, and joins of rows of
streams that are bounded by event time. 6: `multi_line` of CSV, which had no effect until then.
7: `limits.failure_retries`. 8: `compare_with`. 9: `optimizer.timeout`, and larger queries, such as 33 to 100 joins.
10: `parameters`; ORC, Avro, XML and Delta, partitions, wildcards, and more read options. 11: subqueries in expressions,
INTERSECT, EXCEPT, OVER, QUALIFY, and the function raise_error. 12: more statements and clauses of SQL, such as OFFSET
and VALUES; more functions, and standard spellings of calls; parts of nested values, lambdas, JSON, LATERAL VIEW and
UNNEST; nested types in declared schemas; `skewed_windows`; `merge_schema` of ORC and Avro. 13: bitwise operators,
LATERAL before a query, WITH RECURSIVE. 14: * EXCEPT, LIKE ANY and ALL, subqueries in ON, nested
values as join keys, recursive queries that join others, and LATERAL queries with names of earlier tables.
15: LISTAGG next to DISTINCT calls for which Spark copies rows, aliases of SELECT in SELECT, more
correlated subqueries, range in FROM, intervals of several units, try_element_at, regexp_extract_all, and
LATERAL queries from a generator, or from derived tables with columns of earlier tables. 16: all other queries that read
columns of the query around, subqueries in ON of outer joins and in GROUP BY, joins and subqueries after generators, row
values, names of a table's columns, joins in parentheses, sequence of columns, and aggregates that ignore NULLs.
17: aggregates and windows that are compared with subqueries, EXCEPT of fields, functions of intervals, XML, CSV,
vectors and sketches, windows of time in batch jobs, more clauses of correlated subqueries, TRUE as an argument that
ignores NULLs, and the setting `isolation`. 18: stars as arguments of functions, and COUNT of several values.
19: streaming jobs whose rows may be removed again. 20: `operation` of streams. 21: `upsert` and
`envelope` of streams, and distinct values under several conditions in streams, once their state exists.
22: `change_log`, the sink `json`, `state.limit`, and
windows that are sessions or cumulative. 23: `optimizer.join_reorder`."""

_BATCH_VERSION = 3
_STREAMING_VERSION = 4
_TIMED_VERSION = 5
_MULTI_LINE_VERSION = 6
_RETRIES_VERSION = 7
_COMPARISON_VERSION = 8
_OPTIMIZER_VERSION = 9
FILES_VERSION = 10
"""The version that reads files of more formats, and has parameters."""
_WINDOWS_VERSION = 12
"""The version with the setting `skewed_windows`, and with nested types of columns."""
_ISOLATION_VERSION = 17
CHANGES_VERSION = 19
"""The version that computes the queries of streaming jobs by changes."""
_OPERATIONS_VERSION = 20
_UPSERTS_VERSION = 21
_LOGS_VERSION = 22
_REORDER_VERSION = 23
VALUES_VERSION = 21
"""The version that keeps the distinct values of a streaming query once for all of their conditions."""

_OUTPUT = "output"
"""The name of `output_mode` before 1.0. Requests may still use it, and jobs are stored with it, so that workers of the
version before can run the jobs during an upgrade."""

_MODES = "the modes 'incremental' and 'continuous'"
_NAME = r"[A-Za-z_][A-Za-z0-9_$]{0,62}"
_YEAR = timedelta(days=365)
_DEFAULT_STATE, _DEFAULT_OPTIMIZER = StateSettings(), OptimizerSettings()


class Schedule(Frozen):
    """When an incremental job runs again automatically."""

    every: Annotated[Duration, Bounds(timedelta(seconds=1), _YEAR)] = Field(
        description="The time from the end of a run to the start of the next one.",
        examples=["10m"],
    )


CHANGE_TYPE, CHANGE_BATCH = CHANGE_COLUMNS = ("_change_type", "_batch")
"""The columns that a change log adds to those of the result: `insert`, `delete`, `update_preimage` or
`update_postimage`, and the number of the mini-batch."""

_CHANGE_LOG = "Streaming modes: store the changes of the result, with `_change_type` and `_batch`, in its place."


class ManagedSink(Frozen):
    """The service stores the result and serves it at `GET /v1/jobs/{id}/result`. Exactly once."""

    kind: Literal["managed"]
    change_log: Flag = Field(default=False, description=_CHANGE_LOG)


class PostgresSink(Frozen):
    """A table of a PostgreSQL database, one row for each group. Streaming modes. Exactly once."""

    kind: Literal["postgres"]
    connection: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,62}$",
        description="Name of a connection that the service operator configured: `EVENKEEL_SINK_<NAME>_URL`.",
        examples=["warehouse"],
    )
    table: str = Field(
        pattern=rf"^({_NAME}\.)?{_NAME}$",
        description="The table, with its schema if that is not the default of the connection. Created if it does not "
        "exist.",
        examples=["public.uniques"],
    )

    @field_validator("table")
    @classmethod
    def _refuse_reserved_name(cls, table: str) -> str:
        name = table.rpartition(".")[2].casefold()
        if name == "evenkeel_batches" or name.endswith("__parts"):
            raise PydanticCustomError(
                "reserved_table", "'evenkeel_batches' and names that end in '__parts' are reserved for the service."
            )
        return table


class DeltaSink(Frozen):
    """A Delta table, one row for each group. Streaming modes. Exactly once."""

    kind: Literal["delta"]
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Directory of the table, relative to a sink root, or an absolute path inside one.",
        examples=["out/uniques"],
    )
    change_log: Flag = Field(default=False, description=_CHANGE_LOG)


class FileSink(Frozen):
    """A directory to which each mini-batch adds files."""

    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Directory of the files, relative to a sink root, or an absolute path inside one.",
        examples=["out/windows"],
    )
    change_log: Flag = Field(default=False, description=_CHANGE_LOG)


class ParquetSink(FileSink):
    """Parquet files; each mini-batch adds files. For results whose rows never change, and for change logs. Streaming
    modes. Exactly once.
    """

    kind: Literal["parquet"]


class JsonSink(FileSink):
    """Like the sink `parquet`, with files of JSON lines. Values are as in results: DECIMAL is a string."""

    kind: Literal["json"]


Sink = Annotated[
    ManagedSink | PostgresSink | DeltaSink | ParquetSink | JsonSink,
    discriminated_by(
        "kind",
        {
            "managed": ManagedSink,
            "postgres": PostgresSink,
            "delta": DeltaSink,
            "parquet": ParquetSink,
            "json": JsonSink,
        },
    ),
]


ONLY_SHARED = "Streaming jobs share the Spark driver of their worker: remove 'isolation'."
"""The text of the error for a streaming job that asks for a driver of its own."""


class Fault(NamedTuple):
    """An error in a job: its place, code and text."""

    at: tuple[str, ...]
    code: str
    detail: str


def mode_faults(spec: JobSpec) -> Iterator[Fault]:
    """Yields every field of `spec` that is not allowed or missing in its mode."""
    yield from _role_faults(spec) if spec.mode.is_streaming else _streaming_fields(spec)
    if spec.mode.is_streaming and spec.limits.failure_retries:
        detail = (
            "A streaming job that failed is STOPPED, and continues from its checkpoint by its 'schedule' or when it is "
            "resumed: remove 'failure_retries'."
        )
        yield Fault(("limits", "failure_retries"), "retries_not_for_streams", detail)
    if spec.mode.is_streaming and spec.compare_with is not None:
        detail = "Only batch jobs can be compared: remove 'compare_with'."
        yield Fault(("compare_with",), "comparison_not_for_streams", detail)
    if spec.mode.is_streaming and spec.settings.isolation is not Isolation.SHARED:
        yield Fault(("settings", "isolation"), "isolation_not_for_streams", ONLY_SHARED)
    if spec.mode is Mode.CONTINUOUS and spec.schedule is not None:
        detail = "A continuous job runs until it is stopped: remove 'schedule', or use the mode 'incremental'."
        yield Fault(("schedule",), "schedule_not_applicable", detail)
    if spec.mode is Mode.CONTINUOUS and spec.limits.timeout is not None:
        detail = "A continuous job runs until it is stopped: remove 'timeout'. POST /v1/jobs/{id}/stop stops it."
        yield Fault(("limits", "timeout"), "limits_timeout_not_for_streams", detail)
    if spec.mode is not Mode.CONTINUOUS and spec.limits.timeout is None:
        yield Fault(("limits", "timeout"), "timeout_required", "Only a continuous job may have no time limit: set one.")


def _parameter_faults(spec: JobSpec) -> Iterator[Fault]:
    if spec.query is not None and spec.parameters:
        detail = "Only SQL has parameters: remove 'parameters', and write the values into 'query'."
        yield Fault(("parameters",), "parameters_without_sql", detail)


def _streaming_fields(spec: JobSpec) -> Iterator[Fault]:
    for name, table in spec.tables.items():
        if isinstance(table, StreamTable | RateTable):
            yield _only_streaming(("tables", name, "format"), f"The format '{table.format}'")
            continue
        for field in ("role", "event_time", *CHANGE_FIELDS):
            if getattr(table, field) is not None:
                yield _only_streaming(("tables", name, field), f"'{field}'")
        if table.refresh:
            yield _only_streaming(("tables", name, "refresh"), "'refresh'")
    for field in ("output_mode", "schedule"):
        if getattr(spec, field) is not None:
            yield _only_streaming((field,), f"'{field}'")
    if not isinstance(spec.sink, ManagedSink):
        yield _only_streaming(("sink",), f"The sink '{spec.sink.kind}'")
    elif spec.sink.change_log:
        yield _only_streaming(("sink", "change_log"), "'change_log'")


def _only_streaming(at: tuple[str, ...], what: str) -> Fault:
    return Fault(at, "only_for_streams", f"{what} is for {_MODES}: set 'mode', or remove it.")


def _role_faults(spec: JobSpec) -> Iterator[Fault]:
    unclear = False
    for name in spec.tables:
        role = spec.role_of(name)
        if role is None:
            unclear = True
            detail = f"Table '{name}' needs a 'role', since the job has several tables: 'stream' or 'static'."
            yield Fault(("tables", name, "role"), "role_required", detail)
        elif role is TableRole.STATIC and spec.tables[name].event_time is not None:
            detail = "Only rows of a stream have an event time: remove it, or set the table's role to 'stream'."
            yield Fault(("tables", name, "event_time"), "event_time_not_applicable", detail)
        elif role is TableRole.STATIC and name in spec.changing:
            field = next(field for field in CHANGE_FIELDS if getattr(spec.tables[name], field, None) is not None)
            detail = f"'{field}' is for streams: remove it, or set the table's role to 'stream'."
            yield Fault(("tables", name, field), "operation_not_applicable", detail)
        elif role is TableRole.STREAM and name in spec.refreshed:
            detail = "New files of a stream are always read: remove 'refresh', or set the table's role to 'static'."
            yield Fault(("tables", name, "refresh"), "refresh_not_applicable", detail)
    if not unclear and not spec.streams:
        detail = "No table of the job has the role 'stream': set it for the table to which rows are added."
        yield Fault(("tables",), "no_stream", detail)


class Limits(Frozen):
    """Limits of a job."""

    timeout: Annotated[Duration, Bounds(timedelta(seconds=1), timedelta(days=7))] | None = Field(
        default=timedelta(hours=1),
        description="Time limit, after which the job ends TIMED_OUT. It counts from the first start, or from the start "
        "of the run of an incremental job. A continuous job has none.",
        json_schema_extra={"default": "1h"},
    )
    max_attempts: Whole = Field(
        default=3,
        ge=1,
        le=10,
        description="Maximum number of attempts: the job is CRASHED when so many attempts have lost their worker.",
    )
    failure_retries: Whole = Field(
        default=0,
        ge=0,
        le=10,
        description="How often a batch job runs again, in addition to `max_attempts`, after it FAILED with "
        "`storage_unavailable`, `disk_full`, `files_changed` or `internal_error`. Retries follow after "
        "10 s, 20 s and so on up to 5 min, within the time limit.",
    )


_SQL_OR_QUERY: dict[str, Any] = {
    "if": {"required": ["sql"], "properties": {"sql": {"type": "string"}}, "unevaluatedProperties": True},
    "then": {"properties": {"query": {"type": "null"}}, "unevaluatedProperties": True},
    "else": {"required": ["query"], "properties": {"query": {"type": "object"}}, "unevaluatedProperties": True},
}
"""Not `oneOf`, from which client generators create two classes; they ignore `if`. `unevaluatedProperties` is for
linters, which otherwise report every property that a subschema does not list as unknown."""


_UNNAMED = "unnamed"
_TITLE_CHARACTERS = 80


class JobSpec(Frozen):
    """A job: a query over tables, with settings, a sink and limits. Exactly one of `sql` and `query` is required."""

    model_config = ConfigDict(json_schema_extra=_SQL_OR_QUERY)

    name: str = Field(
        default=_UNNAMED,
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="Without it, lists show the SQL.",
        examples=["orders-per-user"],
    )
    mode: Mode = Field(
        default=Mode.BATCH,
        description="`batch` reads the tables once, as they are. `incremental` processes the rows that are new since "
        "its last run, and is then STOPPED until it is resumed. `continuous` runs until it is stopped.",
    )
    tables: dict[Identifier, Table] = Field(
        min_length=1, max_length=MAX_TABLES, description="The tables of the query, by the names that it uses."
    )
    sql: (
        Annotated[str, Field(min_length=1, max_length=SQL_CHARACTERS.most), BeforeValidator(SQL_CHARACTERS.check)]
        | None
    ) = Field(
        default=None,
        description="A SELECT over `tables`.",
        examples=["SELECT o.uid, COUNT(DISTINCT o.category) AS categories FROM orders o GROUP BY o.uid"],
    )
    parameters: Parameters | None = Field(
        default=None,
        description="The values of the placeholders in `sql`: an object for `:name`, a list for `?`. Without a "
        "type, a string is a STRING, an integer an INT or a BIGINT, and another number a DOUBLE.",
        examples=[{"day": {"type": "DATE", "value": "2024-01-31"}, "carrier": "UA"}],
    )
    query: Query | None = Field(default=None, description="The query as a structure, instead of `sql`.")
    settings: JobSettings = JobSettings()
    output_mode: OutputMode | None = Field(
        default=None,
        description="Streaming modes: `update` emits every group that changed, `append` only final rows. The default "
        "depends on the query. The old name `output` is also accepted.",
    )
    schedule: Schedule | None = Field(
        default=None,
        description="When an incremental job runs again. Without it, the job runs again when it is resumed.",
    )
    # Client generators do not support a default for a union of models; the default of a factory is not in the schema.
    sink: Sink = Field(
        default_factory=lambda: ManagedSink(kind="managed"),
        description="Where the rows of the result go. By default, the service stores and serves them (`managed`).",
    )
    limits: Limits = Limits()
    queue: QueueChoice = Field(
        default=QueueChoice.AUTO,
        description="`short` and `long` jobs may have separate workers, so that short jobs do not wait for long ones. "
        "`auto` is `long` if the tables are large. Continuous jobs are always in `stream`.",
    )
    compare_with: str | None = Field(
        default=None,
        max_length=64,
        description="Id of an earlier batch job of your tenant. The metrics then contain the time saved compared with "
        "it, and the settings that differ.",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_old_name(cls, value: Any) -> Any:
        return with_new_name(value, _OUTPUT, "output_mode")

    @model_validator(mode="before")
    @classmethod
    def _remove_default_timeout_of_continuous_job(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or value.get("mode") != Mode.CONTINUOUS.value:
            return value
        limits = value.get("limits", {})
        return {**value, "limits": {"timeout": None, **limits}} if isinstance(limits, Mapping) else value

    @model_validator(mode="after")
    def _one_of_sql_and_query(self) -> Self:
        if (self.sql is None) == (self.query is None):
            raise PydanticCustomError("sql_or_query", "Give exactly one of 'sql' and 'query'.")
        return self

    @model_validator(mode="after")
    def _fields_match_mode(self) -> Self:
        faults = [
            InitErrorDetails(type=PydanticCustomError(fault.code, fault.detail), loc=fault.at, input=None)
            for fault in (*_parameter_faults(self), *mode_faults(self))
        ]
        if faults:
            raise ValidationError.from_exception_data(type(self).__name__, faults)
        return self

    @property
    def needs_version(self) -> int:
        """The lowest SPEC_VERSION that supports all fields of this job. The bound query has that of the query."""
        if self.settings.optimizer.join_reorder is not Toggle.AUTO:
            return _REORDER_VERSION
        if self.has_change_log or isinstance(self.sink, JsonSink) or self.settings.state.limit is not None:
            return _LOGS_VERSION
        if self.upserts or self.envelopes:
            return _UPSERTS_VERSION
        if self.operations:
            return _OPERATIONS_VERSION
        if self.settings.isolation is not Isolation.SHARED:
            return _ISOLATION_VERSION
        if self.settings.skewed_windows is not Toggle.AUTO or any(
            table.needs_version_12 for table in self.file_tables.values()
        ):
            return _WINDOWS_VERSION
        if self.parameters or any(table.needs_version_10 for table in self.file_tables.values()):
            return FILES_VERSION
        if self.settings.optimizer != _DEFAULT_OPTIMIZER:
            return _OPTIMIZER_VERSION
        if self.compare_with is not None:
            return _COMPARISON_VERSION
        if self.limits.failure_retries:
            return _RETRIES_VERSION
        if any(_is_multi_line_csv(table) for table in self.tables.values()):
            return _MULTI_LINE_VERSION
        timed = [name for name in self.streams if self.tables[name].event_time is not None]
        if self.refreshed or len(timed) > 1:
            return _TIMED_VERSION
        streams = self.mode.is_streaming or self.settings.state != _DEFAULT_STATE
        return _STREAMING_VERSION if streams else _BATCH_VERSION

    @property
    def has_change_log(self) -> bool:
        """Whether the sink stores the changes of the result."""
        return not isinstance(self.sink, PostgresSink) and self.sink.change_log

    @property
    def title(self) -> str:
        """The name; for a job without one the beginning of its SQL, or the tables of its query."""
        if self.name != _UNNAMED:
            return self.name
        text = f"query of {', '.join(self.tables)}" if self.sql is None else self.sql
        shown = " ".join(text.split())
        if not shown.isprintable():
            shown = " ".join("".join(one if one.isprintable() else " " for one in shown).split())
        shown = shown or _UNNAMED
        return shown if len(shown) <= _TITLE_CHARACTERS else f"{shown[: _TITLE_CHARACTERS - 1]}…"

    def role_of(self, table: str) -> TableRole | None:
        """Returns the role of a table in a streaming job; None if it is required but missing."""
        role = self.tables[table].role
        return TableRole.STREAM if role is None and len(self.tables) == 1 else role

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the tables that a streaming job reads as streams; empty for a batch job."""
        if not self.mode.is_streaming:
            return ()
        return tuple(name for name in self.tables if self.role_of(name) is TableRole.STREAM)

    @property
    def operations(self) -> dict[str, str]:
        """The columns that say whether a row is added or removed, by table."""
        found = {name: table.operation for name, table in self.tables.items() if not isinstance(table, RateTable)}
        return {name: column for name, column in found.items() if column is not None}

    @property
    def upserts(self) -> dict[str, Upsert]:
        """How rows replace each other, by table."""
        found = {name: table.upsert for name, table in self.tables.items() if not isinstance(table, RateTable)}
        return {name: upsert for name, upsert in found.items() if upsert is not None}

    @property
    def envelopes(self) -> frozenset[str]:
        """The tables whose records have an envelope."""
        return frozenset(name for name, table in self.file_tables.items() if table.envelope is not None)

    @property
    def changing(self) -> frozenset[str]:
        """The tables whose rows may be removed or replaced."""
        return frozenset(self.operations) | frozenset(self.upserts) | self.envelopes

    @property
    def refreshed(self) -> dict[str, TableSource]:
        """The lookup tables with `refresh`, whose changes a streaming job reads."""
        return {name: table for name, table in self.file_tables.items() if table.refresh}

    @property
    def file_tables(self) -> dict[str, TableSource]:
        """The tables that are stored in files below a data root: all tables of a batch job."""
        return {name: table for name, table in self.tables.items() if isinstance(table, TableSource)}

    def dumped(self) -> dict[str, Any]:
        """Returns the job's canonical JSON, with all fields."""
        return self.model_dump(mode="json", by_alias=True)

    def stored(self, dumped: dict[str, Any] | None = None) -> dict[str, Any]:
        """Returns the job's canonical JSON, with the old names of renamed fields, which earlier workers can read.

        Fields that were added after the first version are omitted if they have their default value, so that the first
        version can run the job after a downgrade. `dumped` is what the method of that name returns, unless it must be
        called; it is not changed.
        """
        stored = with_old_names(self.dumped() if dumped is None else dumped)
        stored["limits"], stored["settings"] = {**stored["limits"]}, {**stored["settings"]}
        stored["parameters"] = stored_parameters(stored["parameters"]) if self.parameters else None
        if self.queue is QueueChoice.AUTO:
            del stored["queue"]
        if not self.limits.failure_retries:
            del stored["limits"]["failure_retries"]
        if self.settings.state == _DEFAULT_STATE:
            del stored["settings"]["state"]
        elif self.settings.state.limit is None:
            stored["settings"]["state"] = {
                name: value for name, value in stored["settings"]["state"].items() if name != "limit"
            }
        if self.settings.optimizer == _DEFAULT_OPTIMIZER:
            del stored["settings"]["optimizer"]
        elif self.settings.optimizer.join_reorder is Toggle.AUTO:
            stored["settings"]["optimizer"] = {"timeout": stored["settings"]["optimizer"]["timeout"]}
        if self.settings.skewed_windows is Toggle.AUTO:
            del stored["settings"]["skewed_windows"]
        if self.settings.isolation is Isolation.SHARED:
            del stored["settings"]["isolation"]
        if not self.has_change_log:
            stored["sink"] = {name: value for name, value in stored["sink"].items() if name != "change_log"}
        for fields, names in (
            (stored, (_OUTPUT, "schedule", "compare_with", "parameters")),
            *((table, ("role", "event_time")) for table in stored["tables"].values()),
        ):
            for name in names:
                if fields[name] is None:
                    del fields[name]
        for table in stored["tables"].values():
            if not table.get(FOLLOW, True):
                del table[FOLLOW]
            remove_new_fields(table)
        return stored


def with_old_names(dumped: dict[str, Any]) -> dict[str, Any]:
    """Returns a dumped `JobSpec` with the old names of renamed fields."""
    tables = {name: renamed(table, "refresh", FOLLOW) for name, table in dumped["tables"].items()}
    return renamed({**dumped, "tables": tables}, "output_mode", _OUTPUT)


def _is_multi_line_csv(table: Table) -> bool:
    return isinstance(table, TableSource) and table.format is TableFormat.CSV and table.options.multi_line
