"""Reads streams as DataFrames whose columns are named `alias.column`, and limits the size of their mini-batches.

A job sets the size in rows (`mini_batch.size`), but Spark limits the bytes of files; `bound_of` converts. Spark reads
complete files up to the limit, at least one. For files of similar size the limit is half a file higher, so that the
number of files is the closest one: otherwise a mini-batch would be half a file too small on average. If a file has more
rows than the size, nothing is added: Spark reads one such file, or as many smaller ones as fit.

`SourceLog` reads which files the mini-batches of a stream have read, from the logs in Spark's checkpoint:

    <checkpoint>/sources/<source>/<entry>            the files of one mini-batch, one per line, written when it begins
    <checkpoint>/sources/<source>/<entry>.compact    the files of all entries so far; older entries are removed later

Sources are numbered in the order of `reads_of`. A source that a plan reads twice has one log. `SourceLog`
reads every entry once, except compact entries, of which it only parses new lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.java_gateway import JavaObject
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.options import MiniBatchSettings, Toggle
from service.contract.read_options import TableFormat
from service.contract.tables import TableSource, Upsert
from service.data.compression import CorruptTextError
from service.data.file_io import DataFile, opened, rows_in, size_of, text_of
from service.data.schemas import RATE_SCHEMA
from service.data.text_heads import read_head
from service.sql.expressions.scalar import quoted
from service.sql.types.data_types import STRING, Field, Schema
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import transform_up
from workers.engine.spark.sources import TableInput, ddl_of, fields_to_read, read_scan, reader_options, scans_of
from workers.engine.streaming import debezium

DEFAULT_ROWS = 2_000_000
"""Rows of a mini-batch if the job does not set its size. Smaller mini-batches have more overhead (distinct texts: 357,
401 and 392 thousand rows per second with 1, 2 and 4 million), and larger ones are more work to repeat after a crash."""

_FILES_READ = 8
_HEAD_BYTES = 1 << 16
_BYTES_PER_ROW = {TableFormat.PARQUET: 16.0, TableFormat.CSV: 48.0, TableFormat.JSON: 96.0}
"""The default if no file can be read."""

_TABLE = "evenkeelTable"
"""The option that names a relation's table. Spark passes it to the source, which ignores it."""

_COMPACT = ".compact"


@dataclass(frozen=True)
class BatchBound:
    """The limit of a mini-batch, either in `files` or in `bytes`; it always has at least one file."""

    files: int | None = None
    bytes: int | None = None


@dataclass(frozen=True)
class StreamInput:
    """A directory to which complete files are added, as a URI without glob patterns; `schema` is that of the files,
    `files` are those that exist now.
    """

    source: TableSource
    directory: str
    schema: Schema
    files: tuple[DataFile, ...] = ()
    operation: str | None = None
    """The column that says whether a row is added or removed."""
    upsert: Upsert | None = None
    """How rows replace each other."""

    @property
    def is_changing(self) -> bool:
        """Whether rows are removed or replaced."""
        return self.operation is not None or self.upsert is not None or self.source.envelope is not None

    @property
    def unescaped(self) -> str:
        """The URI without the escapes of glob patterns."""
        return re.sub(r"\\(.)", r"\1", self.directory)


@dataclass(frozen=True)
class RateInput:
    """A source of rows that Spark generates."""

    rows_per_second: int

    @property
    def schema(self) -> Schema:
        """The columns."""
        return RATE_SCHEMA


@dataclass(frozen=True)
class SourceRead:
    """A streaming source of a query: its table, and how often the plan reads it."""

    table: str
    times: int


Input = TableInput | StreamInput | RateInput
"""A table of a streaming query; all but the first are streams."""

OPERATION = "$operation"
"""The name of the operation column in the rows of a stream."""


