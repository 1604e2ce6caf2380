"""The messages of an Arrow IPC stream, looked into for the one thing that pyarrow does not tell: are they compressed.

A message's metadata is a flatbuffer. Its `Message` table holds the kind of its header and the header; a `RecordBatch`
table has its `compression` in the fourth place, and a `DictionaryBatch` holds a record batch in its second.
"""

from __future__ import annotations

import struct

import pyarrow as pa
import pyarrow.ipc as ipc

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
