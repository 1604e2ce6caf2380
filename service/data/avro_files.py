"""Reads Avro files: their columns as Spark's own reader names them, and their rows in bounded blocks.

The distribution of Spark in Python's package has no reader for Avro. `fastavro` decodes the records; the blocks around
them are read here, since `fastavro` decompresses a block without a limit.
"""

from __future__ import annotations

import bz2
import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa

from service.data.avro_records import MAX_VALUES, TooManyValuesError, batches, has_collections
from service.data.column_limits import ColumnLimitError, check_name, too_many_columns
from service.data.compression import TooLongError, decompressed_block, read_at_most
from service.sql.ddl import MAX_COLUMNS
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
    array,
    decimal,
    mapping,
    struct,
)

MAX_HEADER_BYTES = 4 << 20
MAX_BLOCK_BYTES = 64 << 20
"""Bytes of a block, decompressed or not. Writers make blocks of 16 KB to 16 MB."""

_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
_MAX_DEPTH = 32
_JOINED_BYTES = 1 << 20
"""Small blocks are decoded together: the decoder parses the schema each time. A batch of records has about as much."""

_DECODING_ERRORS = (
    ArithmeticError,
    EOFError,
    LookupError,
    StopIteration,
    TypeError,
    ValueError,
    fastavro.schema.SchemaParseException,
)
_BLOCK_HEAD_BYTES = 18
_BATCH_ROWS = 8192

_SIMPLE = {
    "boolean": BOOLEAN,
    "int": INT,
    "long": BIGINT,
    "float": FLOAT,
    "double": DOUBLE,
    "bytes": BINARY,
    "string": STRING,
    "fixed": BINARY,
    "enum": STRING,
}
_LOGICAL = {
    ("int", "date"): DATE,
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("long", "local-timestamp-millis"): TIMESTAMP_NTZ,
    ("long", "local-timestamp-micros"): TIMESTAMP_NTZ,
    ("string", "uuid"): STRING,
}
_SMALLEST = {"float": 4, "double": 8}
"""Bytes of a value; one byte for other types, such as an empty string or array."""

_CODECS = frozenset({"null", "deflate", "snappy", "zstandard", "bzip2"})


class AvroFileError(Exception):
    """The file cannot be read. The message continues a sentence that begins with the file's name."""


@dataclass(frozen=True)
class AvroHeader:
    """The beginning of a file: the schema as JSON, the codec, and the mark after each block."""

    schema: Mapping[str, Any]
    codec: str
    sync: bytes


def read_header(stream: BinaryIO) -> AvroHeader:
    """Returns the header, and leaves the stream at the first block. Raises AvroFileError and OSError."""
    data = stream.read(MAX_HEADER_BYTES)
    head = io.BytesIO(data)
    if head.read(len(_MAGIC)) != _MAGIC:
        raise AvroFileError("is not an Avro file")
    try:
        metadata = _metadata(head)
        schema = json.loads(metadata["avro.schema"])
        codec = metadata.get("avro.codec", b"null").decode()
    except (EOFError, ValueError, KeyError, RecursionError):
        raise AvroFileError(f"has no valid header of at most {MAX_HEADER_BYTES >> 20} MB") from None
    sync = head.read(_SYNC_BYTES)
    if codec not in _CODECS:
        raise AvroFileError(f"is compressed with '{codec[:50]}', which is not read: use deflate, snappy or zstandard")
    if not isinstance(schema, dict) or schema.get("type") != "record" or len(sync) < _SYNC_BYTES:
        raise AvroFileError("does not contain records")
    stream.seek(head.seek(0, 1))
    return AvroHeader(schema, codec, sync)


def _metadata(head: io.BytesIO) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    while count := _long(head):
        if count < 0:
            _long(head)
        for _ in range(abs(count)):
            name = _bytes(head).decode()
            found[name] = _bytes(head)
    return found


def _long(stream: BinaryIO) -> int:
    value = shift = 0
    while True:
        byte = stream.read(1)
        if not byte or shift > 63:
            raise EOFError
        value |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return (value >> 1) ^ -(value & 1)


def _bytes(stream: BinaryIO) -> bytes:
    length = _long(stream)
    data = stream.read(length) if 0 <= length <= MAX_HEADER_BYTES else b""
    if len(data) != length:
        raise EOFError
    return data


def columns_of(header: AvroHeader) -> Schema:
    """Returns the columns.

    Raises ColumnLimitError for too many columns and for their names, and AvroFileError for a type that is not read,
    with the name of its column.
    """
    return _read_columns(header)[0]


def _read_columns(header: AvroHeader) -> tuple[Schema, int]:
    """Returns the columns, and the bytes of the smallest record, at least 1."""
    given = header.schema.get("fields")
    if not isinstance(given, list) or not given:
        raise AvroFileError("has no fields")
    types = _Types()
    fields = []
    for field in given:
        try:
            fields.append(types.field(field, 0))
        except (KeyError, TypeError, ValueError):
            raise AvroFileError(f"has an invalid schema at the field '{_shown(field)}'") from None
        except AvroFileError as error:
            raise AvroFileError(f"has the field '{_shown(field)}', {error}") from None
    return Schema(tuple(fields)), types.smallest


