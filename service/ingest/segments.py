"""Files of posted rows: written where nobody reads, durable, then shown by a rename."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from service.datasets.durable_files import make_directory, sync_directory
from service.datasets.input_streams import hidden_directory


@dataclass(frozen=True)
class Segment:
    """A file that nobody sees yet; `id` names it below the hidden directory."""

    id: str
    rows: int
    bytes: int


def write_hidden(streams_dir: Path, table: pa.Table) -> Segment:
    """Writes rows to a hidden file, which survives a power cut once this returns. Raises OSError."""
    directory = hidden_directory(streams_dir)
    segment_id = uuid.uuid4().hex
    path = hidden_path(streams_dir, segment_id)
    try:
        file = path.open("xb")
    except FileNotFoundError:
        make_directory(directory)
        file = path.open("xb")
    try:
        with file:
            # Without Arrow's own schema: readers of Parquet shall see what Parquet says.
            pq.write_table(table, file, compression="zstd", store_schema=False)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        sync_directory(directory)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return Segment(segment_id, table.num_rows, size)


def show(streams_dir: Path, segment_id: str, target: Path) -> bool:
    """Lets readers see a hidden file as `target`; also where another process just did. False where there is neither.

    Raises OSError.
    """
    if not target.exists():
        try:
            hidden_path(streams_dir, segment_id).rename(target)
        except FileNotFoundError:
            if not target.exists():
                return False
    sync_directory(target.parent)
    return True


def remove_hidden(streams_dir: Path, segment_id: str) -> None:
    """Removes a hidden file that will never be shown."""
    hidden_path(streams_dir, segment_id).unlink(missing_ok=True)


def hidden_path(streams_dir: Path, segment_id: str) -> Path:
    """Where the hidden file of this id is."""
    return hidden_directory(streams_dir) / f"{segment_id}.parquet"
