"""Reads the files of tables into DataFrames with columns named `alias.column`.

Spark gets each file by its path, with the schema that was checked at submission. It infers nothing but the values of
partitions, expands no glob pattern, and has no options other than those of `ReadOptions`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark import InheritableThread
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.problems import SpecError
from service.contract.read_options import Encoding, ParseMode, ReadOptions, TableFormat
from service.contract.tables import TableSource
from service.data.file_io import DataFile, UriFile, version_of
from service.data.files import TableFiles
from service.data.schemas import without_column
from service.sql.expressions.scalar import quoted
from service.sql.types.data_types import STRING, DataType, Field, Schema
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.spark.avro_source import read_avro
from workers.engine.spark.corrupt_records import CorruptRecords, without_corrupt
from workers.engine.spark.logical_plans import load_files
from workers.engine.spark.scan_cache import ScanCache

_MAX_CHARACTERS = 1 << 17
"""The longest value that may have line breaks: without a limit, an unclosed quote would read the rest of the file. The
parser of each file allocates this much at once; eight times as much doubled the garbage collection of small files."""


MAX_READS = 256
"""Partitions that are read separately: those of Avro, and of Delta tables whose directories do not have the values."""


@dataclass(frozen=True)
class TableInput:
    """A table of a job: its source as the job declares it, the files that were found, and their schema."""

    source: TableSource
    files: TableFiles
    schema: Schema

    @property
    def partition_names(self) -> tuple[str, ...]:
        """The names of the partition columns, in the order of their values."""
        found = {name.casefold(): name for name in self.schema.names} if self.files.partitions.names else {}
        return tuple(found[name.casefold()] for name in self.files.partitions.names)

    @property
    def data_schema(self) -> Schema:
        """The columns that the files contain: without those of the partitions, and of corrupt records."""
        options = self.source.options
        names = {*self.partition_names}
        schema = Schema(tuple(field for field in self.schema.fields if field.name not in names))
        if self.source.kind.is_text and options.mode is ParseMode.PERMISSIVE:
            return without_column(schema, options.column_name_of_corrupt_record)
        return schema


def file_set_of(table: TableInput) -> str | None:
    """Returns a digest of the table's files, their versions, and how they are read.

    The versions are those of the listing, or current ones if the listing has none. None if a file has been removed, or
    if its store does not return modification times.
    """
    digest = hashlib.sha256(table.source.model_dump_json(include={"format", "options"}).encode())
    try:
        versions = table.files.versions or map(version_of, table.files.files)
        for file, version in zip(table.files.files, versions, strict=True):
            if version is None:
                return None
            digest.update(f"{file}\0{version}\0".encode(errors="surrogateescape"))
    except OSError:
        return None
    digest.update(repr(table.schema).encode(errors="surrogateescape"))
    return digest.hexdigest()


def scans_of(node: Node) -> tuple[Scan, ...]:
    """Returns one scan per alias, in order of appearance, with every column that any scan of the alias reads.

    After a rewrite, a plan may have several scans of one alias, with different columns.
    """
    merged: dict[str, Scan] = {}
    for scan in walk_up(node):
        if not isinstance(scan, Scan):
            continue
        known = merged.get(scan.alias)
        columns = dict.fromkeys((*(known.columns if known else ()), *scan.columns))
        merged[scan.alias] = Scan(scan.table, scan.alias, tuple(columns))
    return tuple(merged.values())


class ScanReads:
    """Reads the scans of a plan. No row is read yet, but Spark looks at each file.

    `tables` is by table name. Records that do not match the schema are counted in `corrupt`, unless they fail the job.
    Aliases of a table with the same columns share one DataFrame, because Spark checks all files of the table for each.
    With a `cache`, Spark does so once for several queries.
    """

    def __init__(
        self,
        session: SparkSession,
        tables: Mapping[str, TableInput],
        corrupt: CorruptRecords,
        cache: ScanCache | None = None,
    ) -> None:
        self.session = session
        self.corrupt = corrupt
        self._tables = tables
        self._cache = cache
        self._read: dict[tuple[str, tuple[Field, ...]], DataFrame] = {}
        self._made: dict[Scan, DataFrame] = {}
        self._file_sets: dict[str, str | None] = {}
        self._thread: InheritableThread | None = None

    def begin(self, scans: Sequence[Scan]) -> None:
        """Begins to read `scans` in another thread. Errors are left to `frames`, which reads again."""

        def read() -> None:
            with suppress(Exception):
                for scan in scans:
                    self._selected(scan)

        self._thread = InheritableThread(read, name="read-scans", daemon=True)
        self._thread.start()

    def frames(self, node: Node) -> dict[str, DataFrame]:
        """Returns the DataFrames of the scans of `node`, by alias.

        Raises SpecError `unreadable_file` for a file name that Spark does not support, and what Spark raises.
        """
        if self._thread is not None:
            self._thread.join()
        return {scan.alias: self._selected(scan) for scan in scans_of(node)}

    def _selected(self, scan: Scan) -> DataFrame:
        table, cache, key = self._tables[scan.table], self._cache, self._key(scan)
        if cache is None or key is None:
            if scan not in self._made:
                self._made[scan] = _selected(self._frame(scan), scan)
            return self._made[scan]
        files, fields = len(table.files.files), self._fields(scan)

        def make(session: SparkSession) -> DataFrame:
            whole = cache.frame(session, key, files, lambda reader: _read_fields(reader, fields, table))
            return _selected(whole, scan)

        return cache.frame(self.session, (key, scan.alias, scan.columns), files, make)

    def _frame(self, scan: Scan) -> DataFrame:
        table, fields = self._tables[scan.table], self._fields(scan)
        place = scan.table, fields
        if place not in self._read:
            self._read[place] = _read(self.session, fields, table, self.corrupt)
        return self._read[place]

    def _fields(self, scan: Scan) -> tuple[Field, ...]:
        table = self._tables[scan.table]
        fields = whole_fields(scan, table)
        if fields is None:
            fields = fields_to_read(scan, table.source.kind, table.schema, table.partition_names)
        return fields

    def _key(self, scan: Scan) -> Hashable | None:
        """Returns what distinguishes the read of a scan from others, without its columns; None if it is made for each
        query: the records that do not match are counted by query, and partitions and Avro are read one by one.
        """
        table = self._tables[scan.table]
        is_plain = not table.source.kind.is_text or table.source.options.mode is ParseMode.FAILFAST
        if not is_plain or table.source.format is TableFormat.AVRO or not table.files.partitions.are_in_paths:
            return None
        if scan.table not in self._file_sets:
            self._file_sets[scan.table] = file_set_of(table)
        file_set = self._file_sets[scan.table]
        if file_set is None:
            return None
        return file_set, self._fields(scan), table.partition_names, str(table.files.directory_or_file)


def read_scan(session: SparkSession, scan: Scan, table: TableInput) -> DataFrame:
    """Returns the scan's columns of the table, in the scan's order, under the names that the scan emits.

    A text row that does not match the declared schema fails the query that reads it. Raises SpecError
    `unreadable_file` for a file name that Spark does not support.
    """
    fields = fields_to_read(scan, table.source.kind, table.schema, table.partition_names)
    return _selected(_read(session, fields, table), scan)


def _read(
    session: SparkSession, fields: tuple[Field, ...], table: TableInput, corrupt: CorruptRecords | None = None
) -> DataFrame:
    """Returns the columns `fields` of the table's files, under their names in the files."""
    options = table.source.options
    if not table.source.kind.is_text or options.mode is ParseMode.FAILFAST:
        return _read_fields(session, fields, table)
    if options.mode is ParseMode.DROPMALFORMED:
        fields = (*fields, Field(options.column_name_of_corrupt_record, STRING))
    frame = _read_fields(session, fields, table)
    if corrupt is None:
        return without_corrupt(frame, options)
    return corrupt.count(table.files.table, frame, options)


