"""Rows of a query that executors keep until they are released, in memory or on disk."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame

from workers.engine.spark.logical_plans import analysed_plan
from workers.engine.spark.status_store import StatusStore

_REMOVES_FILES = "spark.sql.classic.shuffleDependency.fileCleanup.enabled"


@dataclass(frozen=True)
class StoredRows:
    """`frame` reads the rows; its plan is only a scan. `shuffles` are those that compute them."""

    frame: DataFrame
    shuffles: tuple[int, ...]

    def release(self) -> None:
        """Removes the rows, and the files of the shuffles. Does not wait. Raises MonitorError."""
        analysed_plan(self.frame).rdd().unpersist(False)
        if self.shuffles:
            StatusStore(self.frame.sparkSession.sparkContext).remove_shuffles(self.shuffles)


def stored(frame: DataFrame, *, eager: bool) -> StoredRows:
    """Returns the rows of `frame`, which are computed once: if not `eager`, when they are first used."""
    if eager:
        return StoredRows(_checkpointed(frame, eager=True), ())
    conf = frame.sparkSession.conf
    before = str(conf.get(_REMOVES_FILES))
    # Adaptive execution runs the stages before the last shuffle at once. Their files are needed for the first use.
    conf.set(_REMOVES_FILES, "false")
    try:
        whole = frame.select("*")
        checkpointed = _checkpointed(whole, eager=False)
    finally:
        conf.set(_REMOVES_FILES, before)
    return StoredRows(checkpointed, _shuffles(whole))


def _checkpointed(frame: DataFrame, *, eager: bool) -> DataFrame:
    return frame.localCheckpoint(eager=eager, storageLevel=StorageLevel.MEMORY_AND_DISK)


def _shuffles(frame: DataFrame) -> tuple[int, ...]:
    """Returns the shuffles that adaptive execution has run for `frame`."""
    plan = frame._jdf.queryExecution().executedPlan()
    if not plan.nodeName().startswith("AdaptiveSparkPlan"):
        return ()
    return tuple(plan.context().shuffleIds().keys())
