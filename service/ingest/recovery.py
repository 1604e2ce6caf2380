"""Hidden files that a process left behind when it ended: those of accepted batches are shown, others removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import structlog

from service.datasets.durable_files import make_directory
from service.datasets.input_streams import hidden_directory, segment_name, stream_directory
from service.ingest.segments import show
from service.store.ingest import Hidden, find_hidden
from service.store.session import Database

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
