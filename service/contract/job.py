"""What only streaming jobs say of their tables and of when they run.

Where a job's result goes.

What the parts of a job that its mode gives a meaning to must be like: roles, sink, schedule, time limit.

A job as a client posts it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from service.contract.enums import Mode, OutputMode, QueueChoice
from service.contract.model import Bounds, Duration, Flag, Frozen, Whole, told_apart_by
from service.contract.options import JobSettings, OptimizerSettings, StateSettings
from service.contract.query import SQL_CHARACTERS, Identifier, Query, queries_in

STREAM_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""What a stream of rows may be called."""


_YEAR = timedelta(days=365)


class TableRole(StrEnum):
    """What a streaming job does with a table: reads what is new in a `stream`, joins a `static` one as it is."""

    STREAM = "stream"
    STATIC = "static"


class EventTime(Frozen):
    """When a row happened, and how late it may come."""

    column: Identifier = Field(description="The column, a TIMESTAMP, that tells when the row happened.")
    delay: Annotated[Duration, Bounds(timedelta(0), _YEAR)] = Field(
        default=timedelta(0),
        description="How much later than the newest row of the table a row may come; later ones, and those from before "
        "1970, are left out of windows, and of joins with another stream that go by event time.",
        json_schema_extra={"default": "0ms"},
        examples=["10m"],
    )


class StreamTable(Frozen):
    """Rows that were posted to a stream of the service: `POST /v1/streams/{name}/rows`."""

    format: Literal["stream"]
    stream: str = Field(min_length=1, max_length=200, pattern=STREAM_NAME, examples=["clicks"])
    role: Literal[TableRole.STREAM] = TableRole.STREAM
    event_time: EventTime | None = None


class RateTable(Frozen):
    """Made-up rows for trials: `value BIGINT`, which counts from 0, and `timestamp TIMESTAMP`."""

    format: Literal["rate"]
    rows_per_second: Whole = Field(default=1, ge=1, le=10_000_000)
    role: Literal[TableRole.STREAM] = TableRole.STREAM
    event_time: EventTime | None = None


class Schedule(Frozen):
    """When an incremental job runs again by itself."""

    every: Annotated[Duration, Bounds(timedelta(seconds=1), _YEAR)] = Field(
        description="How long after the end of a run the next one begins.",
        examples=["10m"],
    )


_NAME = r"[A-Za-z_][A-Za-z0-9_$]{0,62}"


class ManagedSink(Frozen):
    """The result is kept by the service and read through `GET /v1/jobs/{id}/result`. Exactly once."""

    kind: Literal["managed"]


class PostgresSink(Frozen):
    """A table of a PostgreSQL database, one row for each group. Streaming modes. Exactly once."""

    kind: Literal["postgres"]
    connection: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_]{0,62}$",
        description="Name of a connection that the operator has set up: `EVENKEEL_SINK_<NAME>_URL`.",
        examples=["warehouse"],
    )
    table: str = Field(
        pattern=rf"^({_NAME}\.)?{_NAME}$",
        description="The table, with its schema where that is not the connection's own. Made where there is none.",
        examples=["public.uniques"],
    )

    @field_validator("table")
    @classmethod
    def _is_none_of_ours(cls, table: str) -> str:
        name = table.rpartition(".")[2].casefold()
        if name == "evenkeel_batches" or name.endswith("__parts"):
            raise PydanticCustomError(
                "reserved_table", "'evenkeel_batches' and names that end in '__parts' are kept for the service."
            )
        return table


class DeltaSink(Frozen):
    """A Delta table, one row for each group. Streaming modes. Exactly once."""

    kind: Literal["delta"]
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Directory of the table, relative to a root that jobs may write to, or absolute inside one.",
        examples=["out/uniques"],
    )


class ParquetSink(Frozen):
    """Parquet files, which only grow in number: for results whose rows never change. Streaming modes. Exactly once."""

    kind: Literal["parquet"]
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Directory of the files, relative to a root that jobs may write to, or absolute inside one.",
        examples=["out/windows"],
    )


Sink = Annotated[
    ManagedSink | PostgresSink | DeltaSink | ParquetSink,
    told_apart_by(
        "kind", {"managed": ManagedSink, "postgres": PostgresSink, "delta": DeltaSink, "parquet": ParquetSink}
    ),
]


