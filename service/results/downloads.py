"""A whole result as a stream of bytes: CSV, Arrow or Parquet, one batch of rows in memory at a time."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from service.results.csv_formulas import name_without_formula, without_formulas
from service.results.files import ResultFiles
from service.results.json_values import json_value

CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"

_EXACT_IN_CSV = 6
"""Arrow writes decimals of a larger scale in scientific notation when they are small."""


def as_csv(result: ResultFiles, *, formulas: bool = False) -> Iterator[bytes]:
    """A header, then a line a row: NULL empty, text in quotes, BINARY as base64, nested values as JSON.

    With `formulas`, texts stay as they are that a spreadsheet would take for formulas.
    """
    named = [field.name if formulas else name_without_formula(field.name) for field in result.schema]
    types = [_csv_type(field.type) for field in result.schema]
    schema = pa.schema(list(zip(named, types, strict=True)))
    yield from _stream(
        result,
        lambda sink: pa_csv.CSVWriter(sink, schema),
        lambda batch: _csv_batch(batch, schema, formulas=formulas),
    )


def as_arrow(result: ResultFiles) -> Iterator[bytes]:
    """The Arrow IPC streaming format."""
    yield from _stream(result, lambda sink: pa.ipc.new_stream(sink, result.schema), lambda batch: batch)


def as_parquet(result: ResultFiles) -> Iterator[bytes]:
    """One Parquet file."""
    yield from _stream(result, lambda sink: _ParquetSink(pq.ParquetWriter(sink, result.schema)), lambda batch: batch)


WRITERS: dict[str, tuple[str, Callable[[ResultFiles], Iterator[bytes]]]] = {
    CSV: ("csv", as_csv),
    ARROW: ("arrow", as_arrow),
    PARQUET: ("parquet", as_parquet),
}
"""By media type: the ending of the file's name, and what writes it."""


class _ParquetSink:
    """Gives Parquet's writer the methods of the other two."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _Drain(io.RawIOBase):
    """A file that only holds what has not been sent yet."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._held.append(bytes(data))
        self._position += len(self._held[-1])
        return len(self._held[-1])

    def tell(self) -> int:
        return self._position

    def drain(self) -> bytes:
        """What was written since the last call."""
        data = b"".join(self._held)
        self._held.clear()
        return data


def _stream(
    result: ResultFiles,
    open_writer: Callable[[pa.NativeFile], Any],
    prepare: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> Iterator[bytes]:
    drain = _Drain()
    with pa.PythonFile(drain, mode="w") as sink:
        writer = open_writer(sink)
        try:
            for batch in result.batches():
                writer.write_batch(prepare(batch))
                if data := drain.drain():
                    yield data
        finally:
            # Before its file is, also where a file is damaged or the client has gone.
            writer.close()
        sink.flush()
        yield drain.drain()


def _csv_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return kind if kind.scale <= _EXACT_IN_CSV else pa.string()
    as_text = pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)
    return pa.string() if as_text or pa.types.is_null(kind) else kind


def _csv_batch(batch: pa.RecordBatch, schema: pa.Schema, *, formulas: bool) -> pa.RecordBatch:
    columns = [
        _csv_column(column, field.type, formulas=formulas) for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _csv_column(column: pa.Array, kind: pa.DataType, *, formulas: bool) -> pa.Array:
    if column.type != kind:
        return pa.array([_csv_text(value) for value in column.to_pylist()], pa.string())
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return without_formulas(column) if is_text and not formulas else column


def _csv_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
