"""What the service tells of a streaming job's mini-batches, and how far it is behind. Written by workers, served as it
is.
"""

from __future__ import annotations

from datetime import datetime

from pydantic import Field

from service.spec.model import Frozen


class StateMetrics(Frozen):
    """What a mini-batch did to the state of one operator."""

    operator: str = Field(description="As Spark calls it.", examples=["stateStoreSave"])
    rows: int | None = Field(
        description="Keys that the state has, of the provider `memory`; RocksDB would look before every write to know."
    )
    updated: int = Field(description="Keys that the mini-batch wrote, new ones and known ones.")
    removed: int = Field(description="Keys that it dropped, since their window was over.")
    late_rows: int = Field(description="Rows that it left out, since their window was over.")
    memory_bytes: int = Field(
        description="What the state's stores hold in memory; of RocksDB caches and buffers, which say nothing of its "
        "size."
    )
    state_bytes: int | None = Field(
        description="Size of the state. Of RocksDB, of its files: it writes new ones after ten mini-batches or more, "
        "this does not change until then, and they hold replaced values until they are compacted. Before the first "
        "ones, of all changes that the checkpoint holds, compressed. Null where that is not known."
    )
    partitions: int = Field(description="Parts of the state, each with a task of its own.")
    commit_ms: int = Field(description="What it took all of them together to keep their changes.")
    changed_bytes: int | None = Field(
        default=None,
        description="What the mini-batch wrote to the checkpoint for its changes, compressed, of all partitions.",
    )
    largest_changed_bytes: int | None = Field(default=None, description="The same, of the partition with the most.")
    skew: float | None = Field(
        default=None,
        description="The largest partition's changed bytes by the median one's: 1 where all have the same to do. Null "
        "where half of them had nothing.",
    )


class BatchMetrics(Frozen):
    """What was measured of a mini-batch after its end."""

    duration_ms: int = Field(description="From the look for new files to the end of all.")
    busy: float | None = Field(
        description="`duration_ms` by `mini_batch.allow_latency`. Above 1, rows wait longer than was asked for, since "
        "the next mini-batch cannot begin in time. Null where none is waited for."
    )
    rows_per_second: float | None
    durations_ms: dict[str, int] = Field(description="Spark's own parts of the duration.")
    watermark: str | None = Field(description="Rows from before are late.")
    state_operations_per_row: float | None = Field(
        description="Looks into the state and writes, by row that was read: larger mini-batches have fewer."
    )
    state: tuple[StateMetrics, ...]
    versions: dict[str, int] | None = Field(
        default=None, description="Of each table that is followed, the version that the mini-batch read."
    )


class TableBacklog(Frozen):
    """What a stream has that no mini-batch took yet, not even the one that is under way."""

    files: int = Field(description="Files in the directory; of posted rows, batches that were accepted.")
    rows: int | None = Field(description="Rows of posted batches; null for a directory, whose files are not read.")
    bytes: int = Field(description="Size of these files.")
    oldest_seconds: float | None = Field(
        description="How long the oldest of it has been there, by its time of change or acceptance. Null where there "
        "is none."
    )


class Backlog(Frozen):
    """How far a job is behind its streams."""

    at: datetime = Field(
        description="When this was found out. Directories are listed for it, at most a fiftieth of the time."
    )
    tables: dict[str, TableBacklog | None] = Field(
        description="By table, those of made-up rows aside; null where its directory could not be listed."
    )
