"""Reads Avro files: their columns as Spark's own reader names them, and their rows in bounded blocks.

The distribution of Spark in Python's package has no reader for Avro. `fastavro` decodes the records; the blocks around
them are read here, since `fastavro` decompresses a block without a limit.
"""

from __future__ import annotations

import bz2
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import fastavro
import pyarrow as pa

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
"""Small blocks are decoded together: the decoder parses the schema each time."""

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
    """Returns the columns. Raises AvroFileError for a type that is not read, with the name of its column."""
    named: dict[str, Any] = {}
    fields = []
    for field in header.schema.get("fields", ()):
        try:
            fields.append(Field(str(field["name"]), _type(field["type"], named, 0)))
        except (KeyError, TypeError, ValueError):
            raise AvroFileError(f"has an invalid schema at the field '{_shown(field)}'") from None
        except AvroFileError as error:
            raise AvroFileError(f"has the field '{_shown(field)}', {error}") from None
    if not fields:
        raise AvroFileError("has no fields")
    return Schema(tuple(fields))


def _shown(field: Any) -> str:
    return str(field.get("name", "?"))[:100] if isinstance(field, Mapping) else "?"


def _type(given: Any, named: dict[str, Any], depth: int) -> DataType:
    if depth > _MAX_DEPTH:
        raise AvroFileError("which is nested too deeply or contains itself")
    if isinstance(given, list):
        others = [one for one in given if one != "null"]
        if len(others) != 1:
            raise AvroFileError("which may have values of several types")
        return _type(others[0], named, depth + 1)
    if isinstance(given, str):
        if given in named:
            return _type(named[given], named, depth + 1)
        given = {"type": given}
    kind, logical = given["type"], given.get("logicalType")
    if isinstance(kind, list | dict):
        return _type(kind, named, depth + 1)
    if "name" in given:
        named[given["name"]] = given
        if given.get("namespace"):
            named[f"{given['namespace']}.{given['name']}"] = given
    if logical == "decimal" and 1 <= given["precision"] <= MAX_PRECISION:
        return decimal(given["precision"], given.get("scale", 0))
    if kind == "array":
        return array(_type(given["items"], named, depth + 1))
    if kind == "map":
        return mapping(STRING, _type(given["values"], named, depth + 1))
    if kind == "record":
        fields = [Field(str(one["name"]), _type(one["type"], named, depth + 1)) for one in given["fields"]]
        if not fields:
            raise AvroFileError("which is a record without fields")
        return struct(fields)
    known = _LOGICAL.get((kind, logical)) if logical is not None else _SIMPLE.get(kind)
    if known is None:
        raise AvroFileError(f"whose type {str(logical or kind)[:50]} is not read")
    return known


@dataclass(frozen=True)
class Block:
    """Records of a file: their number, and their bytes, decompressed."""

    count: int
    data: bytes


def blocks(stream: BinaryIO, header: AvroHeader) -> Iterator[Block]:
    """Yields the blocks after the header. Raises AvroFileError and OSError."""
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
        data = _decompressed(stored, header.codec)
        # Every record has at least one byte, since types without bytes are not read.
        if not 0 <= count <= len(data):
            raise AvroFileError("has a block that declares more records than it has bytes")
        yield Block(count, data)


def _decompressed(stored: bytes, codec: str) -> bytes:
    most = MAX_BLOCK_BYTES + 1
    try:
        if codec == "null":
            data = stored
        elif codec == "deflate":
            data = zlib.decompressobj(-15).decompress(stored, most)
        elif codec == "bzip2":
            data = bz2.BZ2Decompressor().decompress(stored, most)
        elif codec == "zstandard":
            data = _read(pa.CompressedInputStream(pa.BufferReader(stored), "zstd"), most)
        else:
            # A checksum of four bytes follows.
            size = _snappy_length(stored)
            data = pa.Codec("snappy").decompress(stored[:-4], size, asbytes=True) if size < most else b" " * most
    except (zlib.error, OSError, pa.ArrowException, EOFError, ValueError):
        raise AvroFileError("has a damaged block") from None
    if len(data) > MAX_BLOCK_BYTES:
        raise AvroFileError(f"has a block of more than {MAX_BLOCK_BYTES >> 20} MB")
    return bytes(data)


def _read(stream: pa.NativeFile, most: int) -> bytes:
    parts: list[bytes] = []
    while most > 0 and (part := stream.read(min(most, 1 << 20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def _snappy_length(stored: bytes) -> int:
    length = 0
    for place, byte in enumerate(stored[:5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return length
    raise ValueError("no length")


def records(stream: BinaryIO, header: AvroHeader) -> Iterator[list[dict[str, Any]]]:
    """Yields the records in lists of about a megabyte each. Raises AvroFileError and OSError.

    All fields are decoded: `fastavro` takes longer to skip some of them, for a schema with fewer.
    """
    waiting: list[Block] = []
    for block in blocks(stream, header):
        waiting.append(block)
        if sum(len(one.data) for one in waiting) >= _JOINED_BYTES:
            yield _decoded(waiting, header)
            waiting = []
    if waiting:
        yield _decoded(waiting, header)


def _decoded(joined: Sequence[Block], header: AvroHeader) -> list[dict[str, Any]]:
    data = io.BytesIO()
    data.write(_MAGIC)
    data.write(_encoded(1))
    for text in (b"avro.schema", json.dumps(header.schema).encode()):
        data.write(_encoded(len(text)) + text)
    data.write(_encoded(0) + header.sync)
    for block in joined:
        data.write(_encoded(block.count) + _encoded(len(block.data)) + block.data + header.sync)
    data.seek(0)
    try:
        return [row for row in fastavro.reader(data) if isinstance(row, dict)]
    except (ValueError, EOFError, TypeError, KeyError, IndexError, OverflowError, StopIteration) as error:
        raise AvroFileError(f"has records that do not match its schema ({type(error).__name__})") from None


def _encoded(value: int) -> bytes:
    value <<= 1
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
