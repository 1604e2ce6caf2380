"""Reads the columns of a table: of Parquet, ORC and Avro files from the files, of Delta tables from the log, and of
text files as declared; headers of CSV files are checked.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from service.contract.problems import SpecError
from service.contract.read_options import ParseMode, TableFormat
from service.contract.tables import TableSource
from service.data.avro_files import AvroFileError, columns_of, read_header
from service.data.column_limits import MAX_NAME, ColumnLimitError, is_valid_name
from service.data.compression import CorruptTextError, opened_text
from service.data.file_io import (
    DataFile,
    bytes_of,
    differing_breaks,
    first_values,
    for_each,
    local_path,
    opened,
    read_first_row,
    size_of,
    text_of,
)
from service.data.files import TableFiles, pointer_of, unreadable
from service.data.known_schemas import KnownSchemas, identity_of
from service.data.orc_files import orc_columns
from service.data.orc_footer import OrcFileError
from service.data.partitions import check_columns
from service.data.spread import spread
from service.data.text_heads import plain_text
from service.sql.ddl import MAX_COLUMNS, parse_schema
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    MAX_PRECISION,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    Field,
    Schema,
    TypeName,
    array,
    decimal,
    mapping,
    struct,
)

FOOTERS_MERGED = 10_000
"""The columns of at most this many files are merged (`merge_schema`)."""

FOOTERS_COMPARED = 64
"""The schemas of at most this many files, evenly spread and including the first and last, are compared."""

RATE_SCHEMA = Schema((Field("timestamp", TIMESTAMP), Field("value", BIGINT)))
"""The columns of a table with the format `rate`."""

_MAX_HEADER = 1 << 20
_INT96 = "INT96"
MAX_FOOTER = 32 << 20
"""In bytes. A footer is read whole, and takes about twenty times as much memory when parsed."""
_MAX_PARTS = 100_000
"""For every list in a footer: row groups, column chunks, and columns with their nested parts."""
_MAX_MESSAGE_NAMES_LENGTH = 2000
_TAIL_BYTES = 8
_footers = KnownSchemas()
_Reader = Callable[[DataFile, TableFiles, str], Schema]
"""Reads the columns of one file; the last argument is the pointer of errors."""
_SIMPLE_TYPES: dict[pa.DataType, DataType] = {
    pa.bool_(): BOOLEAN,
    pa.int8(): DataType(TypeName.TINYINT),
    pa.int16(): DataType(TypeName.SMALLINT),
    pa.int32(): INT,
    pa.int64(): BIGINT,
    # Spark widens unsigned integers to the next signed type.
    pa.uint8(): DataType(TypeName.SMALLINT),
    pa.uint16(): INT,
    pa.uint32(): BIGINT,
    pa.uint64(): decimal(20, 0),
    pa.float32(): FLOAT,
    pa.float64(): DOUBLE,
    pa.string(): STRING,
    pa.large_string(): STRING,
    pa.string_view(): STRING,
    pa.binary(): BINARY,
    pa.large_binary(): BINARY,
    pa.binary_view(): BINARY,
    pa.date32(): DATE,
    pa.date64(): DATE,
}


def read_schema(table: str, source: TableSource, files: TableFiles) -> Schema:
    """Returns the columns of `table` as Spark 4.3 reads them.

    Raises SpecError `unreadable_file`, `corrupt_file`, `schema_mismatch`, `invalid_schema`, `duplicate_column`,
    `line_breaks_differ`, and StoreUnavailableError. Partition columns come last.
    """
    if files.snapshot is not None:
        return files.snapshot.schema
    data = _with_corrupt_record(_data_schema(table, source, files), source)
    if source.partitions is None:
        return data
    declared = parse_schema(source.partitions, f"{pointer_of(table)}/partitions", is_atomic=True)
    check_columns(declared, files.partitions, source.path, f"{pointer_of(table)}/partitions")
    return _with_partitions(data, declared, source, pointer_of(table))


def _with_corrupt_record(data: Schema, source: TableSource) -> Schema:
    """Returns the columns with that of corrupt records, which the declared schema may also have."""
    options = source.options
    if not source.kind.is_text or options.mode is not ParseMode.PERMISSIVE:
        return data
    name = options.column_name_of_corrupt_record
    return Schema((*without_column(data, name).fields, Field(name, STRING)))


def without_column(schema: Schema, name: str) -> Schema:
    """Returns the schema without a column, whose name Spark compares without case."""
    return Schema(tuple(field for field in schema.fields if field.name.casefold() != name.casefold()))


def _with_partitions(data: Schema, declared: Schema, source: TableSource, at: str) -> Schema:
    """Returns the columns of the files, without those of the directories, which come last. Spark reads the values in
    the directories if a file has a column of the same name.
    """
    names = {field.name.casefold() for field in declared.fields}
    fields = tuple(field for field in data.fields if field.name.casefold() not in names)
    if len(fields) < len(data.fields) and source.format is TableFormat.CSV:
        detail = f"A column of the CSV files has the name of a partition column: {format_names(declared.names)}."
        raise SpecError.of("duplicate_column", f"{detail} Rename the directories.", pointer=f"{at}/path")
    return Schema((*fields, *declared.fields))


def _data_schema(table: str, source: TableSource, files: TableFiles) -> Schema:
    at = pointer_of(table)
    read = _READERS.get(source.kind)
    if read is not None:
        return (_merged if source.options.merge_schema else _compared)(files, f"{at}/path", read)
    has_atoms = source.format is TableFormat.CSV
    schema = parse_schema(source.declared_schema or "", f"{at}/schema", is_atomic=has_atoms)
    if source.options.mode is ParseMode.PERMISSIVE:
        schema = without_column(schema, source.options.column_name_of_corrupt_record)
    if source.format is TableFormat.CSV and (source.options.has_header or source.options.multi_line):
        _check_csv(source, files, schema, f"{at}/path")
    return schema


def _name(file: DataFile, files: TableFiles) -> str:
    base, path = files.directory_or_file, file if isinstance(file, Path) else Path(file.path)
    if not isinstance(base, Path):
        base = Path(base.path)
    return str(path.relative_to(base)) if base in path.parents else path.name


def _compared(files: TableFiles, pointer: str, read: _Reader) -> Schema:
    """Returns the columns of the first file, if those of the others are the same."""
    chosen = spread(files.files, FOOTERS_COMPARED)
    footers = for_each(chosen, lambda file: read(file, files, pointer))
    first = next(footers)
    for file, footer in zip(chosen[1:], footers, strict=True):
        _compare(first, footer, _name(chosen[0], files), _name(file, files), pointer)
    return _without_duplicates(first, pointer)


def _merged(files: TableFiles, pointer: str, read: _Reader) -> Schema:
    """Returns the columns of all files, with the wider type of each."""
    if len(files.files) > FOOTERS_MERGED:
        detail = f"Columns of at most {FOOTERS_MERGED} files can be merged; the table has {len(files.files)}."
        raise _unsupported(detail, pointer)
    merged: dict[str, tuple[Field, str]] = {}
    footers = for_each(files.files, lambda file: read(file, files, pointer))
    for file, footer in zip(files.files, footers, strict=True):
        for field in footer.fields:
            known, other = merged.get(field.name, (field, _name(file, files)))
            wider = wider_type(known.type, field.type)
            if wider is None:
                raise _mismatch(
                    f"The column {field.name} is {known.type} in '{other}' and {field.type} in '{_name(file, files)}': "
                    "no type of Spark has the values of both.",
                    pointer,
                )
            merged[field.name] = (Field(field.name, wider), other)
    return _without_duplicates(Schema(tuple(field for field, _ in merged.values())), pointer)


def wider_type(one: DataType, other: DataType) -> DataType | None:
    """Returns the type as which columns of both types are read without a loss; None if there is none."""
    if one == other:
        return one
    if one.is_integral and other.is_integral:
        return max(one, other, key=lambda type_: _INTEGRAL_ORDER.index(type_.name))
    if {one, other} == {FLOAT, DOUBLE}:
        return DOUBLE
    if one.name is TypeName.DECIMAL and other.name is TypeName.DECIMAL:
        scale = max(one.scale or 0, other.scale or 0)
        digits = max((type_.precision or 0) - (type_.scale or 0) for type_ in (one, other))
        return decimal(digits + scale, scale) if digits + scale <= MAX_PRECISION else None
    return None


_MERGE_HINT = " Set the option 'merge_schema' to read the columns of all files."
_INTEGRAL_ORDER = (TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT)


def _without_duplicates(first: Schema, pointer: str) -> Schema:
    seen: dict[str, str] = {}
    for field in first.fields:
        folded = field.name.casefold()
        if folded in seen:
            raise SpecError.of(
                "duplicate_column",
                f"The columns {seen[folded]} and {field.name} differ only in case, which Spark cannot read.",
                pointer=pointer,
            )
        seen[folded] = field.name
    return first


def _footer(file: DataFile, files: TableFiles, pointer: str) -> Schema:
    name = _name(file, files)
    try:
        with opened(file) as stream:
            identity = None if local_path(file) is None else identity_of(stream)
            known = _footers.find(identity)
            if known is not None:
                return known
            _check_length(stream, name, size_of(file), pointer)
            with pq.ParquetFile(stream, thrift_container_size_limit=_MAX_PARTS) as parquet:
                metadata = parquet.metadata
        arrow = metadata.schema.to_arrow_schema()
    except OSError as error:
        # Arrow raises OSErrors without an errno for invalid files.
        if error.errno is not None:
            raise unreadable(name, error, pointer) from None
        raise _corrupt(name, pointer) from None
    except (pa.ArrowException, ValueError, RuntimeError):
        raise _corrupt(name, pointer) from None
    leaves = _leaves(metadata.schema, name, pointer)
    # The leaves of nested columns have longer paths, such as `tags.list.element`.
    instants = {leaf.path.split(".")[0] for leaf in leaves if leaf.physical_type == _INT96}
    physical = dict.fromkeys(instants, _INT96) | {leaf.path: leaf.physical_type for leaf in leaves}
    fields = tuple(Field(field.name, data_type(field.type, physical.get(field.name, ""))) for field in arrow)
    _footers.keep(identity, Schema(fields))
    return Schema(fields)


def _orc(file: DataFile, files: TableFiles, pointer: str) -> Schema:
    name = _name(file, files)
    try:
        with opened(file) as stream:
            return orc_columns(stream, data_type)
    except OrcFileError:
        raise SpecError.of(
            "corrupt_file", f"'{name}' is not an ORC file, or it is truncated or damaged.", pointer=pointer
        ) from None
    except ColumnLimitError as error:
        raise _unsupported(f"'{name}' {error}.", pointer) from None
    except OSError as error:
        raise unreadable(name, error, pointer) from None


def _avro(file: DataFile, files: TableFiles, pointer: str) -> Schema:
    name = _name(file, files)
    if local_path(file) is None:
        raise _unsupported(f"'{name}' is in a store; Avro files are read from local directories only.", pointer)
    try:
        with opened(file) as stream:
            return columns_of(read_header(stream))
    except AvroFileError as error:
        raise SpecError.of("corrupt_file", f"'{name}' {error}.", pointer=pointer) from None
    except ColumnLimitError as error:
        raise _unsupported(f"'{name}' {error}.", pointer) from None
    except OSError as error:
        raise unreadable(name, error, pointer) from None


_READERS: Mapping[TableFormat, _Reader] = {
    TableFormat.PARQUET: _footer,
    TableFormat.ORC: _orc,
    TableFormat.AVRO: _avro,
}


def _leaves(schema: pq.ParquetSchema, name: str, pointer: str) -> list[pq.ColumnSchema]:
    """Returns the primitive columns, including those inside nested ones, after checking their number and names."""
    if len(schema) > MAX_COLUMNS:
        raise _too_large(f"'{name}' has {len(schema)} columns; at most {MAX_COLUMNS}", pointer)
    leaves = [schema.column(index) for index in range(len(schema))]
    if not leaves:
        raise _unsupported(f"'{name}' has no column.", pointer)
    if not all(is_valid_name(leaf.path) for leaf in leaves):
        what = f"a name with the character U+0000, or with more than {MAX_NAME} characters"
        raise _unsupported(f"A column of '{name}' has {what}. Rename it.", pointer)
    return leaves


def _check_length(stream: BinaryIO, name: str, size: int, pointer: str) -> None:
    """Checks the end of the file, and the length of the footer, before it is read."""
    if size > MAX_FOOTER:
        stream.seek(-_TAIL_BYTES, os.SEEK_END)
        tail = stream.read(_TAIL_BYTES)
        stream.seek(0)
        if not tail.endswith((b"PAR1", b"PARE")):
            raise _corrupt(name, pointer)
        length = int.from_bytes(tail[:4], "little")
        if length > MAX_FOOTER:
            raise _too_large(f"The footer of '{name}' has {length >> 20} MB; at most {MAX_FOOTER >> 20}", pointer)


def _too_large(what: str, pointer: str) -> SpecError:
    return _unsupported(f"{what}. Write the table with fewer columns.", pointer)


def _unsupported(detail: str, pointer: str) -> SpecError:
    return SpecError.of("unsupported_construct", detail, pointer=pointer)


def _corrupt(name: str, pointer: str) -> SpecError:
    return SpecError.of(
        "corrupt_file", f"'{name}' is not a Parquet file, or it is truncated or damaged.", pointer=pointer
    )


def _compare(first: Schema, other: Schema, first_name: str, other_name: str, pointer: str) -> None:
    known, found = ({field.name: field.type for field in schema.fields} for schema in (first, other))
    for name, type_ in known.items():
        if name not in found:
            raise _mismatch(
                f"The column {name} exists in '{first_name}' but not in '{other_name}'.{_MERGE_HINT}", pointer
            )
        if found[name] != type_:
            # Without a common type, merging fails too.
            way_out = "" if wider_type(type_, found[name]) is None else _MERGE_HINT
            raise _mismatch(
                f"The column {name} is {type_} in '{first_name}' and {found[name]} in '{other_name}'.{way_out}", pointer
            )
    for name in found:
        if name not in known:
            raise _mismatch(
                f"The column {name} exists in '{other_name}' but not in '{first_name}'.{_MERGE_HINT}", pointer
            )


def format_names(names: Sequence[str]) -> str:
    """Formats the first of these names for a message."""
    return ", ".join(names[:50])[:_MAX_MESSAGE_NAMES_LENGTH]


def _mismatch(detail: str, pointer: str) -> SpecError:
    return SpecError.of("schema_mismatch", detail, pointer=pointer)


def data_type(arrow: pa.DataType, physical: str = "") -> DataType:
    """Returns the type as which Spark 4.3 reads a Parquet column of Arrow type `arrow`.

    `physical` is the Parquet type. INT96 timestamps are instants although Arrow shows them without a zone; the physical
    type of a nested column is INT96 if any of its parts is. Nested columns that are not arrays, structs or maps, times
    of day, and timestamps in nanoseconds are OTHER.
    """
    plain = _SIMPLE_TYPES.get(arrow)
    if plain is not None:
        return plain
    if pa.types.is_decimal(arrow) and arrow.precision <= 38:
        return decimal(arrow.precision, arrow.scale)
    if pa.types.is_timestamp(arrow) and physical == _INT96:
        return TIMESTAMP
    if pa.types.is_timestamp(arrow) and arrow.unit in {"ms", "us"}:
        return TIMESTAMP if arrow.tz is not None else TIMESTAMP_NTZ
    if pa.types.is_dictionary(arrow):
        return data_type(arrow.value_type, physical)
    if pa.types.is_fixed_size_binary(arrow):
        return BINARY
    return _nested(arrow, physical) or DataType(TypeName.OTHER, text=str(arrow).upper())


def _nested(arrow: pa.DataType, physical: str) -> DataType | None:
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow) or pa.types.is_fixed_size_list(arrow):
        return array(data_type(arrow.value_type, physical))
    if pa.types.is_struct(arrow):
        return struct([Field(field.name, data_type(field.type, physical)) for field in arrow])
    if pa.types.is_map(arrow):
        return mapping(data_type(arrow.key_type, physical), data_type(arrow.item_type, physical))
    return None


def _check_csv(source: TableSource, files: TableFiles, schema: Schema, pointer: str) -> None:
    """Checks header and line breaks. With `multi_line`, several files are read, since their line breaks may differ."""
    options = source.options
    chosen = spread(files.files, FOOTERS_COMPARED) if options.multi_line else files.files[:1]
    for index, head in enumerate(for_each(chosen, lambda file: _first_row(file, source, files, pointer))):
        name = _name(chosen[index], files)
        if options.multi_line and differing_breaks(head, options):
            raise SpecError.of(
                "line_breaks_differ",
                f"A value in the first row of '{name}' contains another line break than the one after the row. Spark "
                "would use it for all rows. Use the same line break for both, or remove it from the value.",
                pointer=pointer,
            )
        if options.has_header and index == 0:
            _check_header(name, head, source, schema, pointer)


def _first_row(file: DataFile, source: TableSource, files: TableFiles, pointer: str) -> str:
    options = source.options
    try:
        with opened_text(file) as stream:
            if options.comment is None:
                row = read_first_row(stream, options, _MAX_HEADER)
                return text_of(plain_text(bytes_of(row), options))
            return text_of(plain_text(stream.read(_MAX_HEADER), options))
    except CorruptTextError:
        raise SpecError.of(
            "corrupt_file",
            f"'{_name(file, files)}' is damaged, or not compressed as its name says.",
            pointer=pointer,
        ) from None
    except OSError as error:
        raise unreadable(_name(file, files), error, pointer) from None


def _check_header(name: str, head: str, source: TableSource, schema: Schema, pointer: str) -> None:
    try:
        names = first_values(head, source.options)
    except UnicodeDecodeError:
        raise SpecError.of("corrupt_file", f"'{name}' is not UTF-8 text.", pointer=pointer) from None
    except csv.Error:
        raise _mismatch(f"The header of '{name}' cannot be read.", pointer) from None
    if [own.casefold() for own in names] != [declared.casefold() for declared in schema.names]:
        raise _mismatch(
            f"The header of '{name}' is {format_names(names) or 'empty'}; the schema declares "
            f"{format_names(schema.names)}.",
            pointer,
        )
