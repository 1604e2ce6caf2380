"""The result of a streaming job, at any moment: its managed table at one version, as files like those of any result.

The newest row of each key is found once for a version, and kept beside the table in one Parquet file (`served`), from
which all pages and downloads of the version are read. The order is that of the table's base, with newer keys behind,
so that another process that makes the file again makes the same one. Held meanwhile: the rows of the log (the worker
rewrites it before it passes 5 million rows and a mini-batch), 1 Mi rows of the base, and where the rows are parts of
groups, one row a group. A process does that for one version at a time.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from service.errors import ResultMissingError, ResultNotReadyError
from service.results.arrow_types import arrow_schema, one_row
from service.results.columns import Column
from service.results.files import ResultFiles
from service.results.final_merge import finals
from service.results.managed_files import ManagedFiles, columns_named, files_of
from service.results.newest_rows import merged

SERVED = "served"
"""Beside the table: a directory for each version that was read last."""

_KEPT = 4
_LEFT_AFTER_SECONDS = 3600
_BATCH_ROWS = 1 << 20
_GROUP_ROWS = 1 << 16

_merging = threading.Lock()


@dataclass(frozen=True)
class StreamResult:
    """A version of the result."""

    version: int
    files: ResultFiles


def result_directory(streams: Path, job_id: str, generation: int) -> Path:
    """Where the managed table of a job is."""
    return streams / job_id / f"g{generation}" / "result"


def open_stream_result(path: Path, version: int | None = None) -> StreamResult:
    """The result in the managed table at `path`, in its newest or another version.

    Raises ResultNotReadyError while there is no table, and ResultMissingError where the version is no longer there.
    """
    files = _version(path, version)
    if files.table.identity is None:
        if files.base or files.log or files.table.of_nothing is None:
            return StreamResult(files.version, files.every_row())
    elif files.table.final is None and files.base and not files.log:
        return StreamResult(files.version, files.every_row())
    served = path.parent / SERVED / f"v{files.version}"
    file = served / "rows.parquet"
    columns, schema = columns_named(files.table.output), arrow_schema(files.table.output)
    for _ in range(2):
        try:
            return StreamResult(files.version, _served(file, columns, schema))
        except FileNotFoundError:
            with _merging:
                if not file.exists():
                    _make(files, served, schema)
    # Removed at once, twice.
    raise _gone(files.version)


def _version(path: Path, version: int | None) -> ManagedFiles:
    try:
        return files_of(DeltaTable(path, version=version), path)
    except TableNotFoundError:
        raise ResultNotReadyError(
            "The job has no result yet: it comes with the first mini-batch. Ask again later."
        ) from None
    except (DeltaError, ValueError, OverflowError) as error:
        if version is not None:
            raise _gone(version) from error
        raise ResultMissingError(
            f"The job's result cannot be read: {error} Resume the job from scratch to make it anew."
        ) from error


def _gone(version: int) -> ResultMissingError:
    return ResultMissingError(
        f"Version {version} of the result is no longer there: old ones are kept for ten minutes. "
        "Start again without a cursor."
    )


def _served(file: Path, columns: tuple[Column, ...], schema: pa.Schema) -> ResultFiles:
    rows = pq.read_metadata(file).num_rows
    # What is read stays longer than what is not.
    os.utime(file.parent)
    return ResultFiles((file,), (rows,), columns, schema)


def _make(files: ManagedFiles, served: Path, schema: pa.Schema) -> None:
    served.parent.mkdir(exist_ok=True)
    _tidy(served.parent)
    making = served.parent / f".{uuid.uuid4().hex}"
    making.mkdir()
    try:
        with pq.ParquetWriter(making / "rows.parquet", schema) as writer:
            for table in _rows(files, schema):
                writer.write_table(table, row_group_size=_GROUP_ROWS)
        making.rename(served)
    except ResultMissingError:
        raise _gone(files.version) from None
    except OSError:
        if not (served / "rows.parquet").exists():
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _rows(files: ManagedFiles, schema: pa.Schema) -> Iterator[pa.Table]:
    found = False
    for table in _result(files, schema):
        found = found or table.num_rows > 0
        yield table
    if not found and files.table.of_nothing is not None:
        yield one_row(files.table.of_nothing, schema)


def _result(files: ManagedFiles, schema: pa.Schema) -> Iterable[pa.Table]:
    identity = files.table.identity
    if identity is None:
        return ()
    log = files.rows_of(files.log)
    newer = pa.Table.from_batches(log.batches(batch_rows=_BATCH_ROWS), log.schema)
    rows = merged(files.rows_of(files.base).batches(batch_rows=_BATCH_ROWS), newer, identity)
    if files.table.final is not None:
        return finals(rows, files.table.final, schema)
    return (table.select(schema.names).cast(schema) for table in rows)


def _tidy(directory: Path) -> None:
    """Removes all versions but the few that were read last, and what processes left that died while they made one."""
    versions: list[tuple[float, Path]] = []
    for path in directory.iterdir():
        try:
            changed = path.stat().st_mtime
        except OSError:
            # Another process is at it too.
            continue
        if not path.name.startswith("."):
            versions.append((changed, path))
        elif changed < time.time() - _LEFT_AFTER_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
    for _, path in sorted(versions, reverse=True)[_KEPT - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