def _shown(field: Any) -> str:
    return _printable(field.get("name", "?"), 100) if isinstance(field, Mapping) else "?"


def _printable(text: Any, most: int) -> str:
    # JSON may have surrogates without a partner, which no answer can contain.
    return str(text)[:most].encode("utf-8", "replace").decode()


class _Types:
    """Converts types. A name stands for the type that was declared under it, as often as it is used."""

    def __init__(self) -> None:
        self.smallest = 0
        """Bytes of the smallest record, from the fields so far."""
        self._named: dict[str, Any] = {}
        self._left = MAX_COLUMNS

    def field(self, given: Any, depth: int, *, is_present: bool = True) -> Field:
        """Returns a field. `is_present` if each record has its value.

        Raises as `columns_of`, and KeyError, TypeError and ValueError for an invalid schema.
        """
        name = given["name"]
        if not isinstance(name, str):
            raise TypeError("a name that is no text")
        return Field(check_name(name), self._type(given["type"], depth, is_present))

    def _type(self, given: Any, depth: int, is_present: bool) -> DataType:
        if depth > _MAX_DEPTH:
            raise AvroFileError("which is nested too deeply or contains itself")
        if isinstance(given, list):
            others = [one for one in given[:3] if one != "null"]
            if len(others) != 1 or len(given) > 2:
                raise AvroFileError("which may have values of several types")
            self.smallest += is_present
            return self._type(others[0], depth + 1, is_present=False)
        if isinstance(given, str):
            if given in self._named:
                return self._type(self._named[given], depth + 1, is_present)
            given = {"type": given}
        kind = given["type"]
        if isinstance(kind, list | dict):
            return self._type(kind, depth + 1, is_present)
        if "name" in given:
            if given["name"] in _SIMPLE or given["name"] == "null":
                # The decoder would read the simple type, which may have no bytes.
                raise ValueError("the name of a simple type")
            self._named[given["name"]] = given
            if given.get("namespace"):
                self._named[f"{given['namespace']}.{given['name']}"] = given
        elif kind in self._named:
            return self._type(self._named[kind], depth + 1, is_present)
        # Each use of a name is counted: a few records that name each other could stand for billions of columns.
        self._left -= 1
        if self._left < 0:
            raise too_many_columns()
        if kind == "record":
            fields = given["fields"]
            if not isinstance(fields, list):
                raise TypeError("fields that are no list")
            if not fields:
                raise AvroFileError("which is a record without fields")
            return struct([self.field(one, depth + 1, is_present=is_present) for one in fields])
        self.smallest += is_present * (_size(given["size"]) if kind == "fixed" else _SMALLEST.get(kind, 1))
        if kind == "array":
            return array(self._type(given["items"], depth + 1, is_present=False))
        if kind == "map":
            return mapping(STRING, self._type(given["values"], depth + 1, is_present=False))
        return _simple(kind, given)


def _simple(kind: str, given: Mapping[str, Any]) -> DataType:
    logical = given.get("logicalType")
    if kind == "fixed":
        _size(given["size"])
    if logical == "decimal" and kind in {"bytes", "fixed"}:
        precision, scale = given["precision"], given.get("scale", 0)
        if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision or precision < 1:
            raise ValueError("precision or scale")
        if precision <= MAX_PRECISION:
            return decimal(precision, scale)
    known = _LOGICAL.get((kind, logical)) if logical is not None else _SIMPLE.get(kind)
    if known is None:
        raise AvroFileError(f"whose type {_printable(logical or kind, 50)} is not read")
    return known


def _size(given: Any) -> int:
    """Returns the bytes of a type `fixed`. Values without bytes could be repeated without end."""
    if type(given) is not int or given < 1:
        raise ValueError("size")
    return given


@dataclass(frozen=True)
class Block:
    """Records of a file: their number, and their bytes, decompressed. `is_cut`: only the first bytes."""

    count: int
    data: bytes
    is_cut: bool = False