def _read_fields(session: SparkSession, fields: tuple[Field, ...], table: TableInput) -> DataFrame:
    paths = [_spark_path(table.files.table, file) for file in table.files.files]
    if not table.files.partitions.are_in_paths or (table.source.format is TableFormat.AVRO and table.partition_names):
        return _read_by_values(session, fields, table, paths)
    if table.source.format is TableFormat.AVRO:
        return read_avro(session, table.files.files, ddl_of(fields))
    reader = _reader(session, table)
    if table.partition_names:
        reader = reader.option("basePath", _base_path(table.files))
    if table.files.snapshot is not None or table.source.kind.is_text or all(_has_ddl(field.type) for field in fields):
        reader = reader.schema(ddl_of(fields))
    # Otherwise Spark reads the schema from the files: DDL has no names for some types of Parquet.
    return load_files(session, reader, paths)


def _reader(session: SparkSession, table: TableInput) -> DataFrameReader:
    kind = TableFormat.PARQUET if table.source.kind.is_parquet else table.source.kind
    return session.read.format(kind.value).options(**reader_options(table.source))


def _has_ddl(type_: DataType) -> bool:
    return type_.is_atomic


def _read_by_values(
    session: SparkSession, fields: tuple[Field, ...], table: TableInput, paths: Sequence[str]
) -> DataFrame:
    """Returns the union of the partitions, whose values Spark does not read from the paths. A filter on the values
    leaves partitions out, since they are constants.
    """
    names = table.partition_names
    by_values: dict[tuple[str | None, ...], list[int]] = {}
    for place, values in enumerate(table.files.partitions.values):
        by_values.setdefault(values, []).append(place)
    if len(by_values) > MAX_READS:
        raise SpecError.of(
            "unsupported_construct",
            f"The table has {len(by_values)} partitions that must be read one by one; at most {MAX_READS} are. Write "
            "it again as Parquet, or as a Delta table, with Spark.",
            pointer=f"/tables/{table.files.table}/path",
        )
    types = {field.name: field.type for field in fields}
    in_files = tuple(field for field in fields if field.name not in names) or table.data_schema.fields[:1]
    parts = []
    for values, places in by_values.items():
        if table.source.format is TableFormat.AVRO:
            part = read_avro(session, [table.files.files[place] for place in places], ddl_of(in_files))
        else:
            reader = _reader(session, table).schema(ddl_of(in_files))
            part = load_files(session, reader, [paths[place] for place in places])
        literals = {name: F.lit(value).cast(str(types[name])) for name, value in zip(names, values, strict=True)}
        columns = ((field.name, literals.get(field.name, F.col(quoted(field.name)))) for field in fields)
        parts.append(part.select(*(column.alias(name) for name, column in columns)))
    return reduce(DataFrame.union, parts)


