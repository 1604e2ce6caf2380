"""What Spark tells of a mini-batch, read into numbers.

A streaming query of Spark's, from its start to its end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from service.contract.enums import OutputMode
from workers.engine.streaming.micro_batch import BatchFunction


@dataclass(frozen=True)
class StateProgress:
    """One stateful operator. `rows` is None where the store does not count them; `updated` are keys that the mini-batch
    wrote, `removed` those that it dropped, `reads` how often it looked one up, where the store tells. `state_bytes` is
    the size of the state, None where it is not known; `memory_bytes` what is held in memory of it, and beside it.
    """

    operator: str
    rows: int | None
    updated: int
    removed: int
    memory_bytes: int
    state_bytes: int | None
    late_rows: int
    reads: int | None
    partitions: int
    commit_ms: int


@dataclass(frozen=True)
class SourceProgress:
    """One stream: `rows` came from it, as often as the plan reads it; it was read up to `end`, as Spark notes it."""

    description: str
    rows: int
    end: str


@dataclass(frozen=True)
class BatchProgress:
    """One mini-batch."""

    batch_id: int
    duration_ms: int
    durations_ms: Mapping[str, int]
    watermark: str | None
    state: tuple[StateProgress, ...]
    sources: tuple[SourceProgress, ...]


def progress_of(text: str) -> BatchProgress | None:
    """A `StreamingQueryProgress` as JSON; None for one of a trigger that ran no mini-batch."""
    told: dict[str, Any] = json.loads(text)
    durations = told.get("durationMs", {})
    if "addBatch" not in durations:
        return None
    return BatchProgress(
        batch_id=told["batchId"],
        duration_ms=durations.get("triggerExecution", 0),
        durations_ms=durations,
        watermark=told.get("eventTime", {}).get("watermark"),
        state=tuple(map(_state, told.get("stateOperators", ()))),
        sources=tuple(map(_source, told.get("sources", ()))),
    )


def _source(told: Mapping[str, Any]) -> SourceProgress:
    return SourceProgress(told["description"], told.get("numInputRows", 0), json.dumps(told.get("endOffset")))


def _state(told: Mapping[str, Any]) -> StateProgress:
    custom = told.get("customMetrics", {})
    reads = custom.get("rocksdbGetCount")
    return StateProgress(
        operator=told["operatorName"],
        # RocksDB that does not count them says 0 all along.
        rows=told["numRowsTotal"] or None,
        updated=told["numRowsUpdated"],
        removed=told.get("numRowsRemoved", 0),
        memory_bytes=told["memoryUsedBytes"],
        # RocksDB's files: it has none, and reports 0, before it first writes them. Of a state in memory, the newest
        # version.
        state_bytes=custom.get("rocksdbSstFileSize") or custom.get("stateOnCurrentVersionSizeBytes"),
        late_rows=told.get("numRowsDroppedByWatermark", 0),
        reads=reads,
        partitions=told.get("numShufflePartitions", 0),
        commit_ms=told.get("commitTimeMs", 0),
    )


_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Trigger:
    """When mini-batches begin: one after the other until nothing is new (`every` None), or so far apart, at the least,
    for ever."""

    every: timedelta | None = None

    AT_ONCE: ClassVar[timedelta] = timedelta(0)
    """One after the other for ever."""

    @property
    def options(self) -> dict[str, bool | str]:
        """As `DataStreamWriter.trigger` takes it."""
        if self.every is None:
            return {"availableNow": True}
        return {"processingTime": f"{round(self.every / timedelta(milliseconds=1))} milliseconds"}


class RunningStream:
    """A query that was started. Threads may look at it and stop it; its mini-batches run on a thread of Spark's."""

    def __init__(self, query: StreamingQuery, batch: BatchFunction) -> None:
        self._query = query
        self._batch = batch

    @classmethod
    def start(
        cls, frame: DataFrame, output: OutputMode, checkpoint: Path, trigger: Trigger, batch: BatchFunction
    ) -> RunningStream:
        """Starts the query at `checkpoint`, where it goes on from what is there. What this thread's Spark jobs carry
        (`Driver.labelled`) its jobs will carry. Raises what Spark raises when it analyses a plan.
        """
        writer = frame.writeStream.outputMode(output.value).option("checkpointLocation", f"file://{checkpoint}")
        return cls(writer.trigger(**trigger.options).foreachBatch(batch).start(), batch)  # type: ignore[arg-type]

    @property
    def is_active(self) -> bool:
        """Whether it goes on."""
        return bool(self._query.isActive)

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended; a driver that is gone tells nothing."""
        with suppress(Py4JError, OSError):
            return not self.is_active
        return False

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, now or within `seconds`."""
        try:
            # It takes fractions too.
            return bool(self._query.awaitTermination(seconds))  # type: ignore[arg-type]
        except StreamingQueryException:
            return True

    def error(self) -> Exception | None:
        """What ended it: what one of its mini-batches raised, else Spark's own error; None where nothing did."""
        told = self._query._jsq.exception()
        return (self._batch.failure or _of_spark(told.get())) if told.isDefined() else None

    def progress(self, after: int | None) -> tuple[BatchProgress, ...]:
        """What Spark tells of the mini-batches behind number `after`, oldest first; the newest hundred at most."""
        found: list[BatchProgress] = []
        # As the JVM has them: pyspark's own list asks it for a hundred values of each, old ones too, every time.
        for told in reversed(self._query._jsq.recentProgress()):
            if after is not None and told.batchId() <= after:
                break
            one = progress_of(told.json())
            if one is not None:
                found.append(one)
        return tuple(reversed(found))

    def stop_between_batches(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Stops it when no mini-batch is under way, or after `seconds`: one that is cut short comes again."""
        self.ends_between_batches(seconds, clock)
        self.stop()

    def ends_between_batches(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Whether it ended within `seconds`, with no mini-batch under way. If not, it does after the one that is."""
        deadline = clock() + seconds
        # One after the other, there may be no moment without.
        self._batch.end_between_batches()
        while self.is_active and self._query.status["isTriggerActive"]:
            if clock() >= deadline:
                return False
            time.sleep(_LOOK_SECONDS)
        self.stop()
        return True

    def stop(self) -> None:
        """Ends it, whatever it is at. Raises nothing where the driver is gone."""
        with suppress(Py4JError, OSError):
            self._query.stop()


def _of_spark(java: JavaObject) -> Exception:
    """What Spark ended the query by, with its Java cause: pyspark's own `exception` keeps nothing but a text of it,
    which does not tell whether data are at fault.
    """
    return StreamingQueryException(origin=java.getCause() or java)
