"""Where the rows that clients post are kept: a directory of Parquet files a stream, which Spark reads as a stream.

    <streams>/input/<tenant>/<name>/<stream id>/<sequence>-<start of the body's sha256>.parquet
    <streams>/input/.hidden/<file id>.parquet        written, and not yet shown

A stream that is deleted and declared again has another id, hence a directory of its own: whatever is still under way
for the old one never meets the new one. Files appear whole, by a rename, and never change. One of a smaller sequence
may appear after one of a larger: Spark's file source goes by paths it has not seen, not by their order.

Files of posted rows: written where nobody reads, durable, then shown by a rename.

Hidden files that a process left behind when it ended: those of accepted batches are shown, others removed.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from service.data.file_io import make_directory, sync_directory
from service.store.input_streams import Hidden, find_hidden
from service.store.session import Database

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
"""Names of streams: no dot and no underscore in front, which Spark passes over, and nothing with a meaning in
paths."""

_INPUT = "input"
_HIDDEN = ".hidden"
_SHOWN_OF_DIGEST = 12


def hidden_directory(streams_dir: Path) -> Path:
    """Files that nobody reads yet, of all streams: on the same file system as these, since they are renamed."""
    return streams_dir / _INPUT / _HIDDEN


def stream_directory(streams_dir: Path, tenant: str, name: str, stream_id: str) -> Path:
    """The directory of a stream's files; it is there from its declaration on, and may hold none."""
    return streams_dir / _INPUT / tenant / name / stream_id


def segment_name(sequence: int, sha256: str) -> str:
    """The name of a batch's file: plain enough for every file system and for Spark."""
    return f"{sequence:012d}-{sha256[:_SHOWN_OF_DIGEST]}.parquet"


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


_log = structlog.get_logger(__name__)

ORPHANS_KEPT_SECONDS = 3600
"""No post takes so long between its file and its transaction."""

_AT_ONCE = 500
_YOUNG_SECONDS = 10
"""Whoever wrote the file is about to show it."""


class Recovered(NamedTuple):
    """Files that readers see from now on, and files that were removed."""

    shown: int
    removed: int


def show_hidden(database: Database, streams_dir: Path, *, now: float | None = None) -> Recovered:
    """Shows the hidden files of accepted batches and removes those of none after an hour; any process may, at any time.

    `now` is the time of the file system's clock in seconds, the machine's by default. Raises what the database raises;
    what the file system refuses is told in the log and left for the next time.
    """
    moment = time.time() if now is None else now
    waiting = iter(list(_waiting(hidden_directory(streams_dir), moment)))
    shown = removed = 0
    while some := list(islice(waiting, _AT_ONCE)):
        with database.read() as session:
            accepted = {hidden.file: hidden for hidden in find_hidden(session, [path.stem for _, path in some])}
        for modified, path in some:
            try:
                if path.stem in accepted:
                    shown += _show(streams_dir, accepted[path.stem])
                elif modified < moment - ORPHANS_KEPT_SECONDS:
                    path.unlink(missing_ok=True)
                    removed += 1
            except OSError as error:
                _log.warning("posted_rows_not_shown", path=str(path), errno=error.errno, error=error.strerror)
    if shown:
        _log.warning("posted_rows_shown", files=shown)
    return Recovered(shown, removed)


def _show(streams_dir: Path, hidden: Hidden) -> bool:
    directory = stream_directory(streams_dir, hidden.tenant, hidden.stream, hidden.stream_id)
    make_directory(directory)
    return show(streams_dir, hidden.file, directory / segment_name(hidden.seq, hidden.sha256))


def _waiting(directory: Path, moment: float) -> Iterator[tuple[float, Path]]:
    try:
        found = list(directory.glob("*.parquet"))
    except OSError:
        return
    for path in found:
        try:
            modified = path.stat().st_mtime
        except OSError:
            # Just shown.
            continue
        if modified < moment - _YOUNG_SECONDS:
            yield modified, path