def with_operations(node: Node, tables: Mapping[str, Input]) -> Node:
    """Returns a plan whose scans also read the operation columns of streams, as `OPERATION`, if rows do not replace
    each other.
    """

    def added(part: Node) -> Node:
        table = tables[part.table] if isinstance(part, Scan) else None
        if not isinstance(part, Scan) or not isinstance(table, StreamInput) or table.upsert is not None:
            return part
        operation = operation_of(table)
        return (
            part if operation is None else replace(part, columns=(*part.columns, (Field(OPERATION, STRING), operation)))
        )

    return transform_up(node, added)


def operation_of(table: StreamInput) -> str | None:
    """Returns the name of the operation column; None if all rows are added."""
    if table.source.envelope is not None:
        return debezium.OPERATION
    if table.operation is None:
        return None
    found = table.schema.find(table.operation)
    if found is None:
        raise KeyError(table.operation)
    return found.name


def read_inputs(
    session: SparkSession, node: Node, tables: Mapping[str, Input], bounds: Mapping[str, BatchBound]
) -> dict[str, DataFrame]:
    """Returns the DataFrames of a plan's scans, by alias. That of a stream has the rows of the current mini-batch.

    `tables` and `bounds` are by table name; a stream without a bound reads all files that exist.
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
    """Returns the files of the directory, each once, oldest first. Reads nothing yet.

    A row that does not fit the schema makes the mini-batch fail that reads it.
    """
    has_envelope = table.source.envelope is not None
    fields = fields_to_read(scan, table.source.kind, table.schema)
    reader = (
        session.readStream.format(table.source.kind.value)
        .schema(debezium.ddl(fields, table.upsert) if has_envelope else ddl_of(fields))
        .options(**reader_options(table.source))
        .option("recursiveFileLookup", True)
        # Spark silently ignores files that are older than the newest one by more than this; the default is seven days.
        .option("maxFileAge", "36500d")
        .option(_TABLE, scan.table)
    )
    if bound.files is not None:
        reader = reader.option("maxFilesPerTrigger", bound.files)
    if bound.bytes is not None:
        reader = reader.option("maxBytesPerTrigger", bound.bytes)
    rows = reader.load(table.directory)
    return _under_alias(debezium.rows_of(rows, fields, table.upsert, scan.table) if has_envelope else rows, scan)


def reads_of(frame: DataFrame) -> tuple[SourceRead, ...]:
    """Returns the streaming sources of a frame of `read_inputs` in the order in which Spark reports their progress:
    that of their first relation in the analyzed plan. Spark's description does not identify a source, since two tables
    may read the same directory.
    """
    relations: list[tuple[JavaObject, int]] = []
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    for leaf in map(leaves.apply, range(leaves.size())):
        if not leaf.isStreaming():
            continue
        # Equal relations are one source.
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


def bound_of(settings: MiniBatchSettings, source: TableSource, files: Sequence[DataFile]) -> BatchBound:
    """Returns the limit of a mini-batch; the bytes per row are estimated from `files`, some of the existing files."""
    if settings.enabled is Toggle.FALSE:
        return BatchBound(files=1)
    rows = settings.size or DEFAULT_ROWS
    wanted, file = rows * bytes_per_row(source, files), _bytes_per_file(files)
    return BatchBound(bytes=max(1, round(wanted + (file / 2 if file <= wanted else 0))))


def bytes_per_row(source: TableSource, files: Sequence[DataFile]) -> float:
    """Returns the average bytes per row of a few files; a default if none can be read."""
    size = rows = 0.0
    for file in islice(files, _FILES_READ):
        try:
            is_parquet = source.format is TableFormat.PARQUET
            found_size, found_rows = _of_parquet(file) if is_parquet else _of_text(file, source)
        except (OSError, pa.ArrowInvalid):
            # It was removed, or the mini-batch that reads it will fail.
            continue
        size += found_size
        rows += found_rows
    return size / rows if rows else _BYTES_PER_ROW.get(source.kind, 48.0)


def _bytes_per_file(files: Sequence[DataFile]) -> float:
    sizes = []
    for file in islice(files, _FILES_READ):
        with suppress(OSError):  # it was removed
            sizes.append(size_of(file))
    return sum(sizes) / len(sizes) if sizes else 0.0


def _of_parquet(file: DataFile) -> tuple[float, float]:
    with opened(file) as stream:
        return size_of(file), pq.read_metadata(stream).num_rows


def _of_text(file: DataFile, source: TableSource) -> tuple[float, float]:
    try:
        head = read_head(file, source.options, _HEAD_BYTES)
    except CorruptTextError as error:
        raise OSError from error
    is_csv = source.format is TableFormat.CSV and source.options.multi_line
    rows = rows_in(text_of(head.data), source.options) if is_csv else head.data.count(b"\n")
    return head.stored_bytes, max(1, rows)


def logs_of(checkpoint: Path) -> list[Path]:
    """Returns the directories of the sources' logs, by their numbers."""
    found = (path for path in (checkpoint / "sources").glob("[0-9]*") if path.name.isdecimal())
    return sorted(found, key=lambda path: int(path.name))


