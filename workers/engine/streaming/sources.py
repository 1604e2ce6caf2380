"""Streams as DataFrames whose columns are called `alias.column`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.spec.job import TableFormat, TableSource
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
    """A directory, as a URI that Spark takes literally, to which files are added whole; `schema` is theirs."""

    source: TableSource
    directory: str
    schema: Schema


def read_streams(
    session: SparkSession, node: Node, tables: Mapping[str, TableInput | StreamInput], bound: BatchBound
) -> dict[str, DataFrame]:
    """The DataFrames of a plan's scans, by alias; a stream's holds no rows but those of the mini-batch it runs in."""
    frames = {}
    for scan in scans_of(node):
        table = tables[scan.table]
        if isinstance(table, TableInput):
            frames[scan.alias] = read_scan(session, scan, table)
        else:
            frames[scan.alias] = read_stream(session, scan, table, bound)
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
    frame = reader.load(table.directory)
    return frame.select([F.col(quoted(name)).alias(field.name) for field, name in scan.columns])


__all__ = ["BatchBound", "StreamInput", "TableFormat", "read_stream", "read_streams"]
