"""What the table of a managed result says of itself, so that whoever has the table can read the result.

The table is a log: each mini-batch appends the rows that it changed, in files of a partition of its own, and now and
then all of it is rewritten as one row for each key. The description stands in the table's configuration.

The Parquet files of a managed table at one of its versions, opened without Spark.

The result of a streaming job, at any moment: its managed table at one version, as files like those of any result.

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
from service.results.merge import finals, merged
from service.sql.types.aggregates import FinalLevel
from service.sql.types.data_types import Field

DESCRIPTION = "evenkeel.result"
"""The key of the description in the configuration of the table."""

FORMAT = 1
"""The newest format of the description that this release writes and reads."""


@dataclass(frozen=True)
class ManagedTable:
    """How the rows of a managed table become a result.

    `app` names the history of mini-batches. `columns` are those of its files, in order; `batch` is the partition
    column besides, which has the number of the mini-batch. Of rows with equal `keys` (and equal `final.parts`, where
    `final` is given), NULL being equal to NULL, the newest one counts; `()` is a result of one row, None one in which
    every row counts. `output` is what readers see. `of_nothing` is the one row of the result as long as there is no
    other, as JSON values in the order of `output`: what an aggregate without GROUP BY answers of no rows.
    """

    app: str
    columns: tuple[Field, ...]
    output: tuple[Field, ...]
    keys: tuple[str, ...] | None
    final: FinalLevel | None = None
    of_nothing: tuple[bool | int | float | str | None, ...] | None = None
    batch: str = "_batch"
    format: int = FORMAT

    @property
    def identity(self) -> tuple[str, ...] | None:
        """The columns by which a newer row replaces an older one."""
        return self.keys if self.keys is None or self.final is None else (*self.keys, *self.final.parts)

    @property
    def compacted(self) -> str:
        """The name under which the table remembers the last mini-batch that was rewritten with the others."""
        return f"{self.app}/compacted"

    @property
    def fence(self) -> str:
        """The name under which the table remembers the newest fencing token."""
        return f"{self.app}/fence"

    def to_json(self) -> str:
        """The description as text."""
        return _adapter().dump_json(self).decode()


def described(text: str) -> ManagedTable:
    """The description in `text`. Raises ValueError where it is none, or one of a newer release."""
    found = _adapter().validate_json(text)
    if found.format > FORMAT:
        raise ValueError(f"The table was written by a newer release (format {found.format}, known {FORMAT}).")
    return found


@cache
def _adapter() -> TypeAdapter[ManagedTable]:
    return TypeAdapter(ManagedTable)


class ManagedFile(NamedTuple):
    """A file of the table: its mini-batch, its name below the table, its rows and bytes."""

    batch: int
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class ManagedFiles:
    """A version of the table: rows with unequal keys, and the newer rows of the mini-batches since, oldest first."""

    path: Path
    version: int
    table: ManagedTable
    base: tuple[ManagedFile, ...]
    log: tuple[ManagedFile, ...]

    def rows_of(self, files: Iterable[ManagedFile]) -> ResultFiles:
        """Some of the files, with all columns of the table."""
        return self._opened(tuple(files), self.table.columns)

    def every_row(self) -> ResultFiles:
        """All files, the oldest first, with the columns that readers see: the result where no row replaces another."""
        return self._opened((*self.base, *self.log), self.table.output)

    def _opened(self, files: tuple[ManagedFile, ...], fields: tuple[Field, ...]) -> ResultFiles:
        return ResultFiles(
            tuple(self.path / file.name for file in files),
            tuple(file.rows for file in files),
            columns_named(fields),
            arrow_schema(fields),
        )


def columns_named(fields: Iterable[Field]) -> tuple[Column, ...]:
    """The columns as readers are told of them."""
    return tuple(Column(name=field.name, type=str(field.type)) for field in fields)


def files_of(table: DeltaTable, path: Path) -> ManagedFiles:
    """The files of an opened table. Raises ValueError where it is no managed table, or one of a newer release."""
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
