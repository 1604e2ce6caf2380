"""Which files the mini-batches of a stream have taken, by the logs that Spark keeps in its checkpoint.

    <checkpoint>/sources/<source>/<entry>            the files of one mini-batch, a line each, written when it begins
    <checkpoint>/sources/<source>/<entry>.compact    the same, of all entries so far; older ones go some time later

Of a directory of many files nothing is read twice, compact entries aside, and these for what is new in them alone.
Sources have numbers, in the order of `workers.engine.streaming.sources.reads_of`. One that a plan reads twice has one
log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

_COMPACT = ".compact"


def logs_of(checkpoint: Path) -> list[Path]:
    """The directories of the sources' logs, by their numbers."""
    found = (path for path in (checkpoint / "sources").glob("[0-9]*") if path.name.isdecimal())
    return sorted(found, key=lambda path: int(path.name))


def taken_before(checkpoint: Path, batch_id: int) -> dict[Path, int]:
    """By log: the newest of its entries that mini-batches before this one took; an older one, or -1, where Spark does
    not tell. Raises OSError.
    """
    logs = logs_of(checkpoint)
    try:
        version, _, *offsets = (checkpoint / "offsets" / str(batch_id - 1)).read_text(encoding="utf-8").split("\n")
        entries = [_entry(offset) for offset in offsets] if version == "v1" else []
    except (FileNotFoundError, ValueError):
        entries = []
    if len(entries) != len(logs):
        # A source that the plan reads twice has a line for each reading, and one log.
        entries = [min(entries, default=-1)] * len(logs)
    return dict(zip(logs, entries, strict=True))


class TakenFiles:
    """Reads one log on and on, from behind the entry `after`."""

    def __init__(self, log: Path, after: int = -1) -> None:
        self._log = log
        self._read = after

    def new(self) -> Iterator[str]:
        """URIs of the files that were taken since the last call, as they were before Spark encoded them; none of a log
        that is of something else.

        Raises OSError and ValueError where the log cannot be read; the next call goes on there, and may give some
        again.
        """
        names = [path.name for path in self._log.iterdir()]
        # Hidden names are of entries that are being written.
        whole = max((number for name in names if (number := _compact(name)) is not None), default=-1)
        later = sorted(int(name) for name in names if name.isdecimal() and int(name) > max(whole, self._read))
        if whole > self._read:
            yield from self._from_compact(whole)
            self._read = whole
        for number in later:
            yield from [path for line in self._lines(str(number)) if (path := _path(line)) is not None]
            self._read = number

    def _from_compact(self, number: int) -> Iterator[str]:
        for line in self._lines(f"{number}{_COMPACT}"):
            # Most are old, and not worth being parsed. The number of the entry comes last.
            if int(line[line.rindex(":") + 1 : -1]) > self._read:
                path = _path(line)
                if path is not None:
                    yield path

    def _lines(self, name: str) -> Iterator[str]:
        """One by one: a log of all files has as many as were ever taken."""
        with (self._log / name).open(encoding="utf-8") as lines:
            next(lines, None)
            for line in lines:
                yield line.rstrip("\n")


def _compact(name: str) -> int | None:
    number = name.removesuffix(_COMPACT)
    return int(number) if number != name and number.isdecimal() else None


def _entry(offset: str) -> int:
    told = None if offset == "-" else json.loads(offset)
    return int(told["logOffset"]) if isinstance(told, dict) and "logOffset" in told else -1


def _path(line: str) -> str | None:
    told = json.loads(line)
    # A name that is no UTF-8 as directories are listed here.
    return unquote(told["path"], errors="surrogateescape") if isinstance(told, dict) and "path" in told else None
