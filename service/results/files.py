"""The files of a published result, read row by row from anywhere.

Texts that a spreadsheet would take for formulas, and run, are marked as texts by an apostrophe.

Whoever fills a table may not be whoever opens its CSV: see OWASP, "CSV Injection". Numbers with a sign are no formulas,
and stay as they are.

A whole result as a stream of bytes: CSV, Arrow or Parquet, one batch of rows in memory at a time.
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
from service.results.columns import Column, columns_of, json_value, served_schema

_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class ResultFiles:
    """Parquet files with one schema, in the order of their rows. `row_counts` is parallel to `paths`.

    `columns` and `schema` are what is read of them: all of their columns, or some.
    """

    paths: tuple[Path, ...]
    row_counts: tuple[int, ...]
    columns: tuple[Column, ...]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        """Rows of all files together."""
        return sum(self.row_counts)

    def batches(self, start: int = 0, batch_rows: int = _BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """All rows from `start` (from 0) on, in batches of at most `batch_rows`, in the served schema.

        Raises ResultMissingError where files have been removed or damaged meanwhile.
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
        """At most `limit` rows from `start` on."""
        batches = []
        missing = limit
        for batch in self.batches(start, min(limit, _BATCH_ROWS)):
            batches.append(batch.slice(0, missing))
            missing -= batches[-1].num_rows
            if missing <= 0:
                break
        return pa.Table.from_batches(batches, self.schema)


def open_result(directory: Path) -> ResultFiles:
    """The result in `directory`. Raises ResultMissingError where its files have been removed or damaged."""
    paths = tuple(sorted(directory.glob("*.parquet")))
    with _told_when_missing():
        if not paths:
            raise FileNotFoundError(directory)
        schema = pq.read_schema(paths[0])
        row_counts = tuple(pq.read_metadata(path).num_rows for path in paths)
    return ResultFiles(paths, row_counts, columns_of(schema), served_schema(schema))


@contextmanager
def _told_when_missing() -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        raise ResultMissingError(
            "The job succeeded, but its files in the results directory are gone or damaged. Submit it again."
        ) from error


def _next_batch(rows: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    with _told_when_missing():
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
    """The row groups from the one with row `start` on, and how many of its rows come before."""
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if start < rows:
            return list(range(group, metadata.num_row_groups)), start
        start -= rows
    return [], 0


_BEGINS_AS_FORMULA = r"\A[=+\-@\t\r\n]"
_NUMBER = r"\A[+-]?[0-9]+([.,][0-9]+)*([eE][+-]?[0-9]+)?\z"


def without_formulas(column: pa.Array) -> pa.Array:
    """A column of text, with an apostrophe before what begins as a formula."""
    begins = pc.match_substring_regex(column, _BEGINS_AS_FORMULA)
    if not pc.any(begins).as_py():
        return column
    is_formula = pc.and_not(begins, pc.match_substring_regex(column, _NUMBER))
    marked = pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type))
    return pc.if_else(is_formula, marked, column)


def name_without_formula(name: str) -> str:
    """The same for the name of a column."""
    plain: str = without_formulas(pa.array([name], pa.string()))[0].as_py()
    return plain


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