SCHEMA_REQUIRED = "schema_required"
_MODES = "the modes 'incremental' and 'continuous'"


class Fault(NamedTuple):
    """What is wrong with a job, and where."""

    at: tuple[str, ...]
    code: str
    detail: str


def mode_faults(spec: JobSpec) -> Iterator[Fault]:
    """Every place of `spec` that does not go with its mode."""
    yield from _role_faults(spec) if spec.mode.is_streaming else _words_of_streams(spec)
    yield from _schema_faults(spec)
    if spec.mode.is_streaming and spec.limits.failure_retries:
        detail = (
            "A streaming job that failed rests, and goes on from there by its 'schedule' or when it is resumed: remove "
            "'failure_retries'."
        )
        yield Fault(("limits", "failure_retries"), "retries_not_for_streams", detail)
    if spec.mode.is_streaming and spec.compare_with is not None:
        detail = "A streaming job has no one time to compare: remove 'compare_with'."
        yield Fault(("compare_with",), "comparison_not_for_streams", detail)
    if spec.mode is Mode.CONTINUOUS and spec.schedule is not None:
        detail = "A continuous job runs until it is stopped: remove 'schedule', or use the mode 'incremental'."
        yield Fault(("schedule",), "schedule_not_applicable", detail)
    if spec.mode is Mode.CONTINUOUS and spec.limits.timeout is not None:
        detail = "A continuous job runs until it is stopped: remove 'timeout'. POST /v1/jobs/{id}/stop stops it."
        yield Fault(("limits", "timeout"), "limits_timeout_not_for_streams", detail)
    if spec.mode is not Mode.CONTINUOUS and spec.limits.timeout is None:
        yield Fault(("limits", "timeout"), "timeout_required", "Only a continuous job has no time limit: give one.")


def _schema_faults(spec: JobSpec) -> Iterator[Fault]:
    for name, table in spec.file_tables.items():
        may_be_inferred = spec.mode.is_streaming and spec.role_of(name) is not TableRole.STATIC
        if table.lacks_schema and not may_be_inferred:
            yield Fault(("tables", name), SCHEMA_REQUIRED, schema_required(table))


def schema_required(table: TableSource) -> str:
    """What to do about a table of a format that does not tell its columns."""
    return f"A {table.format.value} table needs its 'schema', for example \"uid BIGINT, name STRING\"."


def _words_of_streams(spec: JobSpec) -> Iterator[Fault]:
    for name, table in spec.tables.items():
        if isinstance(table, StreamTable | RateTable):
            yield _only_streaming(("tables", name, "format"), f"The format '{table.format}'")
            continue
        for word in ("role", "event_time"):
            if getattr(table, word) is not None:
                yield _only_streaming(("tables", name, word), f"'{word}'")
        if table.follow:
            yield _only_streaming(("tables", name, "follow"), "'follow'")
    for word in ("output", "schedule"):
        if getattr(spec, word) is not None:
            yield _only_streaming((word,), f"'{word}'")
    if not isinstance(spec.sink, ManagedSink):
        yield _only_streaming(("sink",), f"The sink '{spec.sink.kind}'")


def _only_streaming(at: tuple[str, ...], what: str) -> Fault:
    return Fault(at, "only_for_streams", f"{what} is for {_MODES}: set 'mode', or remove it.")


def _role_faults(spec: JobSpec) -> Iterator[Fault]:
    unclear = False
    for name in spec.tables:
        role = spec.role_of(name)
        if role is None:
            unclear = True
            detail = f"Table '{name}' needs its 'role', since there are several: 'stream' or 'static'."
            yield Fault(("tables", name, "role"), "role_required", detail)
        elif role is TableRole.STATIC and spec.tables[name].event_time is not None:
            detail = "Only rows of a stream have an event time: remove it, or give the table the role 'stream'."
            yield Fault(("tables", name, "event_time"), "event_time_not_applicable", detail)
        elif role is TableRole.STREAM and name in spec.followed:
            detail = (
                "New files of a stream are read as they come: remove 'follow', or give the table the role 'static'."
            )
            yield Fault(("tables", name, "follow"), "follow_not_applicable", detail)
    if not unclear and not spec.streams:
        detail = "No table of the job has the role 'stream': give it to the one that rows are added to."
        yield Fault(("tables",), "no_stream", detail)


