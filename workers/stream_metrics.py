"""The metrics of a mini-batch, from Spark's progress report and the files of the checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from service.spec.stream_metrics import BatchMetrics, StateMetrics
from service.store.streams import BatchMeasures
from workers.engine.streaming.progress import BatchProgress, SourceProgress, StateProgress
from workers.engine.streaming.sources import SourceRead
from workers.engine.streaming.state_changes import StateChanges

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
