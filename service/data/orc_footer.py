"""Checks the footer of an ORC file before Arrow parses it, and its first stripe before Arrow decodes rows of it.

Arrow decompresses the footer without a limit, and calls itself for each level of nested types. It copies a text for
each row that has it. A small file could end the process, or take all of its memory.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from service.data.column_limits import ColumnLimitError, check_name, too_many_columns
from service.data.compression import decompressed_block, read_at_most
from service.sql.ddl import MAX_COLUMNS

MAX_FOOTER_BYTES = 32 << 20
"""Of footer and metadata as they are stored, and of a footer or a dictionary once it is decompressed."""

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

MAX_STRIPE_BYTES = 16 << 20
"""Of a stripe whose texts are measured."""

_TAIL_BYTES = 256
_MAGIC = b"ORC"

# Numbers of fields in the postscript.
_FOOTER_LENGTH, _COMPRESSION, _BLOCK_BYTES, _METADATA_LENGTH = 1, 2, 3, 5
# Numbers of fields in the footer.
_STRIPES, _TYPES, _METADATA, _STATISTICS = 3, 4, 5, 7
# Numbers of fields in a type.
_SUBTYPES, _NAMES = 2, 3
# Numbers of fields in the footer of a stripe, in its streams and its encodings, and the kinds that text has.
_STREAMS, _ENCODINGS = 1, 2
_KIND, _COLUMN, _LENGTH = 1, 2, 3
_DATA, _DICTIONARY = 1, 3
_DICTIONARIES = frozenset({1, 3})

_NONE, _ZLIB, _ZSTD = 0, 1, 5
_BLOCK_CODECS = {2: "snappy", 4: "lz4"}


class OrcFileError(Exception):
    """The file is not ORC, or its footer is damaged or too large."""


@dataclass(frozen=True)
class Footer:
    """What a footer says: the numbers of the postscript by field, the first stripe by field, and the id of each column
    that is not nested.
    """

    script: Mapping[int, int]
    stripe: Mapping[int, int]
    columns: Mapping[str, int]


@dataclass(frozen=True)
class TextSize:
    """Upper limits for columns in the first stripe, in bytes: of one value that is stored once for several rows, and of
    all values that are stored for each row.
    """

    of_shared_value: int
    of_all_others: int


def check_footer(stream: BinaryIO) -> Footer:
    """Checks lengths, compression and types of the footer, and leaves the stream at the beginning of the file.

    Raises OrcFileError, ColumnLimitError and OSError.
    """
    # The last byte is the length of the postscript before it, which is never compressed.
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _TAIL_BYTES))
    tail = stream.read(_TAIL_BYTES)
    if not tail or tail[-1] >= len(tail) or _MAGIC not in tail[-1 - tail[-1] : -1]:
        raise OrcFileError("no postscript")
    script = _numbers(tail[-1 - tail[-1] : -1])
    length = script.get(_FOOTER_LENGTH, 0)
    if length + script.get(_METADATA_LENGTH, 0) > min(size - len(tail[-1 - tail[-1] :]), MAX_FOOTER_BYTES):
        raise OrcFileError("too large")
    stream.seek(size - 1 - tail[-1] - length)
    stored = stream.read(length)
    stream.seek(0)
    footer = _decompressed(stored, script)
    types = _types(footer)
    _check_types(types)
    messages = {number: value for number, value in reversed(list(_fields(footer))) if isinstance(value, bytes)}
    names = [
        value.decode() for number, value in _fields(messages[_TYPES]) if number == _NAMES and isinstance(value, bytes)
    ]
    columns = {name: column for name, column in zip(names, types[0], strict=False) if not types[column]}
    return Footer(script, _numbers(messages.get(_STRIPES, b"")), columns)


def text_size(stream: BinaryIO, footer: Footer, columns: Collection[int]) -> TextSize:
    """Returns the limits for some columns, by id. Reads their texts in the first stripe, at most MAX_STRIPE_BYTES.

    Raises OrcFileError, also for a stripe that is larger, and OSError.
    """
    stripe = footer.stripe
    start, index, data, length = (stripe.get(field, 0) for field in (1, 2, 3, 4))
    if index + data > MAX_STRIPE_BYTES or length > MAX_FOOTER_BYTES:
        raise OrcFileError("a large stripe")
    stream.seek(start + index + data)
    streams: list[dict[int, int]] = []
    encodings: list[int] = []
    for number, value in _fields(_decompressed(stream.read(length), footer.script)):
        if len(streams) + len(encodings) > _MAX_MESSAGES:
            raise OrcFileError("too many parts")
        if number == _STREAMS and isinstance(value, bytes):
            streams.append(_numbers(value))
        elif number == _ENCODINGS and isinstance(value, bytes):
            encodings.append(_numbers(value).get(_KIND, 0))
    shared = others = 0
    for part in streams:
        kind, column, size = (part.get(field, 0) for field in (_KIND, _COLUMN, _LENGTH))
        is_shared = column < len(encodings) and encodings[column] in _DICTIONARIES
        if column in columns and kind == (_DICTIONARY if is_shared else _DATA):
            if not 0 <= size <= MAX_STRIPE_BYTES:
                raise OrcFileError("a large stripe")
            stream.seek(start)
            stored = stream.read(size)
            if is_shared:
                shared = max(shared, len(_decompressed(stored, footer.script)))
            else:
                others += _most_bytes(stored, footer.script)
        start += size
    stream.seek(0)
    return TextSize(shared, others)


def _most_bytes(stored: bytes, script: Mapping[int, int]) -> int:
    """Returns how many bytes a stream has at most once it is decompressed, by the number of its chunks."""
    if script.get(_COMPRESSION, _NONE) == _NONE:
        return len(stored)
    return sum(1 for _ in _chunks(stored)) * script.get(_BLOCK_BYTES, _DEFAULT_BLOCK_BYTES)


def _chunks(stored: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yields the chunks of a stream, and whether each is not compressed. Raises OrcFileError."""
    place = 0
    for _ in range(_MAX_CHUNKS):
        if place >= len(stored):
            return
        # Three bytes: the length, and in the lowest bit whether the chunk is not compressed.
        head = int.from_bytes(stored[place : place + 3], "little")
        place += 3 + (head >> 1)
        if place > len(stored):
            raise OrcFileError("damaged")
        yield stored[place - (head >> 1) : place], bool(head & 1)
    if place < len(stored):
        raise OrcFileError("too many chunks")


def _numbers(message: bytes) -> dict[int, int]:
    """Returns the fields of a message that are numbers."""
    return {number: value for number, value in _fields(message) if isinstance(value, int)}


def _decompressed(stored: bytes, script: Mapping[int, int]) -> bytes:
    """Returns the text of a stream. Raises OrcFileError for more than MAX_FOOTER_BYTES."""
    kind, block_bytes = script.get(_COMPRESSION, _NONE), script.get(_BLOCK_BYTES, _DEFAULT_BLOCK_BYTES)
    if kind == _NONE:
        return stored
    if not 0 < block_bytes <= _MAX_BLOCK_BYTES:
        raise OrcFileError("blocks too large")
    parts: list[bytes] = []
    total = 0
    for chunk, is_original in _chunks(stored):
        part = chunk if is_original else _chunk(chunk, kind, block_bytes)
        total += len(part)
        if len(part) > block_bytes or total > MAX_FOOTER_BYTES:
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
