"""Runs each mini-batch: the database confirms its begin, Spark writes its rows to the stage, the sink commits them, and
the database records the end.

Spark calls `BatchFunction` on the stream's own thread, with a number that grows by one. A mini-batch that was
interrupted runs again, with the same rows and the same number, and each step recognizes what was already done. The
stage has the rows as Parquet files, in a directory for each try of a mini-batch.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame

from service.contract.problems import SpecError
from workers.engine.errors import EngineError
from workers.engine.spark.engine import result_files, write_parquet
from workers.engine.streaming.sinks.base import Sink, Staged


@dataclass(frozen=True)
class Stage:
    """The directory where a stream writes rows before its sink commits them. Attempts with different fencing tokens
    (`fence`) write to different directories.
    """

    directory: Path
    fence: int

    def write(self, frame: DataFrame, batch_id: int) -> Staged:
        """Runs the mini-batch completely, which also updates its state. Returns its rows. Raises what Spark raises."""
        target = self._path(batch_id)
        written = write_parquet(frame, target)
        return Staged(result_files(target), written.rows, written.bytes)

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


class StreamOverError(EngineError):
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
    ) -> None:
        self._stage = stage
        self._sink = sink
        self._fence = fence
        self._clock = clock
        self._reading = reading
        self.failure: Exception | None = None
        self._is_over = threading.Event()

    def end_between_batches(self) -> None:
        """Ends the stream before its next mini-batch, which the next attempt runs."""
        self._is_over.set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Runs one mini-batch. Exactly one action must run the frame, completely, since it updates Spark's state."""
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
            with self._reading(batch_id):
                return self._stage.write(frame, batch_id)
        except SpecError:
            # Spark has not committed the state of this mini-batch, and writes it again.
            self._stage.remove(batch_id)
            raise
