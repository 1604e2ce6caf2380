"""Keeps Spark's plans of the scans of files, for later queries over the same files.

For each scan, Spark lists the files, reads its schema from text, and resolves the names of its columns. For a small
query, this takes as long as the planning of all the rest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from workers.engine.spark.logical_plans import analysed_plan, frame_of_plan

MAX_PLANS = 256
"""Plans in the cache. The least recently used ones are dropped. Each has the list of its files."""

MAX_FILES = 100_000
"""Files of all plans together."""

LIST_ON_DRIVER = ("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000000")
"""The number of files above which Spark lists them in a job of many tasks. For local files, the driver is faster."""


class ScanCache:
    """The plans of scans in one application. Safe to share between threads.

    The plans belong to a session of the cache, which no query changes: they must not keep the sessions of jobs alive.
    If two threads miss the same plan, both make it.
    """

    def __init__(self, root: SparkSession) -> None:
        """`root` is a session of the application."""
        self._root = root
        self._reader: SparkSession | None = None
        self._plans: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._files = 0
        self._lock = threading.Lock()

    def frame(
        self, session: SparkSession, key: Hashable, files: int, make: Callable[[SparkSession], DataFrame]
    ) -> DataFrame:
        """Returns a DataFrame in `session` with the plan of `key`. If there is none, it is that of the DataFrame that
        `make` returns for another session; `files` is the number of files that it reads. Raises what `make` raises.
        """
        with self._lock:
            if self._reader is None:
                self._reader = self._root.newSession()
                self._reader.conf.set(*LIST_ON_DRIVER)
            known = self._plans.get(key)
            if known is not None:
                self._plans.move_to_end(key)
        plan = self._put(key, make(self._reader), files) if known is None else known[0]
        return frame_of_plan(session, plan)

    def __len__(self) -> int:
        return len(self._plans)

    def _put(self, key: Hashable, frame: Any, files: int) -> Any:
        plan = analysed_plan(frame)
        with self._lock:
            before = self._plans.pop(key, None)
            self._files += files - (0 if before is None else before[1])
            self._plans[key] = plan, files
            while len(self._plans) > MAX_PLANS or (self._files > MAX_FILES and len(self._plans) > 1):
                self._files -= self._plans.popitem(last=False)[1][1]
        return plan
