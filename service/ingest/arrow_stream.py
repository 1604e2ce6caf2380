"""The messages of an Arrow IPC stream, looked into for the one thing that pyarrow does not tell: are they compressed.

A message's metadata is a flatbuffer. Its `Message` table holds the kind of its header and the header; a `RecordBatch`
table has its `compression` in the fourth place, and a `DictionaryBatch` holds a record batch in its second.

Rows as an Arrow IPC stream.

What a few bytes could blow up is refused: compressed buffers, dictionaries, run-end encoding, views, and buffers that
several columns share.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.ipc as ipc

from service.contract.errors import InvalidRowsError
from service.ingest.columns import (
    BadValueError,
    arrow_type,
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
from service.sql.types.data_types import TEMPORAL, DataType, Schema, TypeName

_HEADER = 2
_DATA = 1
_COMPRESSION = 3


def is_compressed(body: bytes) -> bool:
    """Whether any batch in the stream has compressed buffers. Raises ArrowInvalid for what is no stream of messages."""
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
    """Where the table has the field; None where it has not."""
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


_SLACK = 128
"""Bytes that a column of a batch may count beyond those sent: bits are rounded up, offsets may be left out."""

_FILE = b"ARROW1\0\0"
"""What Arrow's other format, that of files, begins with."""


def read_arrow(body: bytes, schema: Schema) -> pa.Table:
    """The rows of a body; a column that it has not is NULL. Integers may be of any width that holds them.

    Raises InvalidRowsError.
    """
    if not body:
        raise _malformed("it is empty")
    if body.startswith(_FILE):
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
                raise _malformed("something follows its end")
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise _malformed(shown(str(error))) from None
    return _stored(table, schema)


def _batches(reader: pa.RecordBatchReader, sent: int, columns: int) -> list[pa.RecordBatch]:
    batches = []
    rows = held = 0
    for batch in reader:
        # Before anything is asked for its size: offsets that lead nowhere are found here.
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
            detail = f"The column '{shown(field.name)}' is there twice."
            raise invalid_rows("duplicate_key", detail, column=field.name)
        if not _is_taken(field.type, declared.type):
            detail = (
                f"The column '{shown(field.name)}' is {shown(str(field.type))} in Arrow's words; a {declared.type} "
                f"column takes {arrow_type(declared.type)}."
            )
            raise invalid_rows("invalid_value", detail, column=field.name)


def _is_taken(found: pa.DataType, declared: DataType) -> bool:
    """Whether values of an Arrow type may stand in the column, as far as the type tells."""
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
        raise _unfit(row, type_) from None
    if type_.name in TEMPORAL:
        outside = first_false(within_years(values))
        if outside is not None:
            raise _unfit(outside, type_)
    return values


def _unfit(row: int, type_: DataType) -> BadValueError:
    return BadValueError(row, f"is not {describe(type_)}")


def _malformed(reason: str) -> InvalidRowsError:
    return invalid_rows("malformed_row", f"The body is no Arrow IPC stream: {reason}.")
