"""Reads the files of a published result from any row on, and writes them as CSV, Arrow or Parquet for a download.

Downloads hold one batch of rows in memory. In CSV, an apostrophe marks texts that a spreadsheet would run as formulas,
since the author of the data may not be the person who opens the file (OWASP, "CSV Injection"). Signed numbers are no
formulas and stay unchanged.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

from service.contract.errors import ResultMissingError
from service.results.columns import Column, columns_of, served_schema
from service.results.json_values import json_value

_BATCH_ROWS = 65_536
_BEGINS_AS_FORMULA = r"\A[=+\-@\t\r\n]"
_NUMBER = r"\A[+-]?[0-9]+([.,][0-9]+)*([eE][+-]?[0-9]+)?\z"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
PARQUET = "application/vnd.apache.parquet"
_MAX_PLAIN_SCALE = 6
"""The largest scale that Arrow never writes in scientific notation."""


@dataclass(frozen=True)
class ResultFiles:
    """Parquet files with one schema, in the order of their rows. `row_counts` is parallel to `paths`.

    `columns` and `schema` are the columns to read: all of them, or some.
    """

    paths: tuple[Path, ...]
    row_counts: tuple[int, ...]
    columns: tuple[Column, ...]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """Total number of rows."""
        return sum(self.row_counts)

    def batches(self, start: int = 0, batch_rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Yields all rows from `start` (counted from 0), in batches of at most `batch_rows`, in the served schema.

        Raises ResultMissingError if files have been removed or damaged.
        """
        for path, count in zip(self.paths, self.row_counts, strict=True):
            if start >= count:
                start -= count
                continue
            rows = _rows_of(path, start, batch_rows)
            while (batch := _next_batch(rows)) is not None:
                yield batch.select(self.schema.names).cast(self.schema)
            start = 0

    def page(self, start: int, limit: int) -> pa.Table:
        """Returns at most `limit` rows from `start`."""
        batches = []
        missing = limit
        for batch in self.batches(start, min(limit, _BATCH_ROWS)):
            batches.append(batch.slice(0, missing))
            missing -= batches[-1].num_rows
            if missing <= 0:
                break
        return pa.Table.from_batches(batches, self.schema)


def open_result(directory: Path) -> ResultFiles:
    """Opens the result in `directory`. Raises ResultMissingError if its files have been removed or damaged."""
    paths = tuple(sorted(directory.glob("*.parquet")))
    with _missing_files_as_errors():
        if not paths:
            raise FileNotFoundError(directory)
        schema = pq.read_schema(paths[0])
        row_counts = tuple(pq.read_metadata(path).num_rows for path in paths)
    return ResultFiles(paths, row_counts, columns_of(schema), served_schema(schema))


@contextmanager
def _missing_files_as_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultMissingError(
            "The job succeeded, but its result files are missing or damaged. Submit the job again."
        ) from error


def _next_batch(rows: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    with _missing_files_as_errors():
        return next(rows, None)


def _rows_of(path: Path, start: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        groups, skip = _groups_from(file.metadata, start)
        for batch in file.iter_batches(batch_size=batch_rows, row_groups=groups):
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            yield batch.slice(skip)
            skip = 0


def _groups_from(metadata: pq.FileMetaData, start: int) -> tuple[list[int], int]:
    """Returns the row groups from the one that contains row `start`, and the number of its rows before `start`."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if start < rows:
            return list(range(group, metadata.num_row_groups)), start
        start -= rows
    return [], 0


def without_formulas(column: pa.Array) -> pa.Array:
    """Returns a text column with an apostrophe before values that begin like a formula."""
    begins = pc.match_substring_regex(column, _BEGINS_AS_FORMULA)
    if not pc.any(begins).as_py():
        return column
    is_formula = pc.and_not(begins, pc.match_substring_regex(column, _NUMBER))
    marked = pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type))
    return pc.if_else(is_formula, marked, column)


def name_without_formula(name: str) -> str:
    """Returns the name of a column, with an apostrophe if it begins like a formula."""
    plain: str = without_formulas(pa.array([name], pa.string()))[0].as_py()
    return plain


def as_csv(result: ResultFiles, *, formulas: bool = False) -> Iterator[bytes]:
    """Yields CSV: a header, then one line for each row.

    NULL is empty, text is quoted, BINARY is base64, nested values are JSON.

    With `formulas`, texts that a spreadsheet would run as formulas are not marked.
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
    """Yields the Arrow IPC streaming format."""
    yield from _stream(result, lambda sink: pa.ipc.new_stream(sink, result.schema), lambda batch: batch)


def as_parquet(result: ResultFiles) -> Iterator[bytes]:
    """Yields one Parquet file."""
    yield from _stream(result, lambda sink: _ParquetSink(pq.ParquetWriter(sink, result.schema)), lambda batch: batch)


WRITERS: dict[str, tuple[str, Callable[[ResultFiles], Iterator[bytes]]]] = {
    CSV: ("csv", as_csv),
    ARROW: ("arrow", as_arrow),
    PARQUET: ("parquet", as_parquet),
}
"""By media type: the file name extension and the writer."""


class _ParquetSink:
    """Adapts the Parquet writer to the interface of the other two."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self._writer = writer

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)

    def close(self) -> None:
        self._writer.close()


class _SendBuffer(io.RawIOBase):
    """A file object that buffers only what has not been sent yet."""

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
        """Returns what has been written since the last call."""
        data = b"".join(self._held)
        self._held.clear()
        return data


def _stream(
    result: ResultFiles,
    open_writer: Callable[[pa.NativeFile], Any],
    prepare: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> Iterator[bytes]:
    drain = _SendBuffer()
    with pa.PythonFile(drain, mode="w") as sink:
        writer = open_writer(sink)
        try:
            for batch in result.batches():
                writer.write_batch(prepare(batch))
                if data := drain.drain():
                    yield data
        finally:
            # Before its file is closed, also if a file is damaged or the client has disconnected.
            writer.close()
        sink.flush()
        yield drain.drain()


def _csv_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal(kind):
        return kind if kind.scale <= _MAX_PLAIN_SCALE else pa.string()
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
