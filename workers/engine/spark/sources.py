"""Tables as DataFrames whose columns are called `alias.column`.

Files are passed one by one, with the schema that was checked at submission: Spark infers nothing, follows no glob
pattern and sees no option but those of `ReadOptions`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from service.contract.job import ReadOptions, TableFormat, TableSource
from service.contract.problems import SpecError
from service.data.file_io import DataFile, UriFile
from service.data.files import TableFiles
from service.sql.expressions.scalar import quoted
from service.sql.types.data_types import Field, Schema, TypeName
from workers.engine.plan.nodes import Node, Scan, inputs_of

_MAX_CHARACTERS = 1 << 17
"""Of a value that may hold line breaks: a quote that is never closed would take in the rest of its file. The parser of
each file sets so much aside at once: eight times as much doubled what small files cost in garbage collection."""


@dataclass(frozen=True)
class TableInput:
    """A table of the job as found on disk: where it was said to be, its files and their schema."""

    source: TableSource
    files: TableFiles
    schema: Schema


def scans_of(node: Node) -> tuple[Scan, ...]:
    """One scan an alias, in order of appearance, with every column that any scan of the alias reads.

    A rewrite may read a table twice under its one alias, with fewer columns here than there.
    """
    merged: dict[str, Scan] = {}
    for scan in _scans(node):
        known = merged.get(scan.alias)
        columns = dict.fromkeys((*(known.columns if known else ()), *scan.columns))
        merged[scan.alias] = Scan(scan.table, scan.alias, tuple(columns))
    return tuple(merged.values())


def _scans(node: Node) -> Iterable[Scan]:
    if isinstance(node, Scan):
        yield node
    for child in inputs_of(node):
        yield from _scans(child)


def read_scans(session: SparkSession, node: Node, tables: Mapping[str, TableInput]) -> dict[str, DataFrame]:
    """The DataFrames of a plan's scans, by alias. `tables` is by table name; no row is read yet.

    Spark is asked once for each table and set of columns, however many aliases the table has: each time it looks at all
    of its files.
    """
    read: dict[tuple[str, tuple[Field, ...]], DataFrame] = {}
    frames = {}
    for scan in scans_of(node):
        table = tables[scan.table]
        fields = fields_to_read(scan, table.source.format, table.schema)
        if (scan.table, fields) not in read:
            read[scan.table, fields] = _read(session, fields, table)
        frames[scan.alias] = _selected(read[scan.table, fields], scan)
    return frames


def read_scan(session: SparkSession, scan: Scan, table: TableInput) -> DataFrame:
    """The table under the scan's alias, with the scan's columns alone, in the scan's order.

    A text row that does not fit the declared schema fails the query that reads it. Raises SpecError
    `unreadable_file` for a file name that Spark cannot take.
    """
    return _selected(_read(session, fields_to_read(scan, table.source.format, table.schema), table), scan)


def _read(session: SparkSession, fields: tuple[Field, ...], table: TableInput) -> DataFrame:
    """The columns `fields` of the table's files, under their own names."""
    paths = [_spark_path(table.files.table, file) for file in table.files.files]
    reader = session.read.format(table.source.format.value).options(**reader_options(table.source))
    if _are_spelled(fields):
        reader = reader.schema(spelled(fields))
    return reader.load(paths)


def _selected(frame: DataFrame, scan: Scan) -> DataFrame:
    """The scan's columns, under the names that it emits, of the table's files."""
    # As texts: each Column would take several calls of the JVM.
    return frame.selectExpr(*(f"{quoted(name)} AS {quoted(field.name)}" for field, name in scan.columns))


def _spark_path(table: str, file: DataFile) -> str:
    path = file.path if isinstance(file, UriFile) else str(file)
    # Hadoop's paths read what stands before a colon as a scheme, escaped or not (HADOOP-14217).
    if ":" in path:
        raise SpecError.of(
            "unreadable_file",
            f"Spark cannot read '{path}' of table '{table}': rename it so that its path has no colon.",
            pointer=f"/tables/{table}",
        )
    # With its scheme: the file system that Hadoop's configuration names by default may be another one. What follows
    # is taken literally, percent signs too.
    uri = file.uri if isinstance(file, UriFile) else f"file://{path}"
    # File names are names: a bracket or an asterisk in one is no pattern.
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", uri)


def fields_to_read(scan: Scan, format_: TableFormat, schema: Schema) -> tuple[Field, ...]:
    """The columns of the files that Spark must know of, in file order."""
    if format_ is not TableFormat.PARQUET:
        # The columns of a CSV file have only their positions, and Spark prunes text by itself.
        return schema.fields
    wanted = {name for _, name in scan.columns}
    # A scan of no column (COUNT(*)) still needs a schema that is not empty.
    return tuple(field for field in schema.fields if field.name in wanted) or schema.fields[:1]


def spelled(fields: Iterable[Field]) -> str:
    """The columns in Spark's DDL."""
    return ", ".join(f"{quoted(field.name)} {field.type}" for field in fields)


def _are_spelled(fields: tuple[Field, ...]) -> bool:
    """Whether every type has a name in Spark's DDL; nested columns of Parquet are left to Spark to find out."""
    return all(field.type.name is not TypeName.OTHER for field in fields)


def reader_options(source: TableSource) -> dict[str, str | bool]:
    """What Spark's reader is told of the files' format, and nothing else."""
    options: dict[str, str | bool] = {}
    if source.format is TableFormat.CSV:
        options |= _csv_options(source.options)
    if source.format is TableFormat.JSON:
        options |= {"mode": "FAILFAST", "multiLine": source.options.multi_line}
    return options


def _csv_options(options: ReadOptions) -> dict[str, str | bool]:
    return {
        "mode": "FAILFAST",
        "header": options.header,
        # Names in a header must be those declared; Spark's default is to ignore them.
        "enforceSchema": False,
        "sep": options.delimiter,
        "quote": options.quote,
        # A quote inside quotes is doubled, as RFC 4180 has it; Spark's default is a backslash.
        "escape": options.quote,
        "nullValue": options.null_value,
        **({"multiLine": True, "maxCharsPerColumn": str(_MAX_CHARACTERS)} if options.multi_line else {}),
    }
