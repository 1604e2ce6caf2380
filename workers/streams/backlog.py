"""The backlog of a stream: the files and rows of its sources that no mini-batch has read yet.

The checkpoint has the files that mini-batches have read; directories and the database have those that exist. To list a
directory of a hundred thousand files takes a large part of a second, so measurements take at most a fiftieth of the
time.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from heapq import merge
from pathlib import Path
from typing import Any, Protocol

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.contract.stream_reports import Backlog, TableBacklog
from service.contract.tables import StreamTable, TableSource
from service.data.file_changes import Arrival, Confines, local_arrivals, stored_arrivals
from service.data.roots import Root, StoreUnavailableError
from service.store.input_streams import unread_batches
from service.store.session import Database
from workers.engine.streaming.sources import SourceLog, StreamInput, logs_of
from workers.streams.inputs import Inputs

_MIN_NEW = 1024
_NEW_SHARE = 8
"""New hashes are merged into the sorted ones once there are more than `_MIN_NEW` and one for `_NEW_SHARE` sorted ones.
"""

_PAUSE_FACTOR = 50
"""After a measurement, the pause is at least this many times as long as the measurement took."""

_IDLE_SECONDS = 5.0
"""The least time between measurements while no mini-batch ends."""

_QUICK_SECONDS = 1.0
"""If the last measurement took longer, an attempt does not measure at its end."""

_MAX_OUT_OF_ORDER = 1000
"""How many numbers of posted batches are kept that were read before older ones."""

_UNKNOWN = (OSError, ValueError, KeyError, SpecError, StoreUnavailableError)
"""The errors after which the backlog is unknown."""


class HashedNames:
    """A set of file names that only grows, in eight bytes per name, since a stream reads millions of files.

    It stores 64-bit hashes: one name in billions is mistaken for another one, which is acceptable for a metric.
    """

    def __init__(self) -> None:
        self._sorted: array[int] = array("q")
        self._new: set[int] = set()

    def add(self, name: str) -> None:
        """Adds a name. To add it again changes nothing."""
        if name in self:
            return
        self._new.add(hash(name))
        if len(self._new) > max(_MIN_NEW, len(self._sorted) // _NEW_SHARE):
            self._sorted = array("q", merge(self._sorted, sorted(self._new)))
            self._new = set()

    def __contains__(self, name: str) -> bool:
        hashed = hash(name)
        if hashed in self._new:
            return True
        place = bisect_left(self._sorted, hashed)
        return place < len(self._sorted) and self._sorted[place] == hashed

    def __len__(self) -> int:
        return len(self._sorted) + len(self._new)


class Occasion(Enum):
    """Why the backlog is measured: a mini-batch has ended, none has, or the attempt has ended."""

    BATCH = "batch"
    IDLE = "idle"
    END = "end"


class Watched(Protocol):
    """A source with a backlog. `directory` is the prefix of the URIs of its files in Spark's log."""

    table: str
    directory: str

    def mark_read(self, name: str) -> None:
        """Records that a mini-batch has read the file of this name, relative to the directory. May be repeated."""

    def waiting(self, database: Database, now: int) -> TableBacklog:
        """Returns what exists and was not read at `now` (milliseconds). Raises one of `_UNKNOWN` if unknown."""


@dataclass
class WatchedDirectory:
    """The files of a directory. Remembers all files that were ever read, as Spark does: Spark reads none of them again,
    so a file that was removed and restored is not in the backlog.
    """

    table: str
    directory: str
    listing: Callable[[], Iterable[Arrival]]
    _read: HashedNames = field(default_factory=HashedNames)

    def mark_read(self, name: str) -> None:
        """See `Watched`."""
        self._read.add(name)

    def waiting(self, _database: Database, now: int) -> TableBacklog:
        """See `Watched`."""
        files = size = 0
        oldest: int | None = None
        for arrival in self.listing():
            if arrival.name in self._read:
                continue
            files += 1
            size += arrival.bytes
            if arrival.written_at is not None:
                oldest = arrival.written_at if oldest is None else min(oldest, arrival.written_at)
        return TableBacklog(files=files, rows=None, bytes=size, oldest_age_seconds=_age(oldest, now))


@dataclass
class WatchedPosts:
    """The batches of an input stream, whose files are named by number: all up to `_read_up_to`, and those in
    `_read_later`, were read.
    """

    table: str
    directory: str
    tenant: str
    stream: str
    _read_up_to: int = 0
    _read_later: set[int] = field(default_factory=set)

    def mark_read(self, name: str) -> None:
        """See `Watched`."""
        number = int(name.partition("-")[0])
        if number <= self._read_up_to:
            return
        self._read_later.add(number)
        if len(self._read_later) > _MAX_OUT_OF_ORDER:
            # All older ones count as read: files rarely appear out of order, and never by so many.
            self._read_up_to = min(self._read_later) - 1
        while self._read_up_to + 1 in self._read_later:
            self._read_up_to += 1
            self._read_later.remove(self._read_up_to)

    def waiting(self, database: Database, now: int) -> TableBacklog:
        """See `Watched`."""
        with database.read() as session:
            found = unread_batches(session, self.tenant, self.stream, self._read_up_to, self._read_later)
        return TableBacklog(
            files=found.batches, rows=found.rows, bytes=found.bytes, oldest_age_seconds=_age(found.oldest_at, now)
        )


