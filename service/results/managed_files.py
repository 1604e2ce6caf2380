"""The Parquet files of a managed table at one of its versions, opened without Spark."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

from service.results.arrow_types import arrow_schema
from service.results.columns import Column
from service.results.files import ResultFiles
from service.spec.managed_table import DESCRIPTION, ManagedTable, described
from service.spec.types import Field


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
