"""A job as a client posts it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from service.spec.limits import SQL_CHARACTERS
from service.spec.mode_rules import mode_faults
from service.spec.model import Flag, Frozen, Whole
from service.spec.modes import Mode, OutputMode
from service.spec.options import JobSettings, OptimizerSettings, StateSettings
from service.spec.quantities import Bounds, Duration
from service.spec.query import Identifier, Query, queries_in
from service.spec.queues import QueueChoice
from service.spec.sinks import ManagedSink, Sink
from service.spec.streaming import EventTime, RateTable, Schedule, StreamTable, TableRole
from service.spec.tagged import told_apart_by

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