MAX_SCHEMA_LENGTH = 100_000

SPEC_VERSION = 9
"""Grows with everything that a job may hold and workers of the version before do not know; what a job needs is stored
with it, so that they leave it to newer ones. 1: the first. 2: `queue`. 3: queries in FROM, UNION, grouping sets, more
aggregates, `distinct_method`, `eager_aggregation`, and `join.*` for all joins or one. `skew.join_strategy`, which did
nothing until then, is read as `join.skew`: a job that still waits with `forced` runs as ISOLATE, with the same result.
4: streaming modes, and `state.*`. 5: `follow`, and joins of the rows of streams whose event time bounds
them. 6: `multi_line` of CSV, which did nothing until then. 7: `limits.failure_retries`. 8: `compare_with`.
9: `optimizer.timeout`, and larger queries, such as 33 to 100 joins."""

_BATCH_VERSION = 3
_STREAMING_VERSION = 4
_TIMED_VERSION = 5
_MULTI_LINE_VERSION = 6
_RETRIES_VERSION = 7
_COMPARISON_VERSION = 8

_MAX_JOINS_BEFORE = 32
"""Joins of one query, until version 9."""
_MAX_CHARACTERS_BEFORE = 10_000
"""So much SQL was within all limits until version 9, unless it had many joins or branches of a UNION."""
_PARTS = re.compile(r",|\b(?:join|union)\b", re.IGNORECASE)
"""What every further table and every further branch of a UNION has in front of it."""


class TableFormat(StrEnum):
    """How the files of a table are written."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


class ReadOptions(Frozen):
    """How text files are read. Only the options listed here reach Spark."""

    header: Flag = Field(default=False, description="CSV: the first line of each file names the columns.")
    delimiter: str = Field(default=",", pattern=r"^[^\r\n]$", description="CSV: what parts two values.")
    quote: str = Field(default='"', pattern=r"^[^\r\n]$", description="CSV: what encloses a value.")
    null_value: str = Field(default="", max_length=64, description="CSV: the text that stands for NULL.")
    multi_line: Flag = Field(
        default=False,
        description="JSON: one document over several lines. CSV: a quoted value may hold line breaks (at most "
        "131,072 characters), and all rows of a file end with the line break that comes first in it, also inside a "
        "value. Each file is then read by one task, in about half the time where files are many: a file that is large "
        "by itself is better read line by line.",
    )

    @model_validator(mode="after")
    def _delimiter_and_quote_differ(self) -> Self:
        if self.delimiter == self.quote:
            raise PydanticCustomError("delimiter_is_quote", "'delimiter' and 'quote' must be different characters.")
        return self


class TableSource(Frozen):
    """Where a table's rows are: a file or a directory of files of one format below a configured data root."""

    format: TableFormat
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Relative to a data root, or an absolute path or URI inside one.",
        examples=["orders/"],
    )
    declared_schema: str | None = Field(
        default=None,
        alias="schema",
        max_length=MAX_SCHEMA_LENGTH,
        description="Columns as DDL; refused for Parquet, which carries its own. CSV and JSON need it, streams aside: "
        "theirs may be left to be inferred from the files that are there when the job is submitted. What was inferred "
        "stands here from then on, and later files have to fit it.",
        examples=["uid BIGINT, name STRING"],
    )
    options: ReadOptions = ReadOptions()
    role: TableRole | None = Field(
        default=None,
        description="Streaming modes: whether new files are read as they come, or the table is joined as it is. "
        "Required where there are several tables.",
    )
    event_time: EventTime | None = Field(default=None, description="Streaming modes: when rows of a stream happened.")
    follow: Flag = Field(
        default=False,
        description="Streaming modes, a table of role `static`: once its files have changed, mini-batches that begin "
        "from then on are joined with the new ones. What was joined before is not corrected. An incremental job looks "
        "when a run begins, a continuous one every `EVENKEEL_WORKER_FOLLOW_SECONDS`.",
    )

    @model_validator(mode="after")
    def _no_schema_where_files_have_one(self) -> Self:
        if self.format is TableFormat.PARQUET and self.declared_schema is not None:
            raise PydanticCustomError(
                "schema_not_applicable", "Parquet files carry their schema: remove 'schema' from this table."
            )
        return self

    @property
    def lacks_schema(self) -> bool:
        """Whether nothing tells its columns but the rows themselves."""
        return self.format is not TableFormat.PARQUET and self.declared_schema is None


