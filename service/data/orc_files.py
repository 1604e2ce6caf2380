"""Reads the columns of ORC files, as Spark reads them."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import BinaryIO

import pyarrow as pa
from pyarrow import orc

from service.data.column_limits import ColumnLimitError
from service.data.orc_footer import OrcFileError, check_footer, text_size
from service.sql.types.data_types import TIMESTAMP, TIMESTAMP_NTZ, DataType, Field, Schema

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 65_536
"""Rows that Arrow decodes at once. When its reader is closed, it decodes what it has read of the stripe; small batches
make that slower.
"""
_MAX_SHARED_BYTES = 16 << 20
"""Of a text that many rows may have. Arrow copies it for each of them."""
_MAX_TEXT_BYTES = 256 << 20
_ENOUGH_BYTES = 64 << 20
"""No more rows are decoded after these."""

_SPARK_TYPE = b"spark.sql.catalyst.type"


def open_orc(stream: BinaryIO) -> orc.ORCFile:
    """Returns the file after checking its footer. Raises OrcFileError, ColumnLimitError and OSError."""
    check_footer(stream)
    try:
        return orc.ORCFile(stream)
    except (pa.ArrowException, ValueError, RuntimeError) as error:
        raise OrcFileError("damaged") from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise OrcFileError("damaged") from error


def first_rows(stream: BinaryIO, columns: Sequence[str], most: int) -> pa.Table | None:
    """Returns at most `most` of the first rows; None if a column is nested, or if the rows may take too much memory.

    Raises OrcFileError, ColumnLimitError and OSError.
    """
    footer = check_footer(stream)
    if not footer.stripe or not footer.columns.keys() >= set(columns):
        return None
    text = text_size(stream, footer, {footer.columns[name] for name in columns})
    if text.of_shared_value > _MAX_SHARED_BYTES or text.of_all_others > _MAX_TEXT_BYTES:
        return None
    # Arrow decodes some batches before they are asked for, each of a number of rows.
    rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(text.of_shared_value, 1)))
    batches: list[pa.RecordBatch] = []
    count = size = 0
    try:
        # Imported here: it imports pandas where that is installed.
        from pyarrow import dataset

        readable = _StoppableFile(stream)
        fragment = dataset.OrcFileFormat().make_fragment(readable)
        scanner = fragment.scanner(columns=list(columns), batch_size=rows, batch_readahead=1, use_threads=False)
        reader = scanner.to_reader()
        try:
            for batch in reader:
                batches.append(batch)
                count += batch.num_rows
                size += batch.nbytes
                if count >= most or size > _ENOUGH_BYTES:
                    break
            return pa.Table.from_batches(batches, reader.schema).slice(0, most)
        finally:
            readable.stop()
            with suppress(OSError, pa.ArrowException):
                reader.close()
    except (pa.ArrowException, ValueError, RuntimeError) as error:
        raise OrcFileError("damaged") from error


class _StoppableFile(io.RawIOBase):
    """Reads a file until it is stopped. When its reader is closed, Arrow decodes the rest of a file; if a read fails,
    only what it has read of the stripe.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__()
        self._stream = stream
        self._is_stopped = False

    def stop(self) -> None:
        """Lets all further reads fail."""
        self._is_stopped = True

    def read(self, size: int = -1) -> bytes:
        """Returns the next bytes. Raises OSError once it is stopped."""
        if self._is_stopped:
            raise OSError("no more rows are needed")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves to another place."""
        return self._stream.seek(offset, whence)

    def readable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True


def orc_columns(stream: BinaryIO, data_type: Callable[[pa.DataType], DataType]) -> Schema:
    """Returns the columns. `data_type` converts Arrow's type of a column.

    Raises OrcFileError, ColumnLimitError and OSError.
    """
    file = open_orc(stream)
    try:
        fields = tuple(Field(field.name, _type(field, data_type)) for field in file.schema)
    except (pa.ArrowException, ValueError, RuntimeError, OSError) as error:
        # RecursionError is a RuntimeError.
        raise OrcFileError("damaged") from error
    if not fields:
        raise ColumnLimitError("has no column")
    return Schema(fields)


def _type(field: pa.Field, data_type: Callable[[pa.DataType], DataType]) -> DataType:
    # Spark stores times without a zone as numbers, with the type as an attribute.
    if (field.metadata or {}).get(_SPARK_TYPE) == b"timestamp_ntz":
        return TIMESTAMP_NTZ
    return TIMESTAMP if pa.types.is_timestamp(field.type) else data_type(field.type)