def _selected(frame: DataFrame, scan: Scan) -> DataFrame:
    # As strings: each Column would take several calls of the JVM.
    return frame.selectExpr(*(f"{quoted(name)} AS {quoted(field.name)}" for field, name in scan.columns))


def _spark_path(table: str, file: DataFile) -> str:
    path = file.path if isinstance(file, UriFile) else str(file)
    # Hadoop takes everything before a colon for a scheme, even if the colon is escaped (HADOOP-14217).
    if ":" in path:
        raise SpecError.of(
            "unreadable_file",
            f"Spark cannot read '{path}' of table '{table}': rename it so that its path has no colon.",
            pointer=f"/tables/{table}",
        )
    # With a scheme, because Hadoop may be configured with another default file system. The rest is taken literally,
    # including percent signs.
    uri = file.uri if isinstance(file, UriFile) else f"file://{path}"
    # Brackets and asterisks in file names must not be taken for patterns.
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", uri)


def _base_path(files: TableFiles) -> str:
    """Returns the URI of the directory that contains the partitions. Spark takes it literally."""
    place = files.directory_or_file
    return f"file://{place}" if isinstance(place, Path) else str(place)


def whole_fields(scan: Scan, table: TableInput) -> tuple[Field, ...] | None:
    """Returns the columns of the schema for a batch read: those of `scan`, and all whose type DDL can name. Spark
    estimates the bytes that a query reads by their share of a row, and reads only the columns that it needs.

    None if the schema must have only the columns that are read: Avro is decoded row by row, and the partitions of
    `_read_by_values` are united. Also None if Spark would take two names for one.
    """
    if table.source.format is TableFormat.AVRO or not table.files.partitions.are_in_paths:
        return None
    wanted = {name for _, name in scan.columns}
    is_text = table.source.kind.is_text
    found = tuple(field for field in table.schema.fields if is_text or _has_ddl(field.type) or field.name in wanted)
    return found if len({field.name.casefold() for field in found}) == len(found) else None