Table = Annotated[
    TableSource | StreamTable | RateTable,
    told_apart_by(
        "format", {**dict.fromkeys(map(str, TableFormat), TableSource), "stream": StreamTable, "rate": RateTable}
    ),
]


class Limits(Frozen):
    """What a job may take."""

    timeout: Annotated[Duration, Bounds(timedelta(seconds=1), timedelta(days=7))] | None = Field(
        default=timedelta(hours=1),
        description="After so long since its first start the job ends TIMED_OUT; an incremental one, since the start "
        "of its run. A continuous job has none.",
        json_schema_extra={"default": "1h"},
    )
    max_attempts: Whole = Field(
        default=3,
        ge=1,
        le=10,
        description="How often the job is started before lost workers make it CRASHED.",
    )
    failure_retries: Whole = Field(
        default=0,
        ge=0,
        le=10,
        description="How often a batch job is tried again, beside `max_attempts`, after it FAILED for a reason that "
        "may pass: a store that is away (`storage_unavailable`), a full disk (`disk_full`), a file that was written "
        "while the job ran (`files_changed`) or an `internal_error`. "
        "After 10 s, 20 s and so on up to 5 min, within its time limit.",
    )


_SQL_OR_QUERY: dict[str, Any] = {
    "if": {"required": ["sql"], "properties": {"sql": {"type": "string"}}, "unevaluatedProperties": True},
    "then": {"properties": {"query": {"type": "null"}}, "unevaluatedProperties": True},
    "else": {"required": ["query"], "properties": {"query": {"type": "object"}}, "unevaluatedProperties": True},
}
"""Not `oneOf`: generators of clients would make two classes of it, and pass over this. Linters take whatever a part
does not name for unknown, unless it says otherwise."""


