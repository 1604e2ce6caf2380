"""Where mini-batches are written before a sink takes them: Parquet files, in a directory for each try of one.

What happens to each mini-batch: it is announced, run into the stage, taken by the sink, and noted.

Spark calls this on its stream's own thread, with a number that grows by one. A mini-batch that was cut short anywhere
comes again, with the same rows and the same number, and each step knows what it has done of it before.
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
from workers.engine.spark.result_writer import result_files, write_parquet
from workers.engine.streaming.sinks.base import Sink, Staged


@dataclass(frozen=True)
class Stage:
    """A directory of a stream's own. `fence` keeps a writer that lost its lease apart from the one that follows."""

    directory: Path
    fence: int

    def write(self, frame: DataFrame, batch_id: int) -> Staged:
        """Runs the mini-batch, once and wholly, which brings its state on too, and gives its rows. Raises what Spark
        raises."""
        target = self._path(batch_id)
        written = write_parquet(frame, target)
        return Staged(result_files(target), written.rows, written.bytes)

    def remove(self, batch_id: int) -> None:
        """Removes what a mini-batch wrote, once its sink has it."""
        shutil.rmtree(self._path(batch_id), ignore_errors=True)

    def clear_older(self) -> None:
        """Removes what attempts before this one left."""
        for path in self.directory.glob("*-*") if self.directory.is_dir() else ():
            if _fence_of(path) < self.fence:
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, batch_id: int) -> Path:
        return self.directory / f"{batch_id}-{self.fence}"


def run_for_its_state(frame: DataFrame) -> None:
    """Runs a mini-batch whose rows the sink has already: the state of the next one depends on it."""
    frame.write.format("noop").mode("append").save()


def _fence_of(path: Path) -> int:
    last = path.name.rpartition("-")[2]
    return int(last) if last.isdecimal() else 0


@dataclass(frozen=True)
class BatchDone:
    """A mini-batch that the sink has: `rows` that it emitted, None where the sink had it before, the milliseconds that
    it took from its announcement on, and the version of the result that has it, where the sink counts those.
    """

    batch_id: int
    rows: int | None
    elapsed_ms: int
    sink_version: int | None


class StreamOverError(EngineError):
    """The stream is to stop before its next mini-batch."""

    code: ClassVar[str] = "stream_over"


class BatchGuard(Protocol):
    """Who says whether this attempt may go on, and takes note of what it has done."""

    def begin(self, batch_id: int) -> None:
        """Before anything is done of a mini-batch. Raises FenceLostError where another attempt has the stream."""

    def finish(self, done: BatchDone) -> None:
        """Once the sink has it. Raises FenceLostError."""


Reading = Callable[[int], AbstractContextManager[object]]
"""What the mini-batch of this number is run within. Raises SpecError, before or afterwards, where it would read, or may
have read, what it must not: then nothing of it is kept."""


class BatchFunction:
    """Runs mini-batches for one attempt, one after the other. `failure` is what ended the stream, where that was it."""

    def __init__(
        self,
        stage: Stage,
        sink: Sink,
        guard: BatchGuard,
        clock: Callable[[], float] = time.monotonic,
        reading: Reading = nullcontext,
    ) -> None:
        self._stage = stage
        self._sink = sink
        self._guard = guard
        self._clock = clock
        self._reading = reading
        self.failure: Exception | None = None
        self._is_over = threading.Event()

    def end_between_batches(self) -> None:
        """The next mini-batch is not begun; it comes again with the next attempt."""
        self._is_over.set()

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """One mini-batch. The frame is run by exactly one action, to its end: Spark keeps its state by that."""
        try:
            self._run(frame, batch_id)
        except Exception as error:
            # Spark tells of it as a text alone.
            self.failure = error
            raise

    def _run(self, frame: DataFrame, batch_id: int) -> None:
        if self._is_over.is_set():
            raise StreamOverError("the stream is to stop")
        begun = self._clock()
        self._guard.begin(batch_id)
        newest = self._sink.committed()
        if newest is not None and newest >= batch_id:
            with self._reading(batch_id):
                run_for_its_state(frame)
            rows, version = None, None
        else:
            staged = self._staged(frame, batch_id)
            version = self._sink.commit(batch_id, staged)
            rows = staged.rows
        elapsed_ms = round((self._clock() - begun) * 1000)
        self._guard.finish(BatchDone(batch_id, rows, elapsed_ms, version))
        self._stage.remove(batch_id)

    def _staged(self, frame: DataFrame, batch_id: int) -> Staged:
        try:
            with self._reading(batch_id):
                return self._stage.write(frame, batch_id)
        except SpecError:
            # The state that came of it goes with the mini-batch: Spark has not noted it, and writes it again.
            self._stage.remove(batch_id)
            raise
