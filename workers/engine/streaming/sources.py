"""Streams as DataFrames whose columns are called `alias.column`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.datasets.reading import DataFile
from service.datasets.schemas import RATE_SCHEMA
from service.spec.job import TableSource
from service.spec.scalar import quoted
from service.spec.types import Schema
from workers.engine.plan.nodes import Node, Scan
from workers.engine.spark.sources import TableInput, fields_to_read, read_scan, reader_options, scans_of, spelled


@dataclass(frozen=True)
class BatchBound:
    """How much a mini-batch takes at most, one file at least: `files` of them, or `bytes`; one of the two at most."""

    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class StreamInput:
    """A directory, as a URI that Spark takes literally, to which files are added whole; `schema` is theirs, `files` are
    those that it has so far.
    """

    source: TableSource
    directory: str
    schema: Schema
    files: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class RateInput:
    """Rows that Spark makes up, so many a second."""

    rows_per_second: int

    @property
    def schema(self) -> Schema:
        """Its columns."""
        return RATE_SCHEMA


Input = TableInput | StreamInput | RateInput
"""What a table of a streaming query may be; all but the first are streams."""


def read_inputs(
    session: SparkSession, node: Node, tables: Mapping[str, Input], bounds: Mapping[str, BatchBound]
) -> dict[str, DataFrame]:
    """The DataFrames of a plan's scans, by alias; a stream's holds no rows but those of the mini-batch it runs in.

    `tables` and `bounds` are by table name; a stream without a bound takes all there is.
    """
    frames = {}
    for scan in scans_of(node):
        table = tables[scan.table]
        if isinstance(table, TableInput):
            frames[scan.alias] = read_scan(session, scan, table)
        elif isinstance(table, RateInput):
            made = session.readStream.format("rate").option("rowsPerSecond", table.rows_per_second).load()
            frames[scan.alias] = _under_alias(made, scan)
        else:
            frames[scan.alias] = read_stream(session, scan, table, bounds.get(scan.table, BatchBound()))
    return frames


def read_stream(session: SparkSession, scan: Scan, table: StreamInput, bound: BatchBound) -> DataFrame:
    """The files of the directory, each once, those that were there first in front; nothing is read yet.

    A row that does not fit the schema fails the mini-batch that reads it.
    """
    fields = fields_to_read(scan, table.source.format, table.schema)
    reader = (
        session.readStream.format(table.source.format.value)
        .schema(spelled(fields))
        .options(**reader_options(table.source))
        .option("recursiveFileLookup", True)
        # Files that are older than the newest by more than this are left out without a word, seven days by default.
        .option("maxFileAge", "36500d")
    )
    if bound.files is not None:
        reader = reader.option("maxFilesPerTrigger", bound.files)
    if bound.bytes is not None:
        reader = reader.option("maxBytesPerTrigger", bound.bytes)
    return _under_alias(reader.load(table.directory), scan)


def _under_alias(frame: DataFrame, scan: Scan) -> DataFrame:
    return frame.select([F.col(quoted(name)).alias(field.name) for field, name in scan.columns])
