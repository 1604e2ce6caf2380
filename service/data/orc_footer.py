"""Checks the footer of an ORC file before Arrow parses it.

Arrow decompresses the footer without a limit, and calls itself for each level of nested types. A small file could end
the process, or take all of its memory.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa

from service.data.column_limits import ColumnLimitError, check_name, too_many_columns
from service.data.compression import decompressed_block, read_at_most
from service.sql.ddl import MAX_COLUMNS

MAX_FOOTER_BYTES = 32 << 20
"""Of footer and metadata as they are stored, and of the footer once it is decompressed."""

MAX_DEPTH = 64
"""Levels of nested types."""

_MAX_BLOCK_BYTES = 4 << 20
"""Decompressed bytes of a chunk. Writers use 64 KB to 1 MB; a reader allocates this much for each stream."""

_DEFAULT_BLOCK_BYTES = 256 << 10
_MAX_CHUNKS = 100_000
_MAX_PARTS = 300_000
"""Fields of the footer, and of the messages in it: a parser may allocate a hundred bytes for a field of two bytes."""

_MAX_MESSAGES = 100_000
"""Stripes and entries of metadata."""

_TAIL_BYTES = 256
_MAGIC = b"ORC"

# Numbers of fields in the postscript.
_FOOTER_LENGTH, _COMPRESSION, _BLOCK_BYTES, _METADATA_LENGTH = 1, 2, 3, 5
# Numbers of fields in the footer.
_STRIPES, _TYPES, _METADATA, _STATISTICS = 3, 4, 5, 7
# Numbers of fields in a type.
_SUBTYPES, _NAMES = 2, 3

_NONE, _ZLIB, _ZSTD = 0, 1, 5
_BLOCK_CODECS = {2: "snappy", 4: "lz4"}

class OrcFileError(Exception):
    """The file is not ORC, or its footer is damaged or too large."""


def check_footer(stream: BinaryIO) -> None:
    """Checks lengths, compression and types of the footer, and leaves the stream at the beginning of the file.

    Raises OrcFileError, ColumnLimitError and OSError.
    """
    # The last byte is the length of the postscript before it, which is never compressed.
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _TAIL_BYTES))
    tail = stream.read(_TAIL_BYTES)
    if not tail or tail[-1] >= len(tail) or _MAGIC not in tail[-1 - tail[-1] : -1]:
        raise OrcFileError("no postscript")
    script = {number: value for number, value in _fields(tail[-1 - tail[-1] : -1]) if isinstance(value, int)}
    length = script.get(_FOOTER_LENGTH, 0)
    if length + script.get(_METADATA_LENGTH, 0) > min(size - len(tail[-1 - tail[-1] :]), MAX_FOOTER_BYTES):
        raise OrcFileError("too large")
    stream.seek(size - 1 - tail[-1] - length)
    stored = stream.read(length)
    stream.seek(0)
    _check_types(_types(_decompressed(stored, script)))


def _decompressed(stored: bytes, script: dict[int, int]) -> bytes:
    kind, block_bytes = script.get(_COMPRESSION, _NONE), script.get(_BLOCK_BYTES, _DEFAULT_BLOCK_BYTES)
    if kind == _NONE:
        return stored
    if not 0 < block_bytes <= _MAX_BLOCK_BYTES:
        raise OrcFileError("blocks too large")
    parts: list[bytes] = []
    place = total = 0
    while place < len(stored):
        # Three bytes: the length, and in the lowest bit whether the chunk is not compressed.
        head = int.from_bytes(stored[place : place + 3], "little")
        place += 3
        chunk = stored[place : place + (head >> 1)]
        place += head >> 1
        part = chunk if head & 1 else _chunk(chunk, kind, block_bytes)
        total += len(part)
        if place > len(stored) or len(part) > block_bytes or total > MAX_FOOTER_BYTES or len(parts) >= _MAX_CHUNKS:
            raise OrcFileError("too large")
        parts.append(part)
    return b"".join(parts)


def _chunk(chunk: bytes, kind: int, most: int) -> bytes:
    """Returns a decompressed chunk, or more than `most` bytes of it: at most one more."""
    try:
        if kind == _ZLIB:
            return zlib.decompressobj(-15).decompress(chunk, most + 1)
        if kind == _ZSTD:
            return read_at_most(chunk, "zstd", most + 1)
        if kind in _BLOCK_CODECS:
            return decompressed_block(chunk, _BLOCK_CODECS[kind], most)
    except (zlib.error, pa.ArrowException, OSError, ValueError):
        raise OrcFileError("damaged or too large") from None
    raise OrcFileError("unknown compression")


def _types(footer: bytes) -> list[tuple[int, ...]]:
    """Returns the children of each type, in the order of the file."""
    types: list[tuple[int, ...]] = []
    parts = messages = 0
    for number, value in _fields(footer):
        parts += 1
        if isinstance(value, bytes) and number in {_STRIPES, _TYPES, _METADATA, _STATISTICS}:
            children: list[int] = []
            for inner, part in _fields(value):
                parts += 1
                if number == _TYPES:
                    _add_children(children, inner, part)
                if parts > _MAX_PARTS:
                    break
            if number == _TYPES:
                types.append(tuple(children))
            elif number != _STATISTICS:
                messages += 1
        if len(types) > MAX_COLUMNS:
            raise too_many_columns()
        if parts > _MAX_PARTS or messages > _MAX_MESSAGES:
            raise OrcFileError("too many parts")
    return types


def _add_children(children: list[int], number: int, value: int | bytes) -> None:
    if number == _SUBTYPES:
        if isinstance(value, int):
            children.append(value)
        else:
            if len(value) > MAX_COLUMNS * 4:
                raise too_many_columns()
            children.extend(_packed(value))
        if len(children) > MAX_COLUMNS:
            raise too_many_columns()
    elif number == _NAMES and isinstance(value, bytes):
        try:
            check_name(value.decode())
        except UnicodeDecodeError:
            raise OrcFileError("a name that is not UTF-8") from None


def _check_types(types: Sequence[tuple[int, ...]]) -> None:
    """Refuses types that contain themselves, that several types share, or that are nested too deeply."""
    if not types:
        raise OrcFileError("no types")
    depths: list[int | None] = [None] * len(types)
    for place, children in enumerate(types):
        depth = depths[place] or 0
        if depth >= MAX_DEPTH and children:
            raise ColumnLimitError(f"has types that are nested in more than {MAX_DEPTH} levels")
        for child in children:
            if not place < child < len(types) or depths[child] is not None:
                raise OrcFileError("types that are no tree")
            depths[child] = depth + 1


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the fields of a protobuf message: number and value. Raises OrcFileError."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key >> 32:
            # Other parsers use the lower bits only.
            raise OrcFileError("damaged")
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _varint(message, place)
        elif kind in {1, 5}:
            length = 8 if kind == 1 else 4
        else:
            raise OrcFileError("damaged")
        if length > len(message) - place:
            raise OrcFileError("damaged")
        yield key >> 3, message[place : place + length]
        place += length


def _packed(message: bytes) -> Iterator[int]:
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while place < len(message) and shift < 70:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise OrcFileError("damaged")
