"""Reads the columns of ORC files, as Spark reads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import BinaryIO

import pyarrow as pa
from pyarrow import orc

from service.sql.types.data_types import TIMESTAMP, TIMESTAMP_NTZ, DataType, Field, Schema

MAX_FOOTER_BYTES = 32 << 20
_SPARK_TYPE = b"spark.sql.catalyst.type"
_TAIL_BYTES = 256
_MAGIC = b"ORC"


class OrcFileError(Exception):
    """The file is not ORC, or its footer is damaged or too large."""


def orc_columns(stream: BinaryIO, data_type: Callable[[pa.DataType], DataType]) -> Schema:
    """Returns the columns. `data_type` converts Arrow's type of a column. Raises OrcFileError and OSError."""
    _check_footer(stream)
    try:
        schema = orc.ORCFile(stream).schema
    except (pa.ArrowException, ValueError, RuntimeError) as error:
        raise OrcFileError("damaged") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise OrcFileError("damaged") from error
    return Schema(tuple(Field(field.name, _type(field, data_type)) for field in schema))


def _type(field: pa.Field, data_type: Callable[[pa.DataType], DataType]) -> DataType:
    # Spark stores times without a zone as numbers, with the type as an attribute.
    if (field.metadata or {}).get(_SPARK_TYPE) == b"timestamp_ntz":
        return TIMESTAMP_NTZ
    return TIMESTAMP if pa.types.is_timestamp(field.type) else data_type(field.type)


def _check_footer(stream: BinaryIO) -> None:
    """Checks the declared lengths before a parser allocates memory: the last byte is the length of the postscript,
    whose first and fifth field are those of footer and metadata.
    """
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(0, size - _TAIL_BYTES))
    tail = stream.read(_TAIL_BYTES)
    stream.seek(0)
    if not tail or tail[-1] >= len(tail) or _MAGIC not in tail[-1 - tail[-1] : -1]:
        raise OrcFileError("no postscript")
    lengths = _varints(tail[-1 - tail[-1] : -1])
    if lengths.get(1, 0) + lengths.get(5, 0) > min(size, MAX_FOOTER_BYTES):
        raise OrcFileError("too large")


def _varints(message: bytes) -> dict[int, int]:
    """Returns the integer fields of a protobuf message by their numbers."""
    found: dict[int, int] = {}
    place = 0

    def varint() -> int:
        nonlocal place
        value = shift = 0
        while place < len(message):
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
        raise OrcFileError("no postscript")

    while place < len(message):
        key = varint()
        if key & 7 == 0:
            found[key >> 3] = varint()
        elif key & 7 == 2:
            # `place += varint()` would add to the place before the call.
            length = varint()
            place += length
        else:
            raise OrcFileError("no postscript")
    return found
