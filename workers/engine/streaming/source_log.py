"""Reads which files the mini-batches of a stream have read, from the logs in Spark's checkpoint.

    <checkpoint>/sources/<source>/<entry>            the files of one mini-batch, one per line, written when it begins
    <checkpoint>/sources/<source>/<entry>.compact    the files of all entries so far; older entries are removed later

Sources are numbered in the order of `workers.engine.streaming.sources.reads_of`. A source that a plan reads twice has
one log. `SourceLog` reads every entry once, except compact entries, of which it only parses new lines.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_COMPACT = ".compact"


def logs_of(checkpoint: Path) -> list[Path]:
    """Returns the directories of the sources' logs, by their numbers."""
    found = (path for path in (checkpoint / "sources").glob("[0-9]*") if path.name.isdecimal())
    return sorted(found, key=lambda path: int(path.name))


def entries_before(checkpoint: Path, batch_id: int) -> dict[Path, int]:
    """Returns, by log, the newest entry that mini-batches before this one have read. If Spark has not recorded it,
    returns an older entry or -1. Raises OSError.
    """
    logs = logs_of(checkpoint)
    try:
        version, _, *offsets = (checkpoint / "offsets" / str(batch_id - 1)).read_text(encoding="utf-8").split("\n")
        entries = [_entry(offset) for offset in offsets] if version == "v1" else []
    except (FileNotFoundError, ValueError):
        entries = []
    if len(entries) != len(logs):
        # A source that the plan reads twice has a line for each read, but one log.
        entries = [min(entries, default=-1)] * len(logs)
    return dict(zip(logs, entries, strict=True))


class SourceLog:
    """Reads the entries of one log after the entry `after`, as they are added."""

    def __init__(self, log: Path, after: int = -1) -> None:
        self._log = log
        self._read = after

    def new(self) -> Iterator[str]:
        """Yields the URIs of the files that were added since the last call, decoded; none if the log is not of files.

        Raises OSError and ValueError if the log cannot be read. The next call then continues there, and may repeat
        files.
        """
        # Entries that are being written have hidden names.
        names = [path.name for path in self._log.iterdir()]
        compact = max((number for name in names if (number := _compact_number(name)) is not None), default=-1)
        later = sorted(int(name) for name in names if name.isdecimal() and int(name) > max(compact, self._read))
        if compact > self._read:
            yield from self._from_compact(compact)
            self._read = compact
        for number in later:
            yield from [path for line in self._lines(str(number)) if (path := _path(line)) is not None]
            self._read = number

    def _from_compact(self, number: int) -> Iterator[str]:
        for line in self._lines(f"{number}{_COMPACT}"):
            # Most lines are old, so they are not parsed. The number of the entry is last in a line.
            if int(line[line.rindex(":") + 1 : -1]) > self._read:
                path = _path(line)
                if path is not None:
                    yield path

    def _lines(self, name: str) -> Iterator[str]:
        """Yields one line at a time: a compact entry has a line for every file that was ever read."""
        with (self._log / name).open(encoding="utf-8") as lines:
            next(lines, None)
            for line in lines:
                yield line.rstrip("\n")


def _compact_number(name: str) -> int | None:
    number = name.removesuffix(_COMPACT)
    return int(number) if number != name and number.isdecimal() else None


def _entry(offset: str) -> int:
    value = None if offset == "-" else json.loads(offset)
    return int(value["logOffset"]) if isinstance(value, dict) and "logOffset" in value else -1


def _path(line: str) -> str | None:
    entry = json.loads(line)
    # A name that is not UTF-8 is decoded as by `os.listdir`.
    return unquote(entry["path"], errors="surrogateescape") if isinstance(entry, dict) and "path" in entry else None
