"""A set of names that only grows, in eight bytes each: a stream takes millions of files in its life.

How far a stream is behind: what its sources have, without what its mini-batches took when they began.

What was taken is in the checkpoint, what is there in directories and in the database. To list a directory of a hundred
thousand files takes a good part of a second: looks are so far apart that they take a fiftieth of the time at most.
"""

from __future__ import annotations

import re
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

from service.contract.job import JobSpec, StreamTable, TableSource
from service.contract.problems import SpecError
from service.contract.reports import Backlog, TableBacklog
from service.data.file_changes import Arrival, Confines, local_arrivals, stored_arrivals
from service.data.roots import Root, StoreUnavailableError
from service.store.input_streams import waiting_batches
from service.store.session import Database
from workers.engine.streaming.source_log import TakenFiles, logs_of
from workers.engine.streaming.sources import StreamInput
from workers.streams.inputs import Inputs

_FEW = 1024
_PART = 8
"""New ones are put to the sorted ones once they are a part of them as large as that."""


class TakenNames:
    """Keeps hashes, by which one in billions is taken for another: enough for what is only told."""

    def __init__(self) -> None:
        self._sorted: array[int] = array("q")
        self._new: set[int] = set()

    def add(self, name: str) -> None:
        """Once is as good as twice."""
        if name in self:
            return
        self._new.add(hash(name))
        if len(self._new) > max(_FEW, len(self._sorted) // _PART):
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


_SHARE = 50
"""A look that took so long is followed by none for so many times as long."""

_SECONDS = 5.0
"""Between looks while no mini-batch ends."""

_QUICK_SECONDS = 1.0
"""A look that takes longer is not worth making an attempt wait at its end."""

_MOST_APART = 1000
"""So many numbers are kept of posted batches that were taken before older ones."""

_NO_ANSWER = (OSError, ValueError, KeyError, SpecError, StoreUnavailableError)


class Occasion(Enum):
    """Why one looks: a mini-batch has ended, none has, or the attempt has, after which nobody looks again."""

    BATCH = "batch"
    IDLE = "idle"
    END = "end"


class Watched(Protocol):
    """A stream that can be behind. `directory` is how the files of it begin that Spark takes."""

    table: str
    directory: str

    def take(self, name: str) -> None:
        """Notes that a mini-batch took the file of this name, relative to the directory. May be told again."""

    def waiting(self, database: Database, now: int) -> TableBacklog:
        """What is there and was not taken, at `now` (milliseconds). Raises one of what tells that nobody knows."""


@dataclass
class WatchedDirectory:
    """Files of a directory. Knows all that were ever taken, as Spark does: it takes none of them again, and one that
    was removed and is back does not wait.
    """

    table: str
    directory: str
    listing: Callable[[], Iterable[Arrival]]
    _taken: TakenNames = field(default_factory=TakenNames)

    def take(self, name: str) -> None:
        """See `Watched`."""
        self._taken.add(name)

    def waiting(self, _database: Database, now: int) -> TableBacklog:
        """See `Watched`."""
        files = size = 0
        oldest: int | None = None
        for arrival in self.listing():
            if arrival.name in self._taken:
                continue
            files += 1
            size += arrival.bytes
            if arrival.written_at is not None:
                oldest = arrival.written_at if oldest is None else min(oldest, arrival.written_at)
        return TableBacklog(files=files, rows=None, bytes=size, oldest_seconds=_age(oldest, now))


@dataclass
class WatchedPosts:
    """Batches of posted rows, whose files are named by their numbers: all up to `_to` were taken, and `_too`."""

    table: str
    directory: str
    tenant: str
    stream: str
    _to: int = 0
    _too: set[int] = field(default_factory=set)

    def take(self, name: str) -> None:
        """See `Watched`."""
        number = int(name.partition("-")[0])
        if number <= self._to:
            return
        self._too.add(number)
        if len(self._too) > _MOST_APART:
            # Whatever is older counts as taken: files appear out of order rarely, and not by so far.
            self._to = min(self._too) - 1
        while self._to + 1 in self._too:
            self._to += 1
            self._too.remove(self._to)

    def waiting(self, database: Database, now: int) -> TableBacklog:
        """See `Watched`."""
        with database.read() as session:
            found = waiting_batches(session, self.tenant, self.stream, self._to, self._too)
        return TableBacklog(
            files=found.batches, rows=found.rows, bytes=found.bytes, oldest_seconds=_age(found.oldest_at, now)
        )


def watched(spec: JobSpec, inputs: Inputs, roots: Sequence[Root], tenant: str) -> tuple[Watched, ...]:
    """Those of the job's streams that can be behind."""
    found: list[Watched] = []
    for name, table in inputs.tables.items():
        if not isinstance(table, StreamInput):
            continue
        posted = spec.tables[name]
        directory = re.sub(r"\\(.)", r"\1", table.directory)
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
    """Looks at the streams of one attempt; one thread at a time. `sources` are the tables of the plan's sources in
    Spark's order, by which Spark numbers their logs.
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
        # A table has a source for each of its aliases, all of which take the same files sooner or later: the first one
        # counts.
        self._by_source = {sources.index(stream.table): stream for stream in streams if stream.table in sources}
        self._checkpoint = checkpoint
        self._database = database
        self._clock = clock
        self._logs: dict[Path, TakenFiles] = {}
        self._known: dict[str, Any] | None = None
        self._tables: tuple[TableBacklog, ...] = ()
        self._looked = self._took = float("-inf")

    @property
    def waiting_bytes(self) -> int:
        """Of all streams together, as last looked up."""
        return sum(table.bytes for table in self._tables)

    @property
    def oldest_waiting_seconds(self) -> float:
        """Of the stream whose oldest has waited the longest; 0 where nothing waits."""
        return max((table.oldest_seconds or 0.0 for table in self._tables), default=0.0)

    def forget(self) -> None:
        """Nothing waits for this attempt any more; the next one counts it, if there is one."""
        self._tables = ()

    def look(self, occasion: Occasion) -> dict[str, Any] | None:
        """A `Backlog` as JSON, found out now where it is time to, else as it was; None where nobody knows.

        Raises what the database raises while it is away.
        """
        now = self._clock()
        if not self._streams or now - self._looked < self._pause(occasion):
            return self._known
        try:
            self._known = self._found()
        finally:
            self._looked = self._clock()
            self._took = self._looked - now
        return self._known

    def _pause(self, occasion: Occasion) -> float:
        if occasion is Occasion.END and self._took < _QUICK_SECONDS:
            return 0.0
        return max(_SHARE * self._took, 0.0 if occasion is Occasion.BATCH else _SECONDS)

    def _found(self) -> dict[str, Any] | None:
        try:
            self._follow()
        except _NO_ANSWER:
            # What was taken is not known: Spark may be about to write it. The next look reads it again.
            return self._known
        with self._database.read() as session:
            at = self._database.now(session)
        # Outside of any transaction: a listing takes its time.
        tables = {stream.table: self._waiting(stream, at) for stream in self._streams}
        self._tables = tuple(table for table in tables.values() if table is not None)
        return Backlog(at=datetime.fromtimestamp(at / 1000, tz=UTC), tables=tables).model_dump(mode="json")

    def _waiting(self, stream: Watched, now: int) -> TableBacklog | None:
        try:
            return stream.waiting(self._database, now)
        except _NO_ANSWER:
            # The stream itself fails where it cannot read its directory, and tells why.
            return None

    def _follow(self) -> None:
        for path in logs_of(self._checkpoint):
            stream = self._by_source.get(int(path.name))
            if stream is not None:
                for uri in self._logs.setdefault(path, TakenFiles(path)).new():
                    if uri.startswith(f"{stream.directory}/"):
                        stream.take(uri[len(stream.directory) + 1 :])


def _age(since: int | None, now: int) -> float | None:
    return None if since is None else round(max(0, now - since) / 1000, 1)
