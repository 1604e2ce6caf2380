"""The tables that a stream follows: which versions of them its mini-batches run with, and when others are to be used.

Rows that were joined before a change keep the values of before: nothing is corrected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workers.engine.spark.sources import TableInput
from workers.engine.streaming.micro_batch import BatchDone, BatchGuard
from workers.jobs.attempt import AttemptStopped
from workers.streams.lookup_table_polling import SETTLE_SECONDS, FollowedTable, HeldBack, TableLooks
from workers.streams.lookup_table_versions import BatchVersions, Use

_FIRST_RETRY_SECONDS = 1.0
"""The delay after a check that failed; it doubles with each further failure, up to the period of checks."""

Versions = Mapping[str, int]
"""By table."""


class OtherVersionsError(Exception):
    """The mini-batch that begins is to run with other versions than those that the stream was planned with."""


class Dimensions:
    """Those of one attempt. One thread at a time looks; the stream's own thread begins mini-batches meanwhile, and
    another one tells and tidies.

    `every` is the period, in seconds, in which a running stream checks its tables; `looks` runs the checks in a thread
    of their own. A check that fails is repeated sooner, with exponential backoff. `jitter` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        tables: Sequence[FollowedTable],
        decided: BatchVersions,
        checkpoint: Path,
        every: float,
        looks: TableLooks,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._tables = {table.name: table for table in tables}
        self._decided = decided
        self._commits = checkpoint / "commits"
        self._every = every
        self._looks = looks
        self._clock = clock
        self._jitter = jitter
        self._due = clock() + every
        self._failures = 0
        """Checks in a row that failed."""
        self._in_sink: int | None = None
        self._newest: Versions = {}
        """What mini-batches run with. Looks take others meanwhile: whoever takes them up does so between two steps."""

    def open(self, pause: Callable[[float], object]) -> None:
        """Takes the newest versions. Raises as `FollowedTable.open`, AttemptStopped, and OSError."""
        self._decided.announce()
        for table in self._tables.values():
            table.open(pause)
        # The attempt may have ended while a directory was listed: what follows removes files.
        self._looks.check()
        self.take_up()
        self._due = self._clock() + self._every
        self.tidy(self.newest)

    def agree_with(self, in_sink: int | None) -> None:
        """What the sink has, as its `committed` says once it has shut out older attempts. What they decided of a
        mini-batch holds if it is there.
        """
        self._in_sink = in_sink

    @property
    def newest(self) -> Versions:
        """What mini-batches run with of which nothing is decided yet."""
        return self._newest

    def of_next_batch(self) -> Versions:
        """What the mini-batch that comes next runs with: what it began with, where it was cut short and the sink has
        it. Raises OSError.
        """
        pending = self._pending()
        return self.newest if pending is None else {**self.newest, **self._holding(pending)}

    def of_batch(self, batch_id: int) -> Versions:
        """What was decided of a mini-batch; nothing where that is forgotten. Raises OSError."""
        return self._versions(self._decided.of(batch_id))

    def _holding(self, batch_id: int) -> Versions:
        """What was decided of a mini-batch and holds for this attempt; nothing where it is to decide. The version of
        an earlier attempt may be one that cannot be read: kept, the mini-batch would never be done.
        """
        by_earlier = self._in_sink is not None and self._in_sink >= batch_id
        return self._versions(self._decided.of(batch_id, by_earlier=by_earlier))

    def _versions(self, uses: Mapping[str, Use] | None) -> Versions:
        return {name: use.version for name, use in (uses or {}).items() if name in self._tables}

    def go_back(self, planned: Versions, reason: HeldBack) -> bool:
        """Whether mini-batches can run with the versions of the plan at hand after all, where newer ones cannot be
        planned with: these are held back from now on. Raises SpecError `dimension_missing` and OSError.
        """
        refused = self.newest
        if self.of_next_batch() != refused or planned == refused or self._decided.is_overtaken:
            return False
        for name, table in self._tables.items():
            if refused[name] != planned[name]:
                table.go_back(refused[name], planned[name], reason)
        self._newest = {name: planned[name] for name in self._tables}
        return True

    def inputs(self, versions: Versions) -> dict[str, TableInput]:
        """The tables as the engine reads them. Raises SpecError `dimension_missing`."""
        return {name: table.input(versions[name]) for name, table in self._tables.items()}

    @property
    def is_due(self) -> bool:
        """Whether it is time to look."""
        return self._clock() >= self._due

    def step(self) -> bool | None:
        """Whether there are newer versions now; None where there are none and no look has ended meanwhile. Those of one
        table are taken up though another one is still copied. Begins a look where it is time to, and waits for none.
        Raises what the look raised.
        """
        found = self._looks.found()
        if self.take_up():
            return True
        if found is None and self.is_due and not self._looks.is_under_way:
            self._looks.begin(self.look)
        return None if found is None else False

    def take_up(self) -> bool:
        """Has mini-batches run with what looks have taken so far; whether that is anything new."""
        taken = {name: table.newest.number for name, table in self._tables.items()}
        is_new, self._newest = taken != self._newest, taken
        return is_new

    def end(self) -> None:
        """With the attempt, and any number of times: nothing is copied any more."""
        self._looks.end()

    def look(self) -> bool:
        """Checks every table, and returns whether one has a newer version. Copies what has changed, however long that
        takes. Raises the first error of a table after it has checked all of them.
        """
        found, errors = [], []
        for table in self._tables.values():
            try:
                found.append(table.look(self._looks.place))
            except AttemptStopped:
                # During a copy.
                return False
            except Exception as error:  # noqa: BLE001 - one table's error does not keep others from being checked
                errors.append(error)
        if errors:
            self._due = self._clock() + self._retry_delay()
            self._failures += 1
            raise errors[0]
        self._failures = 0
        changing = any(table.is_changing for table in self._tables.values())
        self._due = self._clock() + (min(SETTLE_SECONDS, self._every) if changing else self._every)
        return any(found)

    def _retry_delay(self) -> float:
        """Seconds until a failed check is repeated: at least half of the backoff, so that workers that failed together
        do not all retry together.
        """
        backoff = _FIRST_RETRY_SECONDS * 2.0 ** min(self._failures, 30)
        return min(self._every, backoff) * (0.5 + 0.5 * self._jitter())

    def begin(self, batch_id: int, planned: Versions) -> None:
        """Before a mini-batch of a stream that was planned with these versions: decides that it runs with them.

        Raises OtherVersionsError where it is to run with others, and OSError.
        """
        holding = self._holding(batch_id)
        if not holding and planned == self.newest:
            self._decided.decide(batch_id, planned)
            holding = self._holding(batch_id)
        if holding != planned:
            raise OtherVersionsError(f"mini-batch {batch_id} runs with other versions of tables that are followed")

    def tidy(self, planned: Versions) -> None:
        """Removes versions that nothing can need any more: those but the newest, taken up or not, those of the plan at
        hand and those of a mini-batch that may come again. Raises OSError.
        """
        if self._decided.is_overtaken:
            # What another attempt needs is for it to say.
            return
        pending = self._pending()
        of_pending = {} if pending is None else self.of_batch(pending)
        for name, table in self._tables.items():
            table.keep_only({versions[name] for versions in (of_pending, planned, self.newest) if name in versions})

    def _pending(self) -> int | None:
        """The mini-batch that was begun and that Spark has not noted: it comes again."""
        last = self._decided.newest()
        return None if last is None or (self._commits / str(last)).exists() else last

    def of_own_files(self, text: str) -> str:
        """A text of Spark's with the tables' own files in the place of their copies."""
        for table in self._tables.values():
            text = table.of_own_files(text)
        return text

    def told_of_batch(self, batch_id: int) -> dict[str, int] | None:
        """For clients: the version of each table that a mini-batch ran with; None where it is forgotten. Raises
        OSError.
        """
        return dict(self.of_batch(batch_id)) or None

    def told(self, planned: Versions) -> list[dict[str, Any]]:
        """For clients, as JSON values: of each table the version that is in use, and why a newer one is not."""
        last = self._decided.newest()
        uses = (None if last is None else self._decided.of(last)) or {}
        told = []
        for name, table in self._tables.items():
            version = table.version(planned[name])
            use = uses.get(name)
            # Looked up once: a look may be under way.
            held_back = table.held_back
            told.append(
                {
                    "table": name,
                    "version": version.number,
                    "since_batch": use.since if use is not None and use.version == version.number else None,
                    "taken_at": datetime.fromtimestamp(version.taken_at / 1000, UTC).isoformat(),
                    "files": len(version.files.files),
                    "bytes": version.files.bytes,
                    "not_taken": None if held_back is None else {"code": held_back.code, "detail": held_back.detail},
                }
            )
        return told


class VersionGuard:
    """A `BatchGuard` for a stream that was planned with these versions: it begins no mini-batch that needs others."""

    def __init__(self, inner: BatchGuard, dimensions: Dimensions, planned: Versions) -> None:
        self._inner = inner
        self._dimensions = dimensions
        self._planned = planned

    def begin(self, batch_id: int) -> None:
        """See `BatchGuard`. Raises OtherVersionsError."""
        self._inner.begin(batch_id)
        self._dimensions.begin(batch_id, self._planned)

    def finish(self, done: BatchDone) -> None:
        """See `BatchGuard`."""
        self._inner.finish(done)
