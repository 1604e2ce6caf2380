"""Where mini-batches are written before a sink takes them: Parquet files, in a directory for each try of one."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame

from workers.engine.spark.sinks import result_files, write_parquet
from workers.engine.streaming.sinks.sink import Staged


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
