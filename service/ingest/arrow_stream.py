"""Parses posted rows in the Arrow IPC streaming format.

Refuses what could expand a small body: compressed buffers, dictionaries, run-end encoding, views, and buffers that
several columns share. Compression is not visible through pyarrow, so `is_compressed` reads it from the metadata of each
message. That is a flatbuffer: a `Message` table contains its header's type and the header; a `RecordBatch` table has
`compression` as its fourth field, and a `DictionaryBatch` has a record batch as its second.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.ipc as ipc

from service.contract.errors import InvalidRowsError
from service.ingest.columns import (
    BadValueError,
    bad_value,
    check_cells,
    describe,
    first_failing,
    first_false,
    invalid_rows,
    shown,
    unknown_column,
    within_years,
)
from service.results.columns import arrow_type
from service.sql.types.data_types import TEMPORAL, DataType, Schema, TypeName

_HEADER = 2
_DATA = 1
_COMPRESSION = 3
_SLACK = 128
"""Bytes that a column of a batch may count more than were sent: bits are rounded up, and offsets may be omitted."""
_FILE_MAGIC = b"ARROW1\0\0"
"""First bytes of Arrow's file format."""


def is_compressed(body: bytes) -> bool:
    """Whether any batch in the stream has compressed buffers. Raises ArrowInvalid if the body is no IPC stream."""
    reader = ipc.MessageReader.open_stream(pa.BufferReader(body))
    while True:
        try:
            message = reader.read_next_message()
        except StopIteration:
            return False
        if _has_compression(message.metadata.to_pybytes(), message.type):
            return True


def _has_compression(metadata: bytes, kind: str) -> bool:
    if kind not in {"record batch", "dictionary"}:
        return False
    try:
        (root,) = struct.unpack_from("<I", metadata)
        header = _table_at(metadata, root, _HEADER)
        if kind == "dictionary":
            header = None if header is None else _table_at(metadata, header, _DATA)
        return header is not None and _slot(metadata, header, _COMPRESSION) is not None
    except struct.error as error:
        raise pa.ArrowInvalid("a message ends too early") from error


def _slot(metadata: bytes, table: int, field: int) -> int | None:
    """Returns the position of the table's field; None if the table does not have it."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", metadata, vtable)
    at = 4 + 2 * field
    if at + 2 > size:
        return None
    (offset,) = struct.unpack_from("<H", metadata, vtable + at)
    return table + offset if offset else None


def _table_at(metadata: bytes, table: int, field: int) -> int | None:
    at = _slot(metadata, table, field)
    if at is None:
        return None
    (offset,) = struct.unpack_from("<I", metadata, at)
    return at + int(offset)


def read_arrow(body: bytes, schema: Schema) -> pa.Table:
    """Returns the rows of a body; missing columns are NULL. Integers may have any width, if the values fit the column.

    Raises InvalidRowsError.
    """
    if not body:
        raise _malformed("it is empty")
    if body.startswith(_FILE_MAGIC):
        raise _malformed("it is an Arrow file (Feather): write the rows in the streaming format")
    try:
        if is_compressed(body):
            detail = "Compressed buffers are not accepted: write the Arrow stream without compression."
            raise invalid_rows("malformed_row", detail)
        source = pa.BufferReader(body)
        with ipc.open_stream(source) as reader:
            _check_columns(reader.schema, schema)
            batches = _batches(reader, len(body), len(schema.fields))
            table = pa.Table.from_batches(batches, reader.schema)
            if source.tell() != len(body):
                raise _malformed("there is data after its end")
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise _malformed(shown(str(error))) from None
    return _stored(table, schema)


def _batches(reader: pa.RecordBatchReader, sent: int, columns: int) -> list[pa.RecordBatch]:
    batches = []
    rows = held = 0
    for batch in reader:
        # Before sizes are computed: this finds invalid offsets.
        batch.validate(full=True)
        rows += batch.num_rows
        check_cells(rows, columns)
        held += batch.nbytes - _SLACK * batch.num_columns
        if held > sent:
            raise _malformed("its columns share buffers")
        batches.append(batch)
    return batches


def _check_columns(found: pa.Schema, schema: Schema) -> None:
    for index, field in enumerate(found):
        declared = next((one for one in schema.fields if one.name == field.name), None)
        if declared is None:
            raise unknown_column(field.name, schema.names)
        if field.name in found.names[:index]:
            detail = f"The column '{shown(field.name)}' occurs twice."
            raise invalid_rows("duplicate_key", detail, column=field.name)
        if not _is_accepted(field.type, declared.type):
            detail = (
                f"The column '{shown(field.name)}' has the Arrow type {shown(str(field.type))}; a {declared.type} "
                f"column requires {arrow_type(declared.type)}."
            )
            raise invalid_rows("invalid_value", detail, column=field.name)


def _is_accepted(found: pa.DataType, declared: DataType) -> bool:
    """Whether values of an Arrow type may be stored in the column, as far as the type determines it."""
    kinds = pa.types
    match declared.name:
        case TypeName.STRING:
            return bool(kinds.is_string(found) or kinds.is_large_string(found))
        case TypeName.BINARY:
            return bool(kinds.is_binary(found) or kinds.is_large_binary(found) or kinds.is_fixed_size_binary(found))
        case TypeName.DOUBLE:
            return bool(kinds.is_float64(found) or kinds.is_float32(found))
        case TypeName.DECIMAL:
            return bool(kinds.is_decimal128(found))
        case TypeName.TIMESTAMP:
            return bool(kinds.is_timestamp(found)) and found.tz is not None
        case TypeName.TIMESTAMP_NTZ:
            return bool(kinds.is_timestamp(found)) and found.tz is None
        case name if declared.is_integral:
            return bool(kinds.is_integer(found))
        case name:
            return bool(found == arrow_type(DataType(name)))


def _stored(table: pa.Table, schema: Schema) -> pa.Table:
    columns = []
    for field in schema.fields:
        target = arrow_type(field.type)
        if field.name not in table.schema.names:
            columns.append(pa.nulls(table.num_rows, target))
            continue
        try:
            columns.append(_cast(table.column(field.name).combine_chunks(), field.type, target))
        except BadValueError as error:
            raise bad_value(error, field.name, error.row + 1, unit="Row") from None
    return pa.table(columns, names=list(schema.names))


def _cast(column: pa.Array, type_: DataType, target: pa.DataType) -> pa.Array:
    try:
        values = column.cast(target)
    except pa.ArrowInvalid:
        row = first_failing(column, lambda part: part.cast(target))
        raise _bad_value(row, type_) from None
    if type_.name in TEMPORAL:
        outside = first_false(within_years(values))
        if outside is not None:
            raise _bad_value(outside, type_)
    return values


def _bad_value(row: int, type_: DataType) -> BadValueError:
    return BadValueError(row, f"is not {describe(type_)}")


def _malformed(reason: str) -> InvalidRowsError:
    return invalid_rows("malformed_row", f"The body is not a valid Arrow IPC stream: {reason}.")