def blocks(stream: BinaryIO, header: AvroHeader, most: int = MAX_BLOCK_BYTES) -> Iterator[Block]:
    """Yields the blocks after the header, with about the first `most` bytes if the codec can decompress them alone.
    Raises AvroFileError and OSError.
    """
    try:
        _, smallest = _read_columns(header)
    except ColumnLimitError as error:
        raise AvroFileError(str(error)) from None
    while stream.read(1):
        stream.seek(-1, 1)
        try:
            count, size = _long(stream), _long(stream)
        except EOFError:
            raise AvroFileError("ends within a block") from None
        if not 0 <= size <= MAX_BLOCK_BYTES:
            raise AvroFileError(f"has a block of more than {MAX_BLOCK_BYTES >> 20} MB")
        stored, mark = stream.read(size), stream.read(_SYNC_BYTES)
        if len(stored) < size or mark != header.sync:
            raise AvroFileError("is damaged, or ends within a block")
        data = _decompressed(stored, header.codec, most)
        is_cut = most < MAX_BLOCK_BYTES and len(data) > most
        # Types without bytes are not read (`null`, records without fields, `fixed` with the size 0), so that the bytes
        # limit the records, and the items of an array.
        if not 0 <= count <= (MAX_BLOCK_BYTES if is_cut else len(data)) // smallest:
            raise AvroFileError("has a block that declares more records than its bytes can hold")
        yield Block(count, data, is_cut)


def _decompressed(stored: bytes, codec: str, most: int) -> bytes:
    """Returns at least the first bytes of a block: one more than `most`, if it has so many."""
    most += 1
    try:
        if codec == "null":
            data = stored[:most]
        elif codec == "deflate":
            data = zlib.decompressobj(-15).decompress(stored, most)
        elif codec == "bzip2":
            data = bz2.BZ2Decompressor().decompress(stored, most)
        elif codec == "zstandard":
            data = read_at_most(stored, "zstd", MAX_BLOCK_BYTES + 1)
        else:
            # A checksum of four bytes follows.
            data = decompressed_block(stored[:-4], "snappy", MAX_BLOCK_BYTES)
    except TooLongError:
        raise AvroFileError(f"has a block of more than {MAX_BLOCK_BYTES >> 20} MB") from None
    except (zlib.error, OSError, pa.ArrowException, EOFError, ValueError):
        raise AvroFileError("has a damaged block") from None
    if len(data) > MAX_BLOCK_BYTES:
        raise AvroFileError(f"has a block of more than {MAX_BLOCK_BYTES >> 20} MB")
    return bytes(data)


def records(stream: BinaryIO, header: AvroHeader) -> Iterator[list[dict[str, Any]]]:
    """Yields the records in lists of at most 8192, and of about a megabyte in the file.

    Raises AvroFileError and OSError. All fields are decoded: `fastavro` takes longer to skip some of them, for a schema
    with fewer.
    """
    for group in joined_blocks(stream, header):
        yield from decoded(group, header)


def joined_blocks(stream: BinaryIO, header: AvroHeader, most: int = MAX_BLOCK_BYTES) -> Iterator[list[Block]]:
    """Yields the blocks in groups of about a megabyte, or one larger block, for `decoded`. `most` is as in `blocks`.
    Raises AvroFileError and OSError.
    """
    waiting: list[Block] = []
    size = 0
    for block in blocks(stream, header, most):
        if waiting and len(block.data) > _JOINED_BYTES:
            yield waiting
            waiting, size = [], 0
        waiting.append(block)
        size += len(block.data) + _BLOCK_HEAD_BYTES
        if size >= _JOINED_BYTES:
            yield waiting
            waiting, size = [], 0
    if waiting:
        yield waiting


def decoded(joined: Sequence[Block], header: AvroHeader, at_once: int = _BATCH_ROWS) -> Iterator[list[dict[str, Any]]]:
    """Yields the records of some blocks, as `records` does, at most `at_once` in a list; later ones are not decoded
    yet. If a block is cut, the last ones are left out. Raises AvroFileError.
    """
    count, size = sum(block.count for block in joined), sum(len(block.data) for block in joined)
    most = max(1, min(at_once, count * _JOINED_BYTES // max(size, 1)))
    sizes: Iterable[int] = repeat(most)
    if len(joined) == 1 and size > _JOINED_BYTES and has_collections(header.schema):
        sizes = batches(joined[0].data, count, header.schema, most)
    try:
        rows = iter(fastavro.reader(_file_of(joined, header)))
        for rows_in_batch in sizes:
            batch = [row for row in islice(rows, rows_in_batch) if isinstance(row, dict)]
            if not batch:
                return
            yield batch
    except TooManyValuesError:
        raise AvroFileError(f"has a record with more than {MAX_VALUES} values, such as items of an array") from None
    except _DECODING_ERRORS as error:
        if any(block.is_cut for block in joined):
            return
        raise AvroFileError(f"has records that do not match its schema ({type(error).__name__})") from None


def _file_of(joined: Sequence[Block], header: AvroHeader) -> io.BytesIO:
    """Returns an Avro file with these blocks, which are not compressed."""
    data = io.BytesIO()
    data.write(_MAGIC)
    data.write(_encoded(1))
    for text in (b"avro.schema", json.dumps(header.schema).encode()):
        data.write(_encoded(len(text)) + text)
    data.write(_encoded(0) + header.sync)
    for block in joined:
        data.write(_encoded(block.count) + _encoded(len(block.data)) + block.data + header.sync)
    data.seek(0)
    return data


def _encoded(value: int) -> bytes:
    value <<= 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
