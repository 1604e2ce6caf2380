"""The reports of a streaming job: the metrics of a mini-batch, and the backlog of the job's streams.

Workers write and store them, and the API returns them.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from .model import Frozen, renamed


class StateMetrics(Frozen):
    """Changes of a mini-batch to the state of one operator."""

    operator: str = Field(description="Spark's name of the operator.", examples=["stateStoreSave"])
    rows: int | None = Field(
        description="Number of keys in the state; null for `rocksdb`, which would need a read before every write to "
        "count them."
    )
    updated: int = Field(description="Keys that the mini-batch added or changed.")
    removed: int = Field(description="Keys that it removed because their window had ended.")
    late_rows: int = Field(description="Rows that it ignored because their window had ended.")
    memory_bytes: int = Field(description="Memory that the state store uses; for `rocksdb`, caches and buffers.")
    state_bytes: int | None = Field(
        description="Size of the state's files, which contain replaced values until they are compacted. "
        "Before there are files, the compressed size of all changes. Null if unknown."
    )
    partitions: int = Field(description="Partitions of the state; each has its own task.")
    commit_ms: int = Field(description="Time to commit the changes, summed over all partitions.")
    changed_bytes: int | None = Field(
        default=None,
        description="Compressed size of the changes that the mini-batch wrote to the checkpoint, for all partitions.",
    )
    largest_changed_bytes: int | None = Field(
        default=None, description="The same for the partition with the most changes."
    )
    skew: float | None = Field(
        default=None,
        description="`largest_changed_bytes` divided by the median of the partitions: 1 if the changes are evenly "
        "distributed. Null if half of the partitions have no changes.",
    )


class BatchMetrics(Frozen):
    """Measurements of a mini-batch."""

    duration_ms: int = Field(description="From the search for new files to the end of the mini-batch.")
    busy: float | None = Field(
        description="`duration_ms` divided by `mini_batch.allow_latency`. Above 1, rows wait longer than requested. "
        "Null if the job does not wait between mini-batches."
    )
    rows_per_second: float | None
    durations_ms: dict[str, int] = Field(description="The parts of the duration, as Spark reports them.")
    watermark: str | None = Field(description="Rows with an earlier event time are late.")
    state_operations_per_row: float | None = Field(
        description="Reads and writes of the state per input row; larger mini-batches need fewer."
    )
    state: tuple[StateMetrics, ...]
    versions: dict[str, int] | None = Field(
        default=None, description="By lookup table with `refresh`: the version that the mini-batch read."
    )


_OLDEST_SECONDS = "oldest_seconds"
"""The name of `oldest_age_seconds` before 1.0. It is still stored, so that workers and services of the version before
can share the database during an upgrade."""


class TableBacklog(Frozen):
    """Input of a stream that no mini-batch contains yet, not even the running one."""

    files: int = Field(description="Files in the directory; for posted rows, accepted batches.")
    rows: int | None = Field(description="Rows of the posted batches; null for a directory, whose files are not read.")
    bytes: int = Field(description="Total size of the files.")
    oldest_age_seconds: float | None = Field(
        description="Time since the oldest file was changed, or the oldest batch was accepted. Null if there are none."
    )


class Backlog(Frozen):
    """How far a job is behind its streams."""

    at: datetime = Field(
        description="Time of the measurement. A worker lists directories for at most a fiftieth of its time."
    )
    tables: dict[str, TableBacklog | None] = Field(
        description="By table, except for tables of generated rows; null if the directory could not be listed."
    )

    def stored(self) -> dict[str, Any]:
        """Returns the JSON to store, with the old name of `oldest_age_seconds`."""
        return _rename_of_tables(self.model_dump(mode="json"), "oldest_age_seconds", _OLDEST_SECONDS)

    @staticmethod
    def from_stored(stored: Mapping[str, Any]) -> dict[str, Any]:
        """Returns stored JSON with the current names of fields. Fields that a newer version added are kept."""
        return _rename_of_tables(stored, _OLDEST_SECONDS, "oldest_age_seconds")


def _rename_of_tables(backlog: Mapping[str, Any], name: str, other: str) -> dict[str, Any]:
    tables: Mapping[str, Mapping[str, Any] | None] = backlog["tables"]
    named = {table: None if waiting is None else renamed(waiting, name, other) for table, waiting in tables.items()}
    return {**backlog, "tables": named}
