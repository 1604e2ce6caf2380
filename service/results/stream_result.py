"""Opens the result of a streaming job: one version of its managed Delta table, as files like those of any result.

The table is a log: each mini-batch appends the rows that it changed, in a partition of its own, and compaction rewrites
the table as one row for each key. A description in the table's configuration says how to read it.

The newest row of each key is computed once for a version and stored next to the table in one Parquet file (`served`),
from which all pages and downloads are read. Its order is deterministic: that of the base, followed by new keys. The
computation holds the rows of the log (compaction limits it to 5 million rows plus a mini-batch), 1 Mi rows of the base,
and for partial aggregates one row for each group. A process does it for one version at a time.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from pydantic import TypeAdapter

from service.contract.errors import ResultMissingError, ResultNotReadyError
from service.results.columns import Column, arrow_schema, one_row
from service.results.files import ResultFiles
from service.results.merge import finals, merged, repeated
from service.sql.types.aggregates import FinalLevel
from service.sql.types.data_types import Field

DESCRIPTION = "evenkeel.result"
"""The key of the description in the table's configuration."""
FORMAT = 2
"""The newest format of the description that this release reads and writes. 1: without `weight`."""
SERVED = "served"
"""Directory next to the table, with a subdirectory for each version that was read recently."""
_MAX_SERVED_VERSIONS = 4
_ABANDONED_AFTER_SECONDS = 3600
_BATCH_ROWS = 1 << 20
_GROUP_ROWS = 1 << 16
_merging = threading.Lock()


@dataclass(frozen=True)
class ManagedTable:
    """How to compute the result from the rows of a managed table.

    `app` identifies the sequence of mini-batches. `columns` are the columns of its files, in order; `batch` is the
    additional partition column with the number of the mini-batch. Of rows with equal `keys` (and equal `final.parts`,
    if `final` is given; NULL equals NULL), the newest one counts. `()` means a result of one row, None a result in
    which every row counts. `output` are the columns of the result. `of_nothing` is the row of the result while there is
    no other, as JSON values in the order of `output`: the result of an aggregate without GROUP BY over no rows.
    `weight` is the column with the number of equal rows that a row stands for, 0 for a row that was removed; None for a
    table from which rows are not removed.
    """

    app: str
    columns: tuple[Field, ...]
    output: tuple[Field, ...]
    keys: tuple[str, ...] | None
    final: FinalLevel | None = None
    of_nothing: tuple[bool | int | float | str | None, ...] | None = None
    batch: str = "_batch"
    format: int = 1
    weight: str | None = None

    @property
    def identity(self) -> tuple[str, ...] | None:
        """The columns by which a newer row replaces an older one."""
        return self.keys if self.keys is None or self.final is None else (*self.keys, *self.final.parts)

    @property
    def compacted(self) -> str:
        """The transaction identifier under which the table stores the last compacted mini-batch."""
        return f"{self.app}/compacted"

    @property
    def fence(self) -> str:
        """The transaction identifier under which the table stores the newest fencing token."""
        return f"{self.app}/fence"

    def to_json(self) -> str:
        """Returns the description as text."""
        return _adapter().dump_json(self).decode()


def described(text: str) -> ManagedTable:
    """Parses a description. Raises ValueError if it is invalid or of a newer release."""
    found = _adapter().validate_json(text)
    if found.format > FORMAT:
        raise ValueError(f"The table was written by a newer release (format {found.format}; supported: {FORMAT}).")
    return found


@cache
def _adapter() -> TypeAdapter[ManagedTable]:
    return TypeAdapter(ManagedTable)


class ManagedFile(NamedTuple):
    """A file of the table: its mini-batch, its relative path, its rows and bytes."""

    batch: int
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class ManagedFiles:
    """A version of the table: the compacted rows with distinct keys, and the log of newer rows, oldest first."""

    path: Path
    version: int
    table: ManagedTable
    base: tuple[ManagedFile, ...]
    log: tuple[ManagedFile, ...]

    def rows_of(self, files: Iterable[ManagedFile]) -> ResultFiles:
        """Returns some of the files, with all columns of the table."""
        return self._opened(tuple(files), self.table.columns)

    def every_row(self) -> ResultFiles:
        """Returns all files, oldest first, with the columns of the result: the result if no row replaces another."""
        return self._opened((*self.base, *self.log), self.table.output)

    def _opened(self, files: tuple[ManagedFile, ...], fields: tuple[Field, ...]) -> ResultFiles:
        return ResultFiles(
            tuple(self.path / file.name for file in files),
            tuple(file.rows for file in files),
            columns_named(fields),
            arrow_schema(fields),
        )


def columns_named(fields: Iterable[Field]) -> tuple[Column, ...]:
    """Returns the columns as the API describes them."""
    return tuple(Column(name=field.name, type=str(field.type)) for field in fields)


