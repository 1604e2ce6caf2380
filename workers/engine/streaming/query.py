"""Runs a streaming query of Spark from its start to its end, with its mini-batches, and reads Spark's progress reports.

Each mini-batch: the database confirms its begin, its rows are written to the stage, the sink commits them, and the
database records the end. Spark calls `BatchFunction` on the stream's own thread, with a number that grows by one. A
mini-batch that was interrupted runs again, with the same rows and the same number, and each step recognizes what was
already done. The stage has the rows as Parquet files, in a directory for each try of a mini-batch.
"""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Protocol

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.sql.streaming.query import StreamingQuery

from service.contract.enums import OutputMode
from service.contract.job import CHANGE_BATCH, CHANGE_TYPE
from service.contract.problems import SpecError
from workers.engine.spark.engine import result_files, write_parquet, written
from workers.engine.spark.small_results import collect_parquet, estimated_bytes
from workers.engine.streaming.sinks.base import Sink, Staged

_POLL_SECONDS = 0.05

MOST_BYTES = 32 << 10
"""The most bytes of a mini-batch whose rows are collected, as Spark estimates them by the sizes of files. The rows of a
Parquet file of equal values can have 2,000 times as many: 64 MB, which a driver can collect."""


@dataclass(frozen=True)
class StateProgress:
    """The progress of one stateful operator. `rows` is None if the store does not count them. `updated` is the number
    of keys that the mini-batch wrote, `removed` of those that it removed, `reads` of reads, None if the store does not
    count them. `state_bytes` is the size of the state, None if unknown; `memory_bytes` includes caches.
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
    """The progress of one source. `rows` counts a row each time the plan reads it; `end` is the offset, as JSON."""

    description: str
    rows: int
    end: str


@dataclass(frozen=True)
class BatchProgress:
    """The progress of one mini-batch."""

    batch_id: int
    duration_ms: int
    durations_ms: Mapping[str, int]
    watermark: str | None
    state: tuple[StateProgress, ...]
    sources: tuple[SourceProgress, ...]


def progress_of(text: str) -> BatchProgress | None:
    """Reads a `StreamingQueryProgress` in JSON; returns None for that of a trigger that ran no mini-batch."""
    report: dict[str, Any] = json.loads(text)
    durations = report.get("durationMs", {})
    if "addBatch" not in durations:
        return None
    return BatchProgress(
        batch_id=report["batchId"],
        duration_ms=durations.get("triggerExecution", 0),
        durations_ms=durations,
        watermark=report.get("eventTime", {}).get("watermark"),
        state=tuple(map(_state, report.get("stateOperators", ()))),
        sources=tuple(map(_source, report.get("sources", ()))),
    )


def _source(report: Mapping[str, Any]) -> SourceProgress:
    return SourceProgress(report["description"], report.get("numInputRows", 0), json.dumps(report.get("endOffset")))


def _state(report: Mapping[str, Any]) -> StateProgress:
    custom = report.get("customMetrics", {})
    return StateProgress(
        operator=report["operatorName"],
        # RocksDB reports 0 if it does not count them.
        rows=report["numRowsTotal"] or None,
        updated=report["numRowsUpdated"],
        removed=report.get("numRowsRemoved", 0),
        memory_bytes=report["memoryUsedBytes"],
        # The size of RocksDB's files, which is 0 until it first writes them; the newest version of a state in memory.
        state_bytes=custom.get("rocksdbSstFileSize") or custom.get("stateOnCurrentVersionSizeBytes"),
        late_rows=report.get("numRowsDroppedByWatermark", 0),
        reads=custom.get("rocksdbGetCount"),
        partitions=report.get("numShufflePartitions", 0),
        commit_ms=report.get("commitTimeMs", 0),
    )


@dataclass(frozen=True)
class Trigger:
    """When mini-batches begin: at least `every` after the previous one began, without an end; None runs them one after
    the other until there is no new input.
    """

    every: timedelta | None = None

    AT_ONCE: ClassVar[timedelta] = timedelta(0)
    """One after the other, without an end."""

    @property
    def options(self) -> dict[str, bool | str]:
        """The arguments of `DataStreamWriter.trigger`."""
        if self.every is None:
            return {"availableNow": True}
        return {"processingTime": f"{round(self.every / timedelta(milliseconds=1))} milliseconds"}


class RunningStream:
    """A query that was started. Any thread may query and stop it; its mini-batches run on one of Spark's threads."""

    def __init__(self, query: StreamingQuery, batch: BatchFunction) -> None:
        self._query = query
        self._batch = batch

    @classmethod
    def start(
        cls, frame: DataFrame, output: OutputMode, checkpoint: Path, trigger: Trigger, batch: BatchFunction
    ) -> RunningStream:
        """Starts the query; it continues from an existing `checkpoint`. Its Spark jobs have the tags and local
        properties of the calling thread (`Driver.labelled`). Raises what Spark raises when it analyses a plan.
        """
        writer = frame.writeStream.outputMode(output.value).option("checkpointLocation", f"file://{checkpoint}")
        return cls(writer.trigger(**trigger.options).foreachBatch(batch).start(), batch)  # type: ignore[arg-type]

    @property
    def is_active(self) -> bool:
        """Whether it is running."""
        return bool(self._query.isActive)

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended; False if the driver does not respond."""
        with suppress(Py4JError, OSError):
            return not self.is_active
        return False

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds`, and returns whether it has ended."""
        try:
            # Fractions of a second are supported, although the type says otherwise.
            return bool(self._query.awaitTermination(seconds))  # type: ignore[arg-type]
        except StreamingQueryException:
            return True

    def error(self) -> Exception | None:
        """Returns the error that ended it: that of a mini-batch, or else Spark's; None if there was none."""
        error = self._query._jsq.exception()
        return (self._batch.failure or _spark_error(error.get())) if error.isDefined() else None

    def progress(self, after: int | None) -> tuple[BatchProgress, ...]:
        """Returns Spark's reports of mini-batches after number `after`, oldest first; at most the newest hundred."""
        found: list[BatchProgress] = []
        # Reads the JVM's objects: pyspark's own list requests a hundred values of every report, also of old ones.
        for report in reversed(self._query._jsq.recentProgress()):
            if after is not None and report.batchId() <= after:
                break
            progress = progress_of(report.json())
            if progress is not None:
                state = self._batch.state_of(progress.batch_id)
                found.append(replace(progress, state=state) if state else progress)
        return tuple(reversed(found))

    def stop_between_batches(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Stops it when no mini-batch is running, or after `seconds`: an interrupted mini-batch runs again."""
        self.end_between_batches(seconds, clock)
        self.stop()

    def end_between_batches(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> bool:
        """Stops it when no mini-batch is running. Returns False if one still runs after `seconds`; no other one begins
        after it.
        """
        deadline = clock() + seconds
        # Mini-batches may follow each other without a pause.
        self._batch.end_between_batches()
        while self.is_active and self._query.status["isTriggerActive"]:
            if clock() >= deadline:
                return False
            time.sleep(_POLL_SECONDS)
        self.stop()
        return True

    def stop(self) -> None:
        """Stops it at once. Raises nothing if the driver does not respond."""
        with suppress(Py4JError, OSError):
            self._query.stop()


def _spark_error(java: JavaObject) -> Exception:
    """Returns Spark's error with its Java cause. pyspark's own `exception` only has a text, which does not show whether
    the data are invalid.
    """
    return StreamingQueryException(origin=java.getCause() or java)


@dataclass(frozen=True)
class Stage:
    """The directory where a stream writes rows before its sink commits them. Attempts with different fencing tokens
    (`fence`) write to different directories.

    `collects`: small mini-batches are collected, which takes less time than a write by Spark. Only for plans
    whose result is limited by their input. `is_log`: rows get the columns of a change log (`OF_CHANGE_LOG`); those of
    plans without the type of the change are added.
    """

    directory: Path
    fence: int
    collects: bool = False
    is_log: bool = False

    def write(self, frame: DataFrame, batch_id: int) -> Staged:
        """Runs the mini-batch completely, which also updates its state. Returns its rows. Raises what Spark raises."""
        target = self._path(batch_id)
        if self.is_log:
            frame = frame if CHANGE_TYPE in frame.columns else frame.withColumn(CHANGE_TYPE, F.lit("insert"))
            frame = frame.withColumn(CHANGE_BATCH, F.lit(batch_id).cast("bigint"))
        # If the driver refuses so many bytes, Spark computes the mini-batch again, from the same state.
        if self.collects and estimated_bytes(frame) <= MOST_BYTES and collect_parquet(frame, target):
            result = written(target)
        else:
            result = write_parquet(frame, target)
        return Staged(result_files(target), result.rows, result.bytes)

    def remove(self, batch_id: int) -> None:
        """Removes the rows of a mini-batch after its sink has committed them."""
        shutil.rmtree(self._path(batch_id), ignore_errors=True)

    def clear_older(self) -> None:
        """Removes the rows of earlier attempts."""
        for path in self.directory.glob("*-*") if self.directory.is_dir() else ():
            if _fence_of(path) < self.fence:
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, batch_id: int) -> Path:
        return self.directory / f"{batch_id}-{self.fence}"


def update_state(frame: DataFrame) -> None:
    """Runs a mini-batch whose rows the sink already has: the next mini-batch needs its state."""
    frame.write.format("noop").mode("append").save()


def _fence_of(path: Path) -> int:
    last = path.name.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


@dataclass(frozen=True)
class BatchDone:
    """A mini-batch that the sink has committed: the number of rows that it emitted, None if the sink already had them,
    the milliseconds since its begin, and the version of the result that contains it, None if the sink has no versions.
    """

    batch_id: int
    rows: int | None
    elapsed_ms: int
    sink_version: int | None


class StreamOverError(Exception):
    """The stream must stop before its next mini-batch."""

    code: ClassVar[str] = "stream_over"


class BatchFence(Protocol):
    """Confirms before and after each mini-batch that this attempt may continue (`workers/streams/fencing.py`)."""

    def begin(self, batch_id: int) -> None:
        """Called before a mini-batch. Raises FenceLostError if another attempt runs the stream."""

    def finish(self, done: BatchDone) -> None:
        """Called after the sink has committed it. Raises FenceLostError."""


Reading = Callable[[int], AbstractContextManager[object]]
"""Returns the context in which the mini-batch of a number runs. It raises SpecError, before or after the mini-batch, if
it would read, or may have read, files that it must not read: then nothing of it is kept."""


class Computing(Protocol):
    """Computes the rows that a mini-batch emits from those that Spark has read. It writes its state itself, before it
    returns the rows.
    """

    def __call__(self, frame: DataFrame, batch_id: int) -> AbstractContextManager[DataFrame]:
        """Returns the context in which the rows exist."""

    def state_of(self, batch_id: int) -> tuple[StateProgress, ...]:
        """Returns its state after a mini-batch; empty if it is not known any more."""


class BatchFunction:
    """Runs the mini-batches of one attempt, one after the other. `failure` is the error of the mini-batch that ended
    the stream, if one did.
    """

    def __init__(
        self,
        stage: Stage,
        sink: Sink,
        fence: BatchFence,
        clock: Callable[[], float] = time.monotonic,
        reading: Reading = nullcontext,
        computing: Computing | None = None,
    ) -> None:
        self._stage = stage
        self._sink = sink
        self._fence = fence
        self._clock = clock
        self._reading = reading
        self._computing = computing
        self.failure: Exception | None = None
        self._is_over = threading.Event()

    def state_of(self, batch_id: int) -> tuple[StateProgress, ...]:
        """Returns the state after a mini-batch, if Spark does not have it."""
        return () if self._computing is None else self._computing.state_of(batch_id)

    def end_between_batches(self) -> None:
        """Ends the stream before its next mini-batch, which the next attempt runs."""
        self._is_over.set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Runs one mini-batch. An action must run the frame completely, since it updates Spark's state. A further one
        computes the same mini-batch again, from the same state.
        """
        try:
            self._run(frame, batch_id)
        except Exception as error:
            # Spark only keeps its text.
            self.failure = error
            raise

    def _run(self, frame: DataFrame, batch_id: int) -> None:
        if self._is_over.is_set():
            raise StreamOverError("the stream must stop before its next mini-batch")
        begun = self._clock()
        self._fence.begin(batch_id)
        newest = self._sink.committed()
        if newest is not None and newest >= batch_id:
            if self._computing is None:
                with self._reading(batch_id):
                    update_state(frame)
            rows, version = None, None
        else:
            staged = self._staged(frame, batch_id)
            version = self._sink.commit(batch_id, staged)
            rows = staged.rows
        elapsed_ms = round((self._clock() - begun) * 1000)
        self._fence.finish(BatchDone(batch_id, rows, elapsed_ms, version))
        self._stage.remove(batch_id)

    def _staged(self, frame: DataFrame, batch_id: int) -> Staged:
        try:
            made = nullcontext(frame) if self._computing is None else self._computing(frame, batch_id)
            with self._reading(batch_id), made as rows:
                return self._stage.write(rows, batch_id)
        except SpecError:
            # Spark has not committed the state of this mini-batch, and writes it again.
            self._stage.remove(batch_id)
            raise
