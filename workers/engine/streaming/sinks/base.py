"""The interface of sinks: a sink commits the rows of each mini-batch exactly once, even if an attempt repeats it.

The rows of a mini-batch are first written to Parquet files (`Staged`). The sink then commits these files under the
number of the mini-batch. Committing a mini-batch again changes nothing. A sink refuses a writer whose fencing token is
older than the newest one that it has recorded. `staged_rows` reads the files with Arrow.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from service.contract.job import CHANGE_BATCH, CHANGE_TYPE
from service.results.columns import arrow_schema
from service.sql.types.aggregates import FinalLevel
from service.sql.types.data_types import BIGINT, STRING, Field

OfNothing = tuple[bool | int | float | str | None, ...]
"""The row that an aggregate without GROUP BY returns for no rows: JSON values in the order of the output."""

OF_CHANGE_LOG = (Field(CHANGE_TYPE, STRING), Field(CHANGE_BATCH, BIGINT))
"""The columns that a change log has after those of the result."""


class FenceLostError(Exception):
    """A newer attempt writes to this sink. This attempt must end without further changes."""

    code: ClassVar[str] = "fence_lost"


class SinkError(Exception):
    """The sink cannot store the rows. The message says what to change; a retry without a change fails again."""

    code: ClassVar[str] = "sink_failed"


@dataclass(frozen=True)
class Staged:
    """The rows of one mini-batch, in Parquet files."""

    files: tuple[Path, ...]
    rows: int
    bytes: int


@dataclass(frozen=True)
class SinkTarget:
    """Describes the writer of a sink and its rows.

    `app` names a history of mini-batches, which are numbered from 0: a job and the generation of its state. `fence` is
    the attempt's fencing token. `columns` are those of the staged files, in order. A row replaces an older one with
    equal `keys`; NULL equals NULL. `()` means a result of one row, None a result to which rows are only appended.
    `final` is set if staged rows are parts of groups: `keys` are then those of the groups, and the newest row of a part
    replaces the older ones. `weight` is the column with the number of equal rows that a row stands for, 0 for a row
    that is removed; None if rows are not removed.
    """

    app: str
    fence: int
    columns: tuple[Field, ...]
    output: tuple[Field, ...]
    """The columns that readers see, in order: some of `columns`, or those of `final`."""
    keys: tuple[str, ...] | None
    final: FinalLevel | None = None
    weight: str | None = None


class Sink(Protocol):
    """The destination of a stream's result. Only one thread at a time may call it."""

    def prepare(self) -> None:
        """Creates the target if it does not exist, checks it, and fences off writers with older fencing tokens.

        Raises FenceLostError and SinkError, and the errors of its store if that is not reachable.
        """

    def committed(self) -> int | None:
        """Returns the newest committed mini-batch of this history; None if there is none."""

    def commit(self, batch_id: int, staged: Staged) -> int | None:
        """Commits a mini-batch atomically and at most once. Returns the version of the result that contains it, or
        None if the sink has no versions.

        Raises FenceLostError and SinkError, and the errors of its store if that is not reachable.
        """

    def tidy(self) -> None:
        """Runs maintenance between mini-batches, such as compaction. Does not change the result; does nothing by
        default.
        """
        return

    def close(self) -> None:
        """Closes connections, if there are any."""
        return


def staged_schema(columns: Sequence[Field]) -> pa.Schema:
    """Returns the Arrow schema of the columns. Raises SinkError for a column that files cannot store."""
    try:
        return arrow_schema(columns)
    except ValueError as error:
        raise SinkError(f"{error} Remove it from SELECT, or CAST it to another type.") from error


def missing_keys(names: Iterable[str]) -> str:
    """Returns the message about key columns that the result does not have."""
    listed = ", ".join(sorted(names))
    columns, are, them = ("columns", "are", "them") if ", " in listed else ("column", "is", "it")
    return f"Key {columns} {listed} {are} missing from the result. Add {them} to SELECT."


def link_or_copy(file: Path, target: Path) -> None:
    """Creates a hard link to a staged file; copies the file if that is not possible, as on another file system."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def staged_rows(staged: Staged, schema: pa.Schema, at_once: int) -> Iterator[pa.RecordBatch]:
    """Yields the rows in their order, in batches of at most `at_once` rows."""
    for path in staged.files:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(batch_size=at_once):
                yield batch.select(schema.names).cast(schema)
