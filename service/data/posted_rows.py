"""Stores posted rows: a directory of Parquet files for each stream, which Spark reads as a file stream.

    <streams>/input/<tenant>/<name>/<stream id>/<sequence>-<start of the body's sha256>.parquet
    <streams>/input/.hidden/<file id>.parquet        written, but not yet published

A stream that is deleted and declared again gets a new id and directory, so late writes for the old one do not reach it.
Files are published complete, by a rename, and never change. They may appear out of sequence: Spark's file source finds
new paths regardless of order. `show_hidden` publishes files of accepted batches whose process ended, and removes other
hidden files.
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

_log = structlog.get_logger(__name__)
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
"""Names of streams: no leading dot or underscore, which Spark skips, and no characters with a meaning in paths."""
_INPUT = "input"
_HIDDEN = ".hidden"
_DIGEST_CHARACTERS = 12
ORPHANS_KEPT_SECONDS = 3600
"""Longer than any post takes between its file and its transaction."""
_BATCH_SIZE = 500
_YOUNG_SECONDS = 10
"""The process that wrote a younger file is probably about to publish it."""


def hidden_directory(streams_dir: Path) -> Path:
    """Returns the directory of unpublished files, which is on the same file system as the streams, for renames."""
    return streams_dir / _INPUT / _HIDDEN


def stream_directory(streams_dir: Path, tenant: str, name: str, stream_id: str) -> Path:
    """Returns the directory of a stream's files. It exists once the stream is declared, and may be empty."""
    return streams_dir / _INPUT / tenant / name / stream_id


def segment_name(sequence: int, sha256: str) -> str:
    """Returns the name of a batch's file; valid on every file system and for Spark."""
    return f"{sequence:012d}-{sha256[:_DIGEST_CHARACTERS]}.parquet"


@dataclass(frozen=True)
class Segment:
    """A file that is not published yet; `id` is its name in the hidden directory."""

    id: str
    rows: int
    bytes: int


def write_hidden(streams_dir: Path, table: pa.Table) -> Segment:
    """Writes rows to a hidden file, durably. Raises OSError."""
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
            # Without Arrow's own schema, so that all readers use the Parquet schema.
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
    """Publishes a hidden file as `target`. Returns True also if another process has done so, False if neither file
    exists.

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
    """Removes a hidden file that will not be published."""
    hidden_path(streams_dir, segment_id).unlink(missing_ok=True)


def hidden_path(streams_dir: Path, segment_id: str) -> Path:
    """Returns the path of the hidden file with this id."""
    return hidden_directory(streams_dir) / f"{segment_id}.parquet"


class Recovered(NamedTuple):
    """Numbers of files that were published, and that were removed."""

    shown: int
    removed: int


def show_hidden(database: Database, streams_dir: Path, *, now: float | None = None) -> Recovered:
    """Publishes the hidden files of accepted batches, and removes other hidden files after an hour. Any process may
    call it at any time.

    `now` is the file system's time in seconds, by default the machine's. Raises database errors; file system errors are
    logged, and the files are left for the next call.
    """
    moment = time.time() if now is None else now
    waiting = iter(list(_waiting(hidden_directory(streams_dir), moment)))
    shown = removed = 0
    while some := list(islice(waiting, _BATCH_SIZE)):
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
            # Published in the meantime.
            continue
        if modified < moment - _YOUNG_SECONDS:
            yield modified, path
