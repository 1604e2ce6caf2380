"""A job as a client posts it."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from service.spec.model import Frozen
from service.spec.options import JobSettings
from service.spec.quantities import Duration
from service.spec.query import Identifier, Query
from service.spec.queues import QueueChoice

MAX_SQL_LENGTH = 100_000

SPEC_VERSION = 3
"""Grows with everything that a job may hold and workers of the version before do not know; stored with each job, so
that they leave it to newer ones. 1: the first. 2: `queue`. 3: queries in FROM, UNION, grouping sets, more aggregates,
`distinct_method`, `eager_aggregation`, and `join.*` for all joins or one. `skew.join_strategy`, which did nothing until
then, is read as `join.skew`: a job that still waits with `forced` runs as ISOLATE, with the same result."""


class TableFormat(StrEnum):
    """How the files of a table are written."""

    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"


class ReadOptions(Frozen):
    """How text files are read. Only the options listed here reach Spark."""

    header: bool = Field(default=False, description="CSV: the first line of each file names the columns.")
    delimiter: str = Field(default=",", pattern=r"^[^\r\n]$", description="CSV: what parts two values.")
    quote: str = Field(default='"', pattern=r"^[^\r\n]$", description="CSV: what encloses a value.")
    null_value: str = Field(default="", max_length=64, description="CSV: the text that stands for NULL.")
    multi_line: bool = Field(default=False, description="JSON: one document over several lines.")

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
        max_length=100_000,
        description="Columns as DDL; required for CSV and JSON, refused for Parquet, which carries its own.",
        examples=["uid BIGINT, name STRING"],
    )
    options: ReadOptions = ReadOptions()

    @model_validator(mode="after")
    def _schema_where_files_have_none(self) -> Self:
        if self.format is TableFormat.PARQUET and self.declared_schema is not None:
            raise PydanticCustomError(
                "schema_not_applicable", "Parquet files carry their schema: remove 'schema' from this table."
            )
        if self.format is not TableFormat.PARQUET and self.declared_schema is None:
            raise PydanticCustomError(
                "schema_required",
                "A {format} table needs its 'schema', for example \"uid BIGINT, name STRING\".",
                {"format": self.format.value},
            )
        return self


class ManagedSink(Frozen):
    """The result is kept by the service and read through `GET /v1/jobs/{id}/result`. Exactly once."""

    kind: Literal["managed"]


class Limits(Frozen):
    """What a job may take."""

    timeout: Duration = Field(
        default=timedelta(hours=1),
        ge=timedelta(seconds=1),
        le=timedelta(days=7),
        description="After so long since its first start the job ends TIMED_OUT.",
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        le=10,
        description="How often the job is started before lost workers make it CRASHED.",
    )


class JobSpec(Frozen):
    """What to compute, from which tables, how, and within which limits. One of `sql` and `query` is given."""

    name: str = Field(
        default="unnamed",
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        examples=["orders-per-user"],
    )
    mode: Literal["batch"] = Field(default="batch", description="`batch` reads the tables once, as they are.")
    tables: dict[Identifier, TableSource] = Field(min_length=1, max_length=64)
    sql: Annotated[str, Field(min_length=1, max_length=MAX_SQL_LENGTH)] | None = Field(
        default=None,
        description="A SELECT over `tables`.",
        examples=["SELECT o.uid, COUNT(DISTINCT o.category) AS categories FROM orders o GROUP BY o.uid"],
    )
    query: Query | None = Field(default=None, description="The same as a structure.")
    settings: JobSettings = JobSettings()
    sink: ManagedSink = ManagedSink(kind="managed")
    limits: Limits = Limits()
    queue: QueueChoice = Field(
        default=QueueChoice.AUTO,
        description="`short` and `long` jobs may have workers of their own, so that none waits behind the other. "
        "`auto`: `long` where the tables are large.",
    )

    @model_validator(mode="after")
    def _one_of_sql_and_query(self) -> Self:
        if (self.sql is None) == (self.query is None):
            raise PydanticCustomError("sql_or_query", "Give either 'sql' or 'query', not both and not neither.")
        return self
