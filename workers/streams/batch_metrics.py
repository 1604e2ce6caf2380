"""The metrics of a running stream: those of each mini-batch, and from time to time its backlog.

They come from Spark's progress reports, the files of the checkpoint, and `BacklogWatch`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from service.contract.stream_reports import BatchMetrics, StateMetrics
from service.store import streaming_jobs
from service.store.attempts import Claim
from service.store.streaming_jobs import BACKLOG, BatchMeasures
from workers.engine.streaming.query import BatchProgress, SourceProgress, StateProgress
from workers.engine.streaming.sources import SourceRead
from workers.engine.streaming.state import StateChanges, bytes_of_changes, changes_of
from workers.metrics import WorkerMetrics
from workers.streams.backlog import BacklogWatch, Occasion

_MILLISECOND = timedelta(milliseconds=1)

_NEWEST = 10
"""Of how many mini-batches of one step the checkpoint files are read. If more end between two steps, they are small."""


def measures_of(
    progress: BatchProgress,
    reads: Sequence[SourceRead],
    allow_latency: timedelta | None = None,
    changes: Sequence[StateChanges | None] = (),
    sizes_from_changelog: Sequence[int | None] = (),
) -> BatchMeasures:
    """Returns the metrics of one mini-batch.

    `reads` are the sources of the plan, in the order in which Spark reports them. `allow_latency` is the job's setting,
    None if its mini-batches do not wait. `changes` are the changes of the state of each operator, in the order of their
    numbers, None where unknown. `sizes_from_changelog` has, in the same order, the size of a new state whose store does
    not report one yet.
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


def _state(report: StateProgress, changes: StateChanges | None, size_from_changelog: int | None) -> StateMetrics:
    return StateMetrics(
        operator=report.operator,
        rows=report.rows,
        updated=report.updated,
        removed=report.removed,
        late_rows=report.late_rows,
        memory_bytes=report.memory_bytes,
        state_bytes=size_from_changelog if report.state_bytes is None else report.state_bytes,
        partitions=report.partitions,
        commit_ms=report.commit_ms,
        changed_bytes=None if changes is None else sum(changes.bytes),
        largest_changed_bytes=None if changes is None else max(changes.bytes),
        skew=None if changes is None or changes.skew is None else round(changes.skew, 2),
    )


def _changes_of(changes: Sequence[StateChanges | None], place: int, operator: str) -> StateChanges | None:
    """Returns the changes of the operator at `place`: Spark reports operators in the order of their numbers."""
    found = changes[place] if place < len(changes) else None
    return found if found is not None and found.operator == operator else None


def _operations(state: StateProgress) -> int:
    """Returns the number of reads and writes. If the store does not count reads, there is one read for each write."""
    return state.updated + (state.reads if state.reads is not None else state.updated)


def _rows(sources: Sequence[SourceProgress], reads: Sequence[SourceRead]) -> int:
    """Returns the number of input rows of all tables. Spark counts a row each time that the plan reads it, and a table
    has a source for each of its aliases. If the report is from another plan, returns the number that Spark counts.
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


@dataclass(frozen=True)
class StreamReport:
    """The metrics to store; false if there are none. The newest of `measures` includes the backlog."""

    measures: tuple[BatchMeasures, ...] = ()
    backlog: dict[str, Any] | None = None

    def __bool__(self) -> bool:
        return bool(self.measures) or self.backlog is not None

    def store(self, session: Session, held: Claim, generation: int, now: int) -> None:
        """Stores the metrics, unless the lease is lost."""
        if self.measures:
            streaming_jobs.measure_batches(session, held, generation, self.measures, now)
        elif self.backlog is not None:
            streaming_jobs.save_stream_metric(session, held, generation, streaming_jobs.BACKLOG, self.backlog, now)


class StreamMetrics:
    """Measures the stream of one attempt, one thread at a time. `allow_latency` is None if mini-batches do not wait."""

    def __init__(
        self, checkpoint: Path, backlog: BacklogWatch, allow_latency: timedelta | None, metrics: WorkerMetrics
    ) -> None:
        self._checkpoint = checkpoint
        self._backlog = backlog
        self._allow_latency = allow_latency
        self._stored: dict[str, Any] | None = None
        """The backlog that was stored last."""
        self._counted = -1
        self._metrics = metrics
        metrics.watch_stream(backlog)

    def measure(self, found: Sequence[BatchProgress], reads: Sequence[SourceRead], *, at_end: bool) -> StreamReport:
        """Returns the metrics of the mini-batches `found` since the last call, oldest first. A backlog is returned
        again until `stored` is called with it.

        Raises the errors of an unavailable database.
        """
        backlog = self._backlog.measure(Occasion.END if at_end else Occasion.BATCH if found else Occasion.IDLE)
        if at_end:
            self._backlog.forget()
        if not found:
            is_new = backlog is not None and backlog.get("tables") != (self._stored or {}).get("tables")
            return StreamReport(backlog=backlog) if is_new else StreamReport()
        self._count(found)
        newest = len(found) - _NEWEST
        measures = [
            measures_of(one, reads, self._allow_latency, *(self._of_files(one) if place >= newest else ()))
            for place, one in enumerate(found)
        ]
        if backlog is not None:
            last = measures[-1]
            measures[-1] = BatchMeasures(last.batch_id, last.rows_in, {**last.metrics, BACKLOG: backlog})
        return StreamReport(tuple(measures), backlog)

    def stored(self, report: StreamReport) -> None:
        """Records that these metrics are in the database."""
        if report.backlog is not None:
            self._stored = report.backlog

    def _count(self, found: Sequence[BatchProgress]) -> None:
        """Counts each mini-batch once in the worker's metrics, even if it is reported again."""
        for one in found:
            if one.batch_id > self._counted:
                self._metrics.mini_batch(one.duration_ms)
                self._counted = one.batch_id

    def _of_files(self, one: BatchProgress) -> tuple[tuple[StateChanges | None, ...], tuple[int | None, ...]]:
        """Returns the changes of the state by operator, and its sizes where the store does not report them."""
        if not one.state:
            return (), ()
        try:
            changes = changes_of(self._checkpoint, one.batch_id)
            is_young = any(state.state_bytes is None for state in one.state)
            return changes, bytes_of_changes(self._checkpoint, one.batch_id) if is_young else ()
        except (OSError, ValueError, KeyError, IndexError):
            # Spark may have removed the files of an old mini-batch, which is then reported without them.
            return (), ()