def fields_to_read(
    scan: Scan, format_: TableFormat, schema: Schema, partitions: Collection[str] = ()
) -> tuple[Field, ...]:
    """Returns the columns that the schema for Spark must have, in file order. Those of `partitions` always belong to
    it: Spark would infer their types.
    """
    if format_.is_text:
        # Columns of CSV are identified by position. Spark itself skips the columns of text that are not needed.
        return schema.fields
    wanted = {name for _, name in scan.columns} | set(partitions)
    # A scan without columns (COUNT(*)) still needs a schema that is not empty.
    return tuple(field for field in schema.fields if field.name in wanted) or schema.fields[:1]


def ddl_of(fields: Iterable[Field]) -> str:
    """Returns the columns in Spark's DDL."""
    return ", ".join(f"{quoted(field.name)} {field.type}" for field in fields)


def reader_options(source: TableSource) -> dict[str, str | bool]:
    """Returns all options of Spark's reader for the format of the files."""
    options = source.options
    if not source.kind.is_text:
        return {}
    patterns = {"dateFormat": options.date_format, "timestampFormat": options.timestamp_format}
    shared: dict[str, str | bool] = {
        **_mode(options),
        **{name: pattern for name, pattern in patterns.items() if pattern is not None},
    }
    if source.format is TableFormat.JSON:
        return {**shared, "multiLine": options.multi_line}
    shared["nullValue"] = options.null_value
    if options.encoding is not Encoding.UTF8:
        shared["encoding"] = options.encoding.value
    if source.format is TableFormat.XML:
        return {**shared, "rowTag": options.row_tag or "", "ignoreNamespace": True}
    return {**shared, **_csv_options(options)}


def _mode(options: ReadOptions) -> dict[str, str | bool]:
    if options.mode is ParseMode.FAILFAST:
        return {"mode": "FAILFAST"}
    return {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": options.column_name_of_corrupt_record,
        # CSV: a record is corrupt whichever columns the query reads.
        "columnPruning": False,
    }


def _csv_options(options: ReadOptions) -> dict[str, str | bool]:
    return {
        "header": options.has_header,
        # The names in a header must be the declared ones. By default, Spark ignores them.
        "enforceSchema": False,
        "sep": options.delimiter,
        "quote": options.quote,
        # By default, a quote in a quoted value is doubled, as in RFC 4180. Spark's default is a backslash.
        "escape": options.escape_character,
        **({} if options.comment is None else {"comment": options.comment}),
        **({"ignoreLeadingWhiteSpace": True} if options.ignore_leading_white_space else {}),
        **({"ignoreTrailingWhiteSpace": True} if options.ignore_trailing_white_space else {}),
        **({"multiLine": True, "maxCharsPerColumn": str(_MAX_CHARACTERS)} if options.multi_line else {}),
    }
