"""The lookup tables that a stream follows: which versions its mini-batches use, and when to change them.

Rows that were joined before a change keep the old values; they are not corrected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workers.engine.spark.sources import TableInput
from workers.engine.streaming.query import BatchDone, BatchFence
from workers.jobs.attempt import AttemptStopped
from workers.streams.lookup_table_polling import SETTLE_SECONDS, FollowedTable, NotUsed, TableChecks
from workers.streams.lookup_table_versions import BatchVersions, Use

_FIRST_RETRY_SECONDS = 1.0
"""The delay after a check that failed; it doubles with each further failure, up to the period of checks."""

Versions = Mapping[str, int]
"""The number of a version, by table name."""


class OtherVersionsError(Exception):
    """The mini-batch must run with other versions than those of the stream's plan."""


class LookupTables:
    """The followed tables of one attempt. Only one thread at a time checks them. At the same time the stream's own
    thread begins mini-batches, and another thread reports and removes versions.

    `every` is the period, in seconds, in which a running stream checks its tables; `checks` runs the checks in their
    own thread. A check that fails is repeated sooner, with exponential backoff. `jitter` gives numbers from 0 to 1.
    """

    def __init__(
        self,
        tables: Sequence[FollowedTable],
        decided: BatchVersions,
        checkpoint: Path,
        every: float,
        checks: TableChecks,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._tables = {table.name: table for table in tables}
        self._decided = decided
        self._commits = checkpoint / "commits"
        self._every = every
        self._checks = checks
        self._clock = clock
        self._jitter = jitter
        self._due = clock() + every
        self._failures = 0
        """Checks in a row that failed."""
        self._in_sink: int | None = None
        self._newest: Versions = {}
        """The versions for the next mini-batches. Checks make newer ones at the same time; `adopt_newest` adopts them.
        """

    def open(self, pause: Callable[[float], object]) -> None:
        """Makes and adopts the newest versions. Raises what `FollowedTable.open` raises, AttemptStopped, OSError."""
        self._decided.announce()
        for table in self._tables.values():
            table.open(pause)
        # The attempt may have ended while a directory was listed; it must not remove files after that.
        self._checks.check()
        self.adopt_newest()
        self._due = self._clock() + self._every
        self.tidy(self.newest)

    def set_committed(self, in_sink: int | None) -> None:
        """Sets the last mini-batch in the sink: its `committed` after older attempts were fenced off. The decision of
        an older attempt is binding only for a mini-batch that is in the sink.
        """
        self._in_sink = in_sink

    @property
    def newest(self) -> Versions:
        """The versions for mini-batches without a decision."""
        return self._newest

    def of_next_batch(self) -> Versions:
        """Returns the versions of the next mini-batch. One that was interrupted and that is in the sink keeps the
        versions that it began with. Raises OSError.
        """
        pending = self._pending()
        return self.newest if pending is None else {**self.newest, **self._holding(pending)}

    def of_batch(self, batch_id: int) -> Versions:
        """Returns the versions that were decided for a mini-batch; empty if they are not stored any more. Raises
        OSError.
        """
        return self._versions(self._decided.of(batch_id))

    def _holding(self, batch_id: int) -> Versions:
        """Returns the versions of a mini-batch that this attempt must use; empty if it may decide. The decision of an
        earlier attempt binds only if the sink has the mini-batch: with a version that cannot be read, the mini-batch
        would never complete.
        """
        by_earlier = self._in_sink is not None and self._in_sink >= batch_id
        return self._versions(self._decided.of(batch_id, by_earlier=by_earlier))

    def _versions(self, uses: Mapping[str, Use] | None) -> Versions:
        return {name: use.version for name, use in (uses or {}).items() if name in self._tables}

    def revert(self, planned: Versions, reason: NotUsed) -> bool:
        """Returns to the versions of the current plan if no plan can be made with newer ones. The newer ones are not
        used from then on. Returns False if the next mini-batch needs them. Raises SpecError `dimension_missing` and
        OSError.
        """
        refused = self.newest
        if self.of_next_batch() != refused or planned == refused or self._decided.is_superseded:
            return False
        for name, table in self._tables.items():
            if refused[name] != planned[name]:
                table.revert(refused[name], planned[name], reason)
        self._newest = {name: planned[name] for name in self._tables}
        return True

    def inputs(self, versions: Versions) -> dict[str, TableInput]:
        """Returns the inputs of these versions for the engine. Raises SpecError `dimension_missing`."""
        return {name: table.input(versions[name]) for name, table in self._tables.items()}

    @property
    def is_due(self) -> bool:
        """Whether the next check is due."""
        return self._clock() >= self._due

    def step(self) -> bool | None:
        """Adopts newer versions, and starts a check if one is due. Waits for no check. Returns True if there were newer
        versions, False if a check has ended without one, None otherwise. The new version of one table is adopted even
        while another table is still copied. Raises what the check raised.
        """
        result = self._checks.result()
        if self.adopt_newest():
            return True
        if result is None and self.is_due and not self._checks.is_running:
            self._checks.begin(self.poll)
        return None if result is None else False

    def adopt_newest(self) -> bool:
        """Makes the next mini-batches use the newest versions. Returns whether any of them is new."""
        newest = {name: table.newest.number for name, table in self._tables.items()}
        is_new, self._newest = newest != self._newest, newest
        return is_new

    def end(self) -> None:
        """Stops the checks at the end of the attempt. May be called several times."""
        self._checks.end()

    def poll(self) -> bool:
        """Checks every table, and returns whether one has a newer version. Copies the changed tables, which may take
        long. Raises the first error of a table after it has checked all of them.
        """
        found, errors = [], []
        for table in self._tables.values():
            try:
                found.append(table.poll(self._checks.copy_slot))
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
        """Called before a mini-batch of a stream whose plan has these versions: records that it runs with them.

        Raises OtherVersionsError if it must run with other versions, and OSError.
        """
        holding = self._holding(batch_id)
        if not holding and planned == self.newest:
            self._decided.decide(batch_id, planned)
            holding = self._holding(batch_id)
        if holding != planned:
            raise OtherVersionsError(f"mini-batch {batch_id} needs other versions of lookup tables")

    def tidy(self, planned: Versions) -> None:
        """Removes the versions that are not needed any more. Keeps the newest ones, adopted or not, those of the
        current plan, and those of a mini-batch that may run again. Raises OSError.
        """
        if self._decided.is_superseded:
            # A newer attempt decides what it needs.
            return
        pending = self._pending()
        of_pending = {} if pending is None else self.of_batch(pending)
        for name, table in self._tables.items():
            table.keep_only({versions[name] for versions in (of_pending, planned, self.newest) if name in versions})

    def _pending(self) -> int | None:
        """Returns the mini-batch that began and that Spark has not committed; None if there is none. It runs again."""
        last = self._decided.newest()
        return None if last is None or (self._commits / str(last)).exists() else last

    def with_own_names(self, text: str) -> str:
        """Replaces the paths of copies in a message of Spark by those of the tables' own files."""
        for table in self._tables.values():
            text = table.with_own_names(text)
        return text

    def reported_versions(self, batch_id: int) -> dict[str, int] | None:
        """Returns, for clients, the version of each table that a mini-batch used; None if it is not stored any more.
        Raises OSError.
        """
        return dict(self.of_batch(batch_id)) or None

    def report(self, planned: Versions) -> list[dict[str, Any]]:
        """Returns, for clients, the version in use of each table as stored JSON, and why a newer one is not used. See
        `RefreshedTable.from_stored`.
        """
        last = self._decided.newest()
        uses = (None if last is None else self._decided.of(last)) or {}
        report = []
        for name, table in self._tables.items():
            version = table.version(planned[name])
            use = uses.get(name)
            # Read once: a check may replace it at the same time.
            not_used = table.not_used
            report.append(
                {
                    "table": name,
                    "version": version.number,
                    "since_batch": use.since if use is not None and use.version == version.number else None,
                    "taken_at": datetime.fromtimestamp(version.created_at / 1000, UTC).isoformat(),
                    "files": len(version.files.files),
                    "bytes": version.files.bytes,
                    "not_taken": None if not_used is None else {"code": not_used.code, "detail": not_used.detail},
                }
            )
        return report


class VersionFence:
    """A `BatchFence` for a stream whose plan has the versions `planned`. Begins no mini-batch that needs other ones."""

    def __init__(self, inner: BatchFence, lookup_tables: LookupTables, planned: Versions) -> None:
        self._inner = inner
        self._lookup_tables = lookup_tables
        self._planned = planned

    def begin(self, batch_id: int) -> None:
        """See `BatchFence`. Raises OtherVersionsError."""
        self._inner.begin(batch_id)
        self._lookup_tables.begin(batch_id, self._planned)

    def finish(self, done: BatchDone) -> None:
        """See `BatchFence`."""
        self._inner.finish(done)