def entries_before(checkpoint: Path, batch_id: int) -> dict[Path, int]:
    """Returns, by log, the newest entry that mini-batches before this one have read. If Spark has not recorded it,
    returns an older entry or -1. Raises OSError.
    """
    logs = logs_of(checkpoint)
    try:
        version, _, *offsets = (checkpoint / "offsets" / str(batch_id - 1)).read_text(encoding="utf-8").split("\n")
        entries = [_entry(offset) for offset in offsets] if version == "v1" else []
    except (FileNotFoundError, ValueError):
        entries = []
    if len(entries) != len(logs):
        # A source that the plan reads twice has a line for each read, but one log.
        entries = [min(entries, default=-1)] * len(logs)
    return dict(zip(logs, entries, strict=True))


class SourceLog:
    """Reads the entries of one log after the entry `after`, as they are added."""

    def __init__(self, log: Path, after: int = -1) -> None:
        self._log = log
        self._read = after

    def new(self) -> Iterator[str]:
        """Yields the URIs of the files that were added since the last call, decoded; none if the log is not of files.

        Raises OSError and ValueError if the log cannot be read. The next call then continues there, and may repeat
        files.
        """
        # Entries that are being written have hidden names.
        names = [path.name for path in self._log.iterdir()]
        compact = max((number for name in names if (number := _compact_number(name)) is not None), default=-1)
        later = sorted(int(name) for name in names if name.isdecimal() and int(name) > max(compact, self._read))
        if compact > self._read:
            yield from self._from_compact(compact)
            self._read = compact
        for number in later:
            yield from [path for line in self._lines(str(number)) if (path := _path(line)) is not None]
            self._read = number

    def _from_compact(self, number: int) -> Iterator[str]:
        for line in self._lines(f"{number}{_COMPACT}"):
            # Most lines are old, so they are not parsed. The number of the entry is last in a line.
            if int(line[line.rindex(":") + 1 : -1]) > self._read:
                path = _path(line)
                if path is not None:
                    yield path

    def _lines(self, name: str) -> Iterator[str]:
        """Yields one line at a time: a compact entry has a line for every file that was ever read."""
        with (self._log / name).open(encoding="utf-8") as lines:
            next(lines, None)
            for line in lines:
                yield line.rstrip("\n")


def _compact_number(name: str) -> int | None:
    number = name.removesuffix(_COMPACT)
    return int(number) if number != name and number.isdecimal() else None


def _entry(offset: str) -> int:
    value = None if offset == "-" else json.loads(offset)
    return int(value["logOffset"]) if isinstance(value, dict) and "logOffset" in value else -1


def _path(line: str) -> str | None:
    entry = json.loads(line)
    # A name that is not UTF-8 is decoded as by `os.listdir`.
    return unquote(entry["path"], errors="surrogateescape") if isinstance(entry, dict) and "path" in entry else None
