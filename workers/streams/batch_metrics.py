"""The metrics of a mini-batch, from Spark's progress report and the files of the checkpoint.

What is told of a stream while it runs: of each mini-batch once, and now and then how far it is behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from service.contract.reports import BatchMetrics, StateMetrics
from service.store import streaming_jobs
from service.store.leases import Claim
from service.store.streaming_jobs import BACKLOG, BatchMeasures
from workers.engine.streaming.query import BatchProgress, SourceProgress, StateProgress
from workers.engine.streaming.sources import SourceRead
from workers.engine.streaming.state import StateChanges, bytes_of_changes, changes_of
from workers.metrics import WorkerMetrics
from workers.streams.backlog import BacklogWatch, Occasion

_MILLISECOND = timedelta(milliseconds=1)


def measures_of(
    progress: BatchProgress,
    reads: Sequence[SourceRead],
    allow_latency: timedelta | None = None,
    changes: Sequence[StateChanges | None] = (),
    sizes_from_changelog: Sequence[int | None] = (),
) -> BatchMeasures:
    """`reads` are the sources of the plan, in the order in which Spark reports them. `allow_latency` is what the job
    asks for, None where its mini-batches do not wait. `changes` are those of the state by operator in the order of
    their numbers, None where they are not known; `sizes_from_changelog` has in the same order the size of a new state
    whose store reports none yet.
    """
    rows = _rows(progress.sources, reads)
    operations = sum(map(_operations, progress.state))
    metrics = BatchMetrics(
        duration_ms=progress.duration_ms,
        busy=round(progress.duration_ms * _MILLISECOND / allow_latency, 3) if allow_latency else None,
        rows_per_second=round(1000 * rows / progress.duration_ms, 1) if progress.duration_ms else None,
        durations_ms=dict(progress.durations_ms),
        watermark=progress.watermark,
        state_operations_per_row=round(operations / rows, 4) if rows else None,
        state=tuple(
            _state(
                one,
                _changes_of(changes, place, one.operator),
                sizes_from_changelog[place] if place < len(sizes_from_changelog) else None,
            )
            for place, one in enumerate(progress.state)
        ),
    )
    return BatchMeasures(progress.batch_id, rows, metrics.model_dump(mode="json"))


def _state(told: StateProgress, changes: StateChanges | None, size_from_changelog: int | None) -> StateMetrics:
    return StateMetrics(
        operator=told.operator,
        rows=told.rows,
        updated=told.updated,
        removed=told.removed,
        late_rows=told.late_rows,
        memory_bytes=told.memory_bytes,
        state_bytes=size_from_changelog if told.state_bytes is None else told.state_bytes,
        partitions=told.partitions,
        commit_ms=told.commit_ms,
        changed_bytes=None if changes is None else sum(changes.bytes),
        largest_changed_bytes=None if changes is None else max(changes.bytes),
        skew=None if changes is None or changes.skew is None else round(changes.skew, 2),
    )


def _changes_of(changes: Sequence[StateChanges | None], place: int, operator: str) -> StateChanges | None:
    """Spark reports operators in the order of their numbers."""
    found = changes[place] if place < len(changes) else None
    return found if found is not None and found.operator == operator else None


def _operations(state: StateProgress) -> int:
    """Looks and writes; of a store that does not count its looks, a write stands for both."""
    return state.updated + (state.reads if state.reads is not None else state.updated)


def _rows(sources: Sequence[SourceProgress], reads: Sequence[SourceRead]) -> int:
    """The rows of all tables. Spark counts a row each time that the plan reads it, and a table may have several
    sources, one for each of its aliases. Where the report is of another plan, all rows as Spark counts them.
    """
    if len(sources) != len(reads):
        return sum(source.rows for source in sources)
    counted: Counter[str] = Counter()
    for source, read in zip(sources, reads, strict=True):
        counted[read.table] += source.rows
    times: Counter[str] = Counter()
    for read in reads:
        times[read.table] += read.times
    return sum(rows // times[table] for table, rows in counted.items())


_NEWEST = 10
"""Mini-batches of one look whose files are looked at; a stream that ends so many between two looks has small ones."""


@dataclass(frozen=True)
class Told:
    """What is to be stored; false where that is nothing. The newest of `measures` has the backlog with it."""

    measures: tuple[BatchMeasures, ...] = ()
    backlog: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.measures) or self.backlog is not None

    def store(self, session: Session, held: Claim, generation: int, now: int) -> None:
        """Stores it, unless the lease is lost."""
        if self.measures:
            streaming_jobs.measure_batches(session, held, generation, self.measures, now)
        elif self.backlog is not None:
            streaming_jobs.note_backlog(session, held, generation, self.backlog, now)


class StreamMeasuring:
    """For one attempt; one thread at a time. `allow_latency` is None where mini-batches do not wait for it."""

    def __init__(
        self, checkpoint: Path, backlog: BacklogWatch, allow_latency: timedelta | None, metrics: WorkerMetrics
    ) -> None:
        self._checkpoint = checkpoint
        self._backlog = backlog
        self._allow_latency = allow_latency
        self._noted: dict[str, Any] | None = None
        """The backlog that was stored last."""
        self._counted = -1
        self._metrics = metrics
        metrics.watch_stream(backlog)

    def tell(self, found: Sequence[BatchProgress], reads: Sequence[SourceRead], *, at_end: bool) -> Told:
        """Of the mini-batches `found` since the last time, oldest first. Told again until `stored` says that it is.

        Raises what the database raises.
        """
        behind = self._backlog.look(Occasion.END if at_end else Occasion.BATCH if found else Occasion.IDLE)
        if at_end:
            self._backlog.forget()
        if not found:
            is_new = behind is not None and behind.get("tables") != (self._noted or {}).get("tables")
            return Told(backlog=behind) if is_new else Told()
        self._count(found)
        newest = len(found) - _NEWEST
        measures = [
            measures_of(one, reads, self._allow_latency, *(self._of_files(one) if place >= newest else ()))
            for place, one in enumerate(found)
        ]
        if behind is not None:
            last = measures[-1]
            measures[-1] = BatchMeasures(last.batch_id, last.rows_in, {**last.metrics, BACKLOG: behind})
        return Told(tuple(measures), behind)

    def stored(self, told: Told) -> None:
        """Notes that what was told is in the database."""
        if told.backlog is not None:
            self._noted = told.backlog

    def _count(self, found: Sequence[BatchProgress]) -> None:
        """Each once, though what was told of it may have to be told again."""
        for one in found:
            if one.batch_id > self._counted:
                self._metrics.mini_batch(one.duration_ms)
                self._counted = one.batch_id

    def _of_files(self, one: BatchProgress) -> tuple[tuple[StateChanges | None, ...], tuple[int | None, ...]]:
        """The changes of the state by operator, and its size where the store does not report one."""
        if not one.state:
            return (), ()
        try:
            changes = changes_of(self._checkpoint, one.batch_id)
            is_young = any(state.state_bytes is None for state in one.state)
            return changes, bytes_of_changes(self._checkpoint, one.batch_id) if is_young else ()
        except (OSError, ValueError, KeyError, IndexError):
            # The files of an old mini-batch may be gone: it is reported without them.
            return (), ()


def tell(
    measuring: StreamMeasuring | None, found: Sequence[BatchProgress], reads: Sequence[SourceRead], *, at_end: bool
) -> Told:
    """As `StreamMeasuring.tell`; what Spark alone tells where nothing more is measured."""
    if measuring is not None:
        return measuring.tell(found, reads, at_end=at_end)
    return Told(tuple(measures_of(one, reads) for one in found))
