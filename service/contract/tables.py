"""The tables of a job: files, input streams, and generated rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from .model import Bounds, Duration, Flag, Frozen, Whole, discriminated_by, refuse_boolean, renamed
from .query import Identifier
from .read_options import FORMAT_ALIASES, OPTIONS_BEFORE_10, FormatName, ReadOptions, TableFormat

MAX_SCHEMA_LENGTH = 100_000

MAX_OVERRIDES = 10_000
"""The most columns whose types a table may set."""

NAMES_OF_FORMATS = {
    TableFormat.PARQUET: "Parquet files",
    TableFormat.CSV: "CSV files",
    TableFormat.JSON: "JSON files",
    TableFormat.ORC: "ORC files",
    TableFormat.AVRO: "Avro files",
    TableFormat.XML: "XML files",
    TableFormat.DELTA: "Delta tables",
}

STREAM_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""The pattern of the name of an input stream."""

FOLLOW = "follow"
"""The name of `refresh` before 1.0. See `service.contract.job`."""

_YEAR = timedelta(days=365)


class TableRole(StrEnum):
    """How a streaming job uses a table: it reads new rows of a `stream`, and joins a `static` table as it is."""

    STREAM = "stream"
    STATIC = "static"


class EventTime(Frozen):
    """The event time of the rows of a stream, and how late a row may arrive."""

    column: Identifier = Field(description="The TIMESTAMP column with the event time.")
    delay: Annotated[Duration, Bounds(timedelta(0), _YEAR)] = Field(
        default=timedelta(0),
        description="The delay of the watermark: the event time of a row may be earlier than the latest one by at most "
        "this much. Windows and joins bounded by event time ignore later rows, and those before 1970.",
        json_schema_extra={"default": "0ms"},
        examples=["10m"],
    )


ADDING = ("+I", "+U", "I", "c", "r", "create", "insert", "read", "update_after", "update_postimage")
"""The values of an `operation` column in rows that are added, in any case."""
REMOVING = ("-U", "-D", "D", "delete", "update_before", "update_preimage")
"""Those of rows that are removed."""
REPLACED = ("-U", "update_before", "update_preimage")
"""Those of rows that are removed and that another row replaces."""

CHANGE_FIELDS = ("operation", "upsert", "envelope")
"""The fields of a table whose rows are removed or replaced."""


ORDER_OF_ENVELOPE = re.compile(r"ts_(ms|us|ns)|source\.[A-Za-z_]+")
"""The numbers of Debezium's records by which changes can be ordered."""


class Upsert(Frozen):
    """Of the rows of a stream with equal `keys`, the one with the greatest `order` counts."""

    keys: tuple[str, ...] = Field(min_length=1, max_length=16, description="The columns that identify a row.")
    order: str | None = Field(
        default=None,
        min_length=1,
        description="A column that grows with each change of a row. Debezium: `ts_ms` (the default), or a number such "
        "as `source.lsn`.",
    )

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        if len({key.casefold() for key in self.keys}) < len(self.keys):
            raise PydanticCustomError("duplicate_column", "'keys' names a column twice: name it once.")
        return self


def require_order(upsert: Upsert | None) -> None:
    """Raises PydanticCustomError for rows that replace each other in an order that is not known."""
    if upsert is not None and upsert.order is None:
        detail = "Name a column in 'order' that grows with each change of a row, such as the time of the change."
        raise PydanticCustomError("upsert_needs_order", detail)


_UPSERT = "How rows of the stream replace each other."
_OPERATION = (
    "A column that says whether a row is added (`+I`, `+U`, `insert`, …) or removed (`-D`, `-U`, `delete`, …). "
    "Hidden from the query."
)


class StreamTable(Frozen):
    """Rows that were posted with `POST /v1/streams/{name}/rows`."""

    format: Literal["stream"]
    stream: str = Field(min_length=1, max_length=200, pattern=STREAM_NAME, examples=["clicks"])
    role: Literal[TableRole.STREAM] = TableRole.STREAM
    event_time: EventTime | None = None
    operation: str | None = Field(default=None, description="As in `TableSource`.")
    upsert: Upsert | None = Field(default=None, description=_UPSERT)

    @model_validator(mode="after")
    def _upsert_has_order(self) -> Self:
        require_order(self.upsert)
        return self