class JobSpec(Frozen):
    """What to compute, from which tables, how, and within which limits. One of `sql` and `query` is given."""

    model_config = ConfigDict(json_schema_extra=_SQL_OR_QUERY)

    name: str = Field(
        default="unnamed",
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        examples=["orders-per-user"],
    )
    mode: Mode = Field(
        default=Mode.BATCH,
        description="`batch` reads the tables once, as they are. `incremental` processes what is new since its last "
        "run, and then waits to be resumed. `continuous` runs until it is stopped.",
    )
    tables: dict[Identifier, Table] = Field(min_length=1, max_length=64)
    sql: (
        Annotated[str, Field(min_length=1, max_length=SQL_CHARACTERS.most), BeforeValidator(SQL_CHARACTERS.check)]
        | None
    ) = Field(
        default=None,
        description="A SELECT over `tables`.",
        examples=["SELECT o.uid, COUNT(DISTINCT o.category) AS categories FROM orders o GROUP BY o.uid"],
    )
    query: Query | None = Field(default=None, description="The same as a structure.")
    settings: JobSettings = JobSettings()
    output: OutputMode | None = Field(
        default=None,
        description="Streaming modes: `update` emits every group that changed, `append` rows that nothing will change. "
        "By default as the query allows.",
    )
    schedule: Schedule | None = Field(
        default=None, description="When an incremental job runs again; without it, when it is resumed."
    )
    # Generators of clients cannot read a default of one of several shapes: a factory's is not told to them.
    sink: Sink = Field(
        default_factory=lambda: ManagedSink(kind="managed"),
        description="Where the rows go: by default a result that the service keeps (`managed`).",
    )
    limits: Limits = Limits()
    queue: QueueChoice = Field(
        default=QueueChoice.AUTO,
        description="`short` and `long` jobs may have workers of their own, so that none waits behind the other. "
        "`auto`: `long` where the tables are large. A continuous job goes to `stream` whatever is given.",
    )
    compare_with: str | None = Field(
        default=None,
        max_length=64,
        description="Id of an earlier batch job of yours: the metrics of this one then tell what it took less, and "
        "which settings differ.",
    )

    @model_validator(mode="before")
    @classmethod
    def _no_time_limit_for_continuous_ones(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or value.get("mode") != Mode.CONTINUOUS.value:
            return value
        limits = value.get("limits", {})
        return {**value, "limits": {"timeout": None, **limits}} if isinstance(limits, Mapping) else value

    @model_validator(mode="after")
    def _one_of_sql_and_query(self) -> Self:
        if (self.sql is None) == (self.query is None):
            raise PydanticCustomError("sql_or_query", "Give either 'sql' or 'query', not both and not neither.")
        return self

    @model_validator(mode="after")
    def _parts_go_with_the_mode(self) -> Self:
        faults = [
            InitErrorDetails(type=PydanticCustomError(fault.code, fault.detail), loc=fault.at, input=None)
            for fault in mode_faults(self)
        ]
        if faults:
            raise ValidationError.from_exception_data(type(self).__name__, faults)
        return self

    @property
    def needs_version(self) -> int:
        """The least SPEC_VERSION whose words cover this job."""
        if self.settings.optimizer != OptimizerSettings() or self._has_large_query:
            return SPEC_VERSION
        if self.compare_with is not None:
            return _COMPARISON_VERSION
        if self.limits.failure_retries:
            return _RETRIES_VERSION
        if any(_has_broken_lines(table) for table in self.tables.values()):
            return _MULTI_LINE_VERSION
        timed = [name for name in self.streams if self.tables[name].event_time is not None]
        if self.followed or len(timed) > 1:
            return _TIMED_VERSION
        streams = self.mode.is_streaming or self.settings.state != StateSettings()
        return _STREAMING_VERSION if streams else _BATCH_VERSION

    @property
    def _has_large_query(self) -> bool:
        """Whether earlier versions may refuse the query for its size. Judged by the text, which is not compiled here:
        one more that waits for a newer worker does no harm.
        """
        if self.query is not None:
            return any(len(query.joins) > _MAX_JOINS_BEFORE for query, _ in queries_in(self.query))
        sql = self.sql or ""
        return len(sql) > _MAX_CHARACTERS_BEFORE or sum(1 for _ in _PARTS.finditer(sql)) > _MAX_JOINS_BEFORE

    def role_of(self, table: str) -> TableRole | None:
        """What a streaming job does with one of its tables; None where that has to be said and is not."""
        role = self.tables[table].role
        return TableRole.STREAM if role is None and len(self.tables) == 1 else role

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the tables that a streaming job reads as streams; none of a batch job's."""
        if not self.mode.is_streaming:
            return ()
        return tuple(name for name in self.tables if self.role_of(name) is TableRole.STREAM)

    @property
    def followed(self) -> dict[str, TableSource]:
        """The tables whose changes a streaming job follows."""
        return {name: table for name, table in self.file_tables.items() if table.follow}

    @property
    def file_tables(self) -> dict[str, TableSource]:
        """The tables whose rows are in files below a data root: all of a batch job's."""
        return {name: table for name, table in self.tables.items() if isinstance(table, TableSource)}

    def stored(self) -> dict[str, Any]:
        """The job's canonical JSON. What is younger than the first version is left out where it says nothing: after a
        way back, that can run the job.
        """
        stored = self.model_dump(mode="json", by_alias=True)
        if self.queue is QueueChoice.AUTO:
            del stored["queue"]
        if not self.limits.failure_retries:
            del stored["limits"]["failure_retries"]
        if self.settings.state == StateSettings():
            del stored["settings"]["state"]
        if self.settings.optimizer == OptimizerSettings():
            del stored["settings"]["optimizer"]
        for part, names in (
            (stored, ("output", "schedule", "compare_with")),
            *((table, ("role", "event_time")) for table in stored["tables"].values()),
        ):
            for name in names:
                if part[name] is None:
                    del part[name]
        for table in stored["tables"].values():
            if not table.get("follow", True):
                del table["follow"]
        return stored


def _has_broken_lines(table: Table) -> bool:
    return isinstance(table, TableSource) and table.format is TableFormat.CSV and table.options.multi_line
