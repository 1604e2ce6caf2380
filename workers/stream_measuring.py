"""What is told of a stream while it runs: of each mini-batch once, and now and then how far it is behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from service.store import streams
from service.store.leases import Claim
from service.store.streams import BACKLOG, BatchMeasures
from workers.engine.streaming.progress import BatchProgress
from workers.engine.streaming.sources import SourceRead
from workers.engine.streaming.state_changes import StateChanges, bytes_of_changes, changes_of
from workers.metrics import WorkerMetrics
from workers.stream_backlog import BacklogWatch, Occasion
from workers.stream_metrics import measures_of

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
            streams.measure_batches(session, held, generation, self.measures, now)
        elif self.backlog is not None:
            streams.note_backlog(session, held, generation, self.backlog, now)


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