class RateTable(Frozen):
    """Generated rows for tests: `value BIGINT`, which counts from 0, and `timestamp TIMESTAMP`."""

    format: Literal["rate"]
    rows_per_second: Whole = Field(default=1, ge=1, le=10_000_000)
    role: Literal[TableRole.STREAM] = TableRole.STREAM
    event_time: EventTime | None = None


def with_new_name(value: Any, old: str, new: str) -> Any:
    """Returns an object with its field `old` renamed to `new`. Raises ValidationError if it has both."""
    if not isinstance(value, Mapping) or old not in value:
        return value
    if new in value:
        detail = f"'{old}' is the old name of '{new}': give only '{new}'."
        details = InitErrorDetails(type=PydanticCustomError("renamed_field", detail), loc=(old,), input=None)
        raise ValidationError.from_exception_data("object", [details])
    return renamed(value, old, new)


class TableSource(Frozen):
    """A table stored in files below a data root: a file, a directory, or a pattern of paths.

    The job is stored with what the service found: the format, schema, partition columns, and version of a Delta table.
    """

    format: FormatName | None = Field(
        default=None,
        description="The format of the files. By default, it is determined by their names (`.csv`, `.csv.gz`, "
        "`.jsonl`, `.parquet`, …) and their first bytes. `jsonl` and `ndjson` are other names of `json`.",
    )
    path: str = Field(
        min_length=1,
        max_length=4096,
        description="Relative to a data root, or an absolute path or URI inside one. Batch jobs may use the wildcards "
        "`*`, `?` and `[…]` in names, and `**` for any directories.",
        examples=["orders/", "orders/*.csv"],
    )
    declared_schema: str | None = Field(
        default=None,
        alias="schema",
        max_length=MAX_SCHEMA_LENGTH,
        description="Columns of CSV, JSON and XML files as DDL. By default, they are inferred from the beginnings of "
        "the files at submission, and stored here. Other formats contain their schema.",
        examples=["uid BIGINT, name STRING"],
    )
    columns: dict[str, str] | None = Field(
        default=None,
        max_length=MAX_OVERRIDES,
        description="CSV, JSON and XML: the types of some columns. The other columns are inferred.",
        examples=[{"amount": "DECIMAL(10,2)"}],
    )
    partitions: str | None = Field(
        default=None,
        max_length=MAX_SCHEMA_LENGTH,
        description="The columns in the names of directories such as `day=2026-01-31`, as DDL. By default, they are "
        "inferred from these names when the job is submitted, and stored here. Batch jobs.",
        examples=["day DATE, region STRING"],
    )
    version: Annotated[int, Field(ge=0, le=2**62), BeforeValidator(refuse_boolean)] | None = Field(
        default=None,
        description="Delta: the version of the table. By default, the latest version when a batch job is submitted; it "
        "is stored here.",
    )
    options: ReadOptions = ReadOptions()
    role: TableRole | None = Field(
        default=None,
        description="Streaming modes: whether new files are read as they arrive (`stream`), or the table is joined as "
        "it is (`static`). Required if the job has several tables.",
    )
    event_time: EventTime | None = Field(
        default=None, description="Streaming modes: the event time of the rows of a stream."
    )
    operation: str | None = Field(default=None, description=_OPERATION)
    upsert: Upsert | None = Field(default=None, description=_UPSERT)
    envelope: Literal["debezium"] | None = Field(
        default=None, description="JSON: the records are Debezium's, and `schema` has the columns of `after`."
    )
    refresh: Flag = Field(
        default=False,
        description="Streaming modes, role `static`: after its files have changed, later mini-batches are joined with "
        "the new files, and earlier results are not corrected. An incremental job checks when a run begins, a "
        "continuous job every `EVENKEEL_WORKER_FOLLOW_SECONDS`. The old name is `follow`.",
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_old_name(cls, value: Any) -> Any:
        return with_new_name(value, FOLLOW, "refresh")

    @model_validator(mode="before")
    @classmethod
    def _accept_header_outside_of_options(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or "header" not in value:
            return value
        options = value.get("options") or {}
        if not isinstance(options, Mapping):
            return value
        if "header" in options:
            details = InitErrorDetails(
                type=PydanticCustomError("renamed_field", "'header' is also in 'options': give it once."),
                loc=("header",),
                input=None,
            )
            raise ValidationError.from_exception_data("object", [details])
        others = {name: given for name, given in value.items() if name != "header"}
        return {**others, "options": {**options, "header": value["header"]}}

    @model_validator(mode="after")
    def _schema_is_given_once(self) -> Self:
        if self.format is not None and not self.format.is_text and self.declared_schema is not None:
            raise PydanticCustomError("schema_not_applicable", schema_not_applicable(self.format, "schema"))
        if self.format is not None and not self.format.is_text and self.columns is not None:
            raise PydanticCustomError("schema_not_applicable", schema_not_applicable(self.format, "columns"))
        if self.declared_schema is not None and self.columns is not None:
            raise PydanticCustomError(
                "schema_given_twice", "Give 'schema' with all columns, or 'columns' with the types of some of them."
            )
        return self

    @model_validator(mode="after")
    def _changes_are_complete(self) -> Self:
        if self.envelope is not None and (self.format is not TableFormat.JSON or self.operation is not None):
            detail = "Only JSON files have an envelope: set 'format' to 'json', or remove 'envelope'."
            if self.operation is not None:
                detail = "The records of an envelope have their operation: remove 'operation'."
            raise PydanticCustomError("envelope_not_applicable", detail)
        if self.envelope is not None and self.declared_schema is None:
            raise PydanticCustomError("envelope_needs_schema", "Declare 'schema': the columns of a row in 'after'.")
        if self.envelope is None:
            require_order(self.upsert)
        return self

    @property
    def kind(self) -> TableFormat:
        """The format, which is only missing before the table's files are found. Raises ValueError if it is missing."""
        if self.format is None:
            raise ValueError("the table's format has not been determined")
        return self.format

    @property
    def needs_version_10(self) -> bool:
        """Whether workers of job format 9 cannot read the table."""
        is_new = self.format not in {TableFormat.PARQUET, TableFormat.CSV, TableFormat.JSON} or any(
            given is not None for given in (self.columns, self.partitions, self.version)
        )
        return (
            is_new
            or has_wildcards(self.path)
            or bool(self.options.model_dump(exclude=set(OPTIONS_BEFORE_10), exclude_defaults=True))
        )

    @property
    def needs_version_12(self) -> bool:
        """Whether workers of job format 11 refuse the table."""
        has_nested_columns = "<" in (self.declared_schema or "")
        return has_nested_columns or (self.options.merge_schema and not self.kind.is_parquet)


def schema_not_applicable(format_: TableFormat, field: str) -> str:
    """Returns the error text for a table whose files contain their schema."""
    return f"{NAMES_OF_FORMATS[format_]} contain their schema: remove '{field}' from this table."


def has_wildcards(path: str) -> bool:
    """Whether the path may be a pattern. A file of exactly this name has precedence."""
    return any(character in path for character in "*?[")


Table = Annotated[
    TableSource | StreamTable | RateTable,
    discriminated_by(
        "format",
        {
            **dict.fromkeys((*map(str, TableFormat), *FORMAT_ALIASES), TableSource),
            "stream": StreamTable,
            "rate": RateTable,
        },
    ),
]


def remove_new_fields(table: dict[str, Any]) -> None:
    """Removes the fields of job format 10, and later ones, that have their default value."""
    for name in ("format", "columns", "partitions", "version", "operation", "upsert", "envelope"):
        if table.get(name, ...) is None:
            del table[name]
    if "options" in table:
        table["options"] = {
            name: given
            for name, given in table["options"].items()
            if (given is not None if name in OPTIONS_BEFORE_10 else given != _DEFAULT_OPTIONS[name])
        }


_DEFAULT_OPTIONS = ReadOptions().model_dump(mode="json")
