"""What a sink is: it takes the staged rows of one mini-batch after the other, each once, whatever is tried again.

A mini-batch is written to Parquet files first (`Staged`), by the one action that runs its query. Its sink then commits
these files under the number of the mini-batch. A sink that already has a mini-batch changes nothing when it is given
once more. A writer with an older fencing token than the sink has seen is refused.

The rows of staged mini-batches, as Arrow reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from service.results.columns import arrow_schema
from service.sql.types.aggregates import FinalLevel
from service.sql.types.data_types import Field
from workers.engine.errors import EngineError

OfNothing = tuple[bool | int | float | str | None, ...]
"""The row that an aggregate over everything has of no rows: JSON values in the order of the output."""


class FenceLostError(EngineError):
    """Another, newer attempt writes to this sink: this one is to end and to change nothing more."""

    code: ClassVar[str] = "fence_lost"


class SinkError(EngineError):
    """The sink cannot take the rows; the message says what to do about it. Trying again without a change is no use."""

    code: ClassVar[str] = "sink_failed"


@dataclass(frozen=True)
class Staged:
    """The rows of one mini-batch, in Parquet files."""

    files: tuple[Path, ...]
    rows: int
    bytes: int


@dataclass(frozen=True)
class SinkTarget:
    """What a sink is to know of who writes to it.

    `app` names the history of mini-batches, whose numbers grow from 0: a job and the generation of its state. `fence`
    is the attempt's fencing token. `columns` are those of the staged files, in order. Rows with equal `keys` replace
    each other, NULL being equal to NULL; `()` is a result of one row, None one that only grows. `final` is given where
    staged rows are parts of groups: `keys` are then those of the groups, and a part is replaced by its newest row.
    """

    app: str
    fence: int
    columns: tuple[Field, ...]
    output: tuple[Field, ...]
    """What readers see, in order: some of `columns`, or those of `final`."""
    keys: tuple[str, ...] | None
    final: FinalLevel | None = None


class Sink(Protocol):
    """Where a stream's result goes. One thread at a time calls it."""

    def prepare(self) -> None:
        """Makes the target where there is none, checks it, and shuts out writers with older fencing tokens.

        Raises FenceLostError and SinkError, and what its store raises while that is away.
        """

    def committed(self) -> int | None:
        """The newest mini-batch that it has of this history; None for none."""

    def commit(self, batch_id: int, staged: Staged) -> int | None:
        """Takes a mini-batch, wholly or not at all, and at most once; gives the version of the result that has it.

        Raises FenceLostError and SinkError, and what its store raises while that is away.
        """

    def tidy(self) -> None:
        """What is due between mini-batches, such as compaction. Changes no result."""

    def close(self) -> None:
        """Lets go of connections."""


def staged_schema(columns: Sequence[Field]) -> pa.Schema:
    """The columns in Arrow. Raises SinkError for a column that files cannot hold."""
    try:
        return arrow_schema(columns)
    except ValueError as error:
        raise SinkError(f"{error} Leave it out, or CAST it to another type.") from error


def staged_rows(staged: Staged, schema: pa.Schema, at_once: int) -> Iterator[pa.RecordBatch]:
    """The rows in their order, at most `at_once` of them in a batch."""
    for path in staged.files:
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            for batch in file.iter_batches(batch_size=at_once):
                yield batch.select(schema.names).cast(schema)