def watched(spec: JobSpec, inputs: Inputs, roots: Sequence[Root], tenant: str) -> tuple[Watched, ...]:
    """Returns the sources of the job that can have a backlog."""
    found: list[Watched] = []
    for name, table in inputs.tables.items():
        if not isinstance(table, StreamInput):
            continue
        posted = spec.tables[name]
        directory = table.unescaped
        if isinstance(posted, StreamTable):
            found.append(WatchedPosts(name, directory, tenant, posted.stream))
        else:
            found.append(WatchedDirectory(name, directory, _listing(name, table.source, directory, roots)))
    return tuple(found)


def _listing(table: str, source: TableSource, directory: str, roots: Sequence[Root]) -> Callable[[], Iterable[Arrival]]:
    scheme, _, path = directory.partition("://")
    if scheme == "file":
        confines = Confines.of(roots)
        return lambda: local_arrivals(Path(path), confines)
    return lambda: stored_arrivals(table, source, roots)


class BacklogWatch:
    """Measures the backlog of one attempt. Only one thread at a time may call it. `sources` are the tables of the
    plan's sources in the order in which Spark numbers their logs.
    """

    def __init__(
        self,
        streams: Sequence[Watched],
        checkpoint: Path,
        database: Database,
        sources: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._streams = streams
        # A table has a source for each of its aliases. All of them read the same files sooner or later, so the first
        # one counts.
        self._by_source = {sources.index(stream.table): stream for stream in streams if stream.table in sources}
        self._checkpoint = checkpoint
        self._database = database
        self._clock = clock
        self._logs: dict[Path, SourceLog] = {}
        self._known: dict[str, Any] | None = None
        self._tables: tuple[TableBacklog, ...] = ()
        self._measured_at = self._took = float("-inf")

    @property
    def waiting_bytes(self) -> int:
        """The bytes in the backlogs of all sources, as last measured."""
        return sum(table.bytes for table in self._tables)

    @property
    def oldest_waiting_seconds(self) -> float:
        """The age of the oldest file or row in any backlog, as last measured; 0 if there is no backlog."""
        return max((table.oldest_age_seconds or 0.0 for table in self._tables), default=0.0)

    def forget(self) -> None:
        """Sets the backlog to nothing at the end of the attempt; the next attempt, if any, reports it."""
        self._tables = ()

    def measure(self, occasion: Occasion) -> dict[str, Any] | None:
        """Returns a `Backlog` as stored JSON: measured now if that is due, otherwise the last one; None if unknown.

        Raises the errors of an unavailable database.
        """
        now = self._clock()
        if not self._streams or now - self._measured_at < self._pause(occasion):
            return self._known
        try:
            self._known = self._current()
        finally:
            self._measured_at = self._clock()
            self._took = self._measured_at - now
        return self._known

    def _pause(self, occasion: Occasion) -> float:
        if occasion is Occasion.END and self._took < _QUICK_SECONDS:
            return 0.0
        return max(_PAUSE_FACTOR * self._took, 0.0 if occasion is Occasion.BATCH else _IDLE_SECONDS)

    def _current(self) -> dict[str, Any] | None:
        try:
            self._read_logs()
        except _UNKNOWN:
            # The log cannot be read, perhaps because Spark is writing it. The next measurement reads it again.
            return self._known
        with self._database.read() as session:
            at = self._database.now(session)
        # Outside of any transaction, since to list a directory may take long.
        tables = {stream.table: self._waiting(stream, at) for stream in self._streams}
        self._tables = tuple(table for table in tables.values() if table is not None)
        return Backlog(at=datetime.fromtimestamp(at / 1000, tz=UTC), tables=tables).stored()

    def _waiting(self, stream: Watched, now: int) -> TableBacklog | None:
        try:
            return stream.waiting(self._database, now)
        except _UNKNOWN:
            # If the directory cannot be read, the stream itself fails and reports the error.
            return None

    def _read_logs(self) -> None:
        for path in logs_of(self._checkpoint):
            stream = self._by_source.get(int(path.name))
            if stream is not None:
                for uri in self._logs.setdefault(path, SourceLog(path)).new():
                    if uri.startswith(f"{stream.directory}/"):
                        stream.mark_read(uri[len(stream.directory) + 1 :])


def _age(since: int | None, now: int) -> float | None:
    return None if since is None else round(max(0, now - since) / 1000, 1)
