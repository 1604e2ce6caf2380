"""The files of a published result, read row by row from anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from service.errors import ResultMissingError
from service.results.columns import Column, columns_of, served_schema

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