def files_of(table: DeltaTable, path: Path) -> ManagedFiles:
    """Returns the files of an opened table. Raises ValueError if it is no managed table, or of a newer release."""
    description = described(table.metadata().configuration.get(DESCRIPTION) or "")
    compacted = table.transaction_version(description.compacted)
    actions: dict[str, list[Any]] = pa.table(table.get_add_actions(flatten=True)).to_pydict()
    found = sorted(
        map(
            ManagedFile,
            actions.get(f"partition.{description.batch}", []),
            actions["path"],
            actions["num_records"],
            actions["size_bytes"],
        )
    )
    is_base = [compacted is not None and file.batch <= compacted for file in found]
    return ManagedFiles(
        path,
        table.version(),
        description,
        tuple(file for file, base in zip(found, is_base, strict=True) if base),
        tuple(file for file, base in zip(found, is_base, strict=True) if not base),
    )


@dataclass(frozen=True)
class StreamResult:
    """A version of the result."""

    version: int
    files: ResultFiles


def result_directory(streams: Path, job_id: str, generation: int) -> Path:
    """Returns the directory of a job's managed table."""
    return streams / job_id / f"g{generation}" / "result"


def open_stream_result(path: Path, version: int | None = None) -> StreamResult:
    """Opens the result in the managed table at `path`, in its newest version or `version`.

    Raises ResultNotReadyError if there is no table yet, and ResultMissingError if the version no longer exists.
    """
    files = _version(path, version)
    if files.table.identity is None:
        if files.base or files.log or files.table.of_nothing is None:
            return StreamResult(files.version, files.every_row())
    elif files.table.final is None and files.table.weight is None and files.base and not files.log:
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
                    _write_served(files, served, schema)
    # The file was removed immediately, twice.
    raise _missing_version(files.version)


def _version(path: Path, version: int | None) -> ManagedFiles:
    try:
        return files_of(DeltaTable(path, version=version), path)
    except TableNotFoundError:
        raise ResultNotReadyError(
            "The job has no result yet. It has one after its first mini-batch; try again later."
        ) from None
    except (DeltaError, ValueError, OverflowError) as error:
        if version is not None:
            raise _missing_version(version) from error
        raise ResultMissingError(
            f"The job's result cannot be read: {error} Resume the job from scratch to rebuild it."
        ) from error


def _missing_version(version: int) -> ResultMissingError:
    return ResultMissingError(
        f"Version {version} of the result no longer exists: old versions are kept for ten minutes. "
        "Start again without a cursor."
    )


def _served(file: Path, columns: tuple[Column, ...], schema: pa.Schema) -> ResultFiles:
    rows = pq.read_metadata(file).num_rows
    # The least recently read versions are removed first.
    os.utime(file.parent)
    return ResultFiles((file,), (rows,), columns, schema)


def _write_served(files: ManagedFiles, served: Path, schema: pa.Schema) -> None:
    served.parent.mkdir(exist_ok=True)
    _remove_old_versions(served.parent)
    temporary = served.parent / f".{uuid.uuid4().hex}"
    temporary.mkdir()
    try:
        with pq.ParquetWriter(temporary / "rows.parquet", schema) as writer:
            for table in _rows(files, schema):
                writer.write_table(table, row_group_size=_GROUP_ROWS)
        temporary.rename(served)
    except ResultMissingError:
        raise _missing_version(files.version) from None
    except OSError:
        if not (served / "rows.parquet").exists():
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def managed_files(path: Path) -> ManagedFiles:
    """Returns the files of the newest version of the managed table at `path`. Raises as `open_stream_result` does."""
    return _version(path, None)


def of_nothing(files: ManagedFiles, schema: pa.Schema) -> pa.Table:
    """Returns the row of a result without other rows, if it has one."""
    return schema.empty_table() if files.table.of_nothing is None else one_row(files.table.of_nothing, schema)


def _rows(files: ManagedFiles, schema: pa.Schema) -> Iterator[pa.Table]:
    found = False
    for table in _result(files, schema):
        found = found or table.num_rows > 0
        yield table
    if not found:
        yield of_nothing(files, schema)


def _result(files: ManagedFiles, schema: pa.Schema) -> Iterable[pa.Table]:
    if files.table.identity is None:
        return ()
    log = files.rows_of(files.log)
    newer = pa.Table.from_batches(log.batches(batch_rows=_BATCH_ROWS), log.schema)
    return combined(files.table, files.rows_of(files.base).batches(batch_rows=_BATCH_ROWS), newer, schema)


def combined(
    described_table: ManagedTable, base: Iterable[pa.RecordBatch], log: pa.Table, schema: pa.Schema
) -> Iterable[pa.Table]:
    """Returns the rows of a result, with the columns `schema`, from the compacted rows and the log of a table whose
    rows replace each other.
    """
    rows = merged(base, log, described_table.identity or ())
    if described_table.final is not None:
        return finals(rows, described_table.final, schema)
    if described_table.weight is not None:
        weight = described_table.weight
        rows = (repeated(table, weight) for table in rows)
    return (table.select(schema.names).cast(schema) for table in rows)


def _remove_old_versions(directory: Path) -> None:
    """Removes all versions except the most recently read ones, and files of processes that died while creating a
    version.
    """
    versions: list[tuple[float, Path]] = []
    for path in directory.iterdir():
        try:
            changed = path.stat().st_mtime
        except OSError:
            # Removed by another process.
            continue
        if not path.name.startswith("."):
            versions.append((changed, path))
        elif changed < time.time() - _ABANDONED_AFTER_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
    for _, path in sorted(versions, reverse=True)[_MAX_SERVED_VERSIONS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
