"""Streams as DataFrames whose columns are called `alias.column`.

How much a mini-batch takes: rows, as the job says, in the files' bytes, as Spark counts.

Spark takes whole files while they stay within the bound, and one at least. Half a file on top makes that the number of
files that comes closest, where files are alike: without it, a mini-batch would be half a file short on average. Where a
file has more than the rows that are wanted, there is nothing on top: one is taken, and of later ones, which may be much
smaller, as many as fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.job import TableFormat, TableSource
from service.contract.options import MiniBatchSettings, Toggle
from service.data.file_io import DataFile, opened, rows_in, size_of, text_of
from service.data.schemas import RATE_SCHEMA
from service.sql.expressions.scalar import quoted
from service.sql.types.data_types import Schema
from workers.engine.plan.nodes import Node, Scan
from workers.engine.spark.sources import TableInput, ddl_of, fields_to_read, read_scan, reader_options, scans_of


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


_TABLE = "evenkeelTable"
"""The option that names a relation's table. Spark hands it to the source, which ignores it."""


@dataclass(frozen=True)
class SourceRead:
    """One streaming source of a query: the table that it reads, and how often the plan reads the source."""

    table: str
    times: int


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
            rate = session.readStream.format("rate").option("rowsPerSecond", table.rows_per_second)
            frames[scan.alias] = _under_alias(rate.option(_TABLE, scan.table).load(), scan)
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
        .schema(ddl_of(fields))
        .options(**reader_options(table.source))
        .option("recursiveFileLookup", True)
        # Files that are older than the newest by more than this are left out without a word, seven days by default.
        .option("maxFileAge", "36500d")
        .option(_TABLE, scan.table)
    )
    if bound.files is not None:
        reader = reader.option("maxFilesPerTrigger", bound.files)
    if bound.bytes is not None:
        reader = reader.option("maxBytesPerTrigger", bound.bytes)
    return _under_alias(reader.load(table.directory), scan)


def reads_of(frame: DataFrame) -> tuple[SourceRead, ...]:
    """The streaming sources of a frame of `read_inputs`, in the order in which Spark reports their progress: that of
    their first relation in the analyzed plan. Spark's description of a source is no identity, since two tables may
    read one directory.
    """
    relations: list[tuple[JavaObject, int]] = []
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for leaf in map(leaves.apply, range(leaves.size())):
        if not leaf.isStreaming():
            continue
        # Equal relations share one source.
        place = next((place for place, (known, _) in enumerate(relations) if known.equals(leaf)), None)
        if place is None:
            relations.append((leaf, 1))
        else:
            relations[place] = (leaf, relations[place][1] + 1)
    return tuple(SourceRead(_table_of(relation), times) for relation, times in relations)


def _table_of(relation: JavaObject) -> str:
    if relation.getClass().getSimpleName() == "StreamingRelation":
        return str(relation.dataSource().options().get(_TABLE).get())
    return str(relation.extraOptions().get(_TABLE))


def _under_alias(frame: DataFrame, scan: Scan) -> DataFrame:
    return frame.select([F.col(quoted(name)).alias(field.name) for field, name in scan.columns])


DEFAULT_ROWS = 2_000_000
"""Rows of a mini-batch where the job sets none: smaller ones cost more for their own sake (distinct texts: 357, 401 and
392 thousand rows a second with 1, 2 and 4 million), and larger ones are more to do again after a crash."""

_FILES_READ = 8
_HEAD_BYTES = 1 << 16
_BYTES_PER_ROW = {TableFormat.PARQUET: 16.0, TableFormat.CSV: 48.0, TableFormat.JSON: 96.0}
"""Where no file tells."""


def bound_of(settings: MiniBatchSettings, source: TableSource, files: Sequence[DataFile]) -> BatchBound:
    """The bound of a mini-batch; `files` are some that are there already, by which bytes a row are told."""
    if settings.enabled is Toggle.FALSE:
        return BatchBound(files=1)
    rows = settings.size or DEFAULT_ROWS
    wanted, file = rows * bytes_per_row(source, files), _bytes_per_file(files)
    return BatchBound(bytes=max(1, round(wanted + (file / 2 if file <= wanted else 0))))


def bytes_per_row(source: TableSource, files: Sequence[DataFile]) -> float:
    """Bytes of a file for each of its rows, on average of a few files; a guess where there are none to read."""
    size = rows = 0.0
    for file in islice(files, _FILES_READ):
        try:
            is_parquet = source.format is TableFormat.PARQUET
            found_size, found_rows = _of_parquet(file) if is_parquet else _of_text(file, source)
        except (OSError, pa.ArrowInvalid):
            # Its rows will fail the mini-batch that reads it, or it is gone.
            continue
        size += found_size
        rows += found_rows
    return size / rows if rows else _BYTES_PER_ROW[source.format]


def _bytes_per_file(files: Sequence[DataFile]) -> float:
    sizes = []
    for file in islice(files, _FILES_READ):
        with suppress(OSError):  # it is gone
            sizes.append(size_of(file))
    return sum(sizes) / len(sizes) if sizes else 0.0


def _of_parquet(file: DataFile) -> tuple[float, float]:
    with opened(file) as stream:
        return size_of(file), pq.read_metadata(stream).num_rows


def _of_text(file: DataFile, source: TableSource) -> tuple[float, float]:
    with opened(file) as stream:
        head: bytes = stream.read(_HEAD_BYTES)
    if source.format is TableFormat.CSV and source.options.multi_line:
        return len(head), max(1, rows_in(text_of(head), source.options))
    return len(head), max(1, head.count(b"\n"))
