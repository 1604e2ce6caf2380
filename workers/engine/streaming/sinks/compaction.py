"""When the log of a managed table is rewritten with the rows before it, and as what."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from service.results.arrow_types import arrow_schema
from service.results.managed_files import ManagedFiles
from service.results.newest_rows import merged

LEAST_ROWS = 200_000
"""A log up to here costs readers next to nothing."""

MOST_ROWS = 5_000_000
"""Whoever reads or rewrites holds the log in memory."""

LEAST_FILES = 64
_ROWS_A_FILE = 50_000
"""One more file for so many rows of the base: rewriting them takes as long as reading that many more files."""

_FILE_ROWS = 1 << 20
_GROUP_ROWS = 1 << 17
_BATCH_ROWS = 1 << 20


def is_due(files: ManagedFiles) -> bool:
    """Whether rewriting pays: the log is large beside the base, too large for memory, or of too many files."""
    base, log = sum(file.rows for file in files.base), sum(file.rows for file in files.log)
    if files.table.keys is None:
        return len(files.log) > LEAST_FILES
    return log > min(max(LEAST_ROWS, base // 2), MOST_ROWS) or len(files.log) > LEAST_FILES + base // _ROWS_A_FILE


def compacted(files: ManagedFiles, directory: Path, name: str) -> list[tuple[str, int]]:
    """Writes the newest row of each key into files `<name>-<number>.parquet` of `directory`; gives their names and
    rows.

    The order is that of the base, with new keys behind. Holds the log's rows and 1 Mi rows of the base.
    """
    schema = arrow_schema(files.table.columns)
    return list(_written(_rows(files), schema, directory, name))


def _rows(files: ManagedFiles) -> Iterator[pa.Table]:
    identity = files.table.identity
    if identity is None:
        for batch in files.rows_of(files.log).batches(batch_rows=_BATCH_ROWS):
            yield pa.Table.from_batches([batch])
        return
    log = files.rows_of(files.log)
    rows = pa.Table.from_batches(log.batches(batch_rows=_BATCH_ROWS), log.schema)
    yield from merged(files.rows_of(files.base).batches(batch_rows=_BATCH_ROWS), rows, identity)


def _written(tables: Iterable[pa.Table], schema: pa.Schema, directory: Path, name: str) -> Iterator[tuple[str, int]]:
    writer: pq.ParquetWriter | None = None
    rows = number = 0
    file = ""
    try:
        for table in tables:
            if writer is None:
                file = f"{name}-{number:05}.parquet"
                writer = pq.ParquetWriter(directory / file, schema, compression="zstd")
            writer.write_table(table.cast(schema), row_group_size=_GROUP_ROWS)
            rows += table.num_rows
            if rows >= _FILE_ROWS:
                writer.close()
                yield file, rows
                writer, rows, number = None, 0, number + 1
    finally:
        if writer is not None:
            writer.close()
    if rows:
        yield file, rows
