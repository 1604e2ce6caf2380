"""Removes the shuffle files of a query that failed or was cancelled.

When a query ends, Spark removes the files of its stages that succeeded (with the property
`spark.sql.classic.shuffleDependency.fileCleanup.enabled`). Those of a stage that failed stay until a garbage
collection, so that a query that fills the disk would leave it full. The files of executors in other processes are left
to Spark.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext

from workers.engine.spark.session_options import is_in_driver
from workers.engine.spark.status_store import MonitorError, StatusStore

_log = logging.getLogger(__name__)

_TASK_SECONDS = 60.0
_POLL_SECONDS = 0.1

_NAME = re.compile(r"shuffle_(\d+)_(\d+)_\d+\.index")


def remove_shuffle_files(context: SparkContext) -> None:
    """Removes the files of all shuffles of the jobs that have a tag of the calling thread, in another thread: it waits
    until their tasks have ended, which may still write files. An error is only logged.
    """
    if not is_in_driver(str(context.master)):
        return
    try:
        removal = _Removal(context, frozenset(context.getJobTags()))
    except (Py4JError, OSError):
        # The JVM, which may have ended, must not replace the query's error by another one.
        _log.warning("shuffle files were not removed", exc_info=True)
    else:
        threading.Thread(target=removal.run, name="remove-shuffle-files", daemon=True).start()


class _Removal:
    def __init__(self, context: SparkContext, tags: frozenset[str]) -> None:
        self._context = context
        self._tags = tags
        self._store = StatusStore(context)

    def run(self) -> None:
        """Waits for the tasks, and removes the files."""
        try:
            tasks = {task_id for stage in self._failed_stages() for task_id in self._store.task_ids(*stage)}
            shuffles = {shuffle_id for shuffle_id, task_id in _written(self._context) if task_id in tasks}
            self._store.remove_shuffles(shuffles)
        except (MonitorError, Py4JError, OSError):
            _log.warning("shuffle files were not removed", exc_info=True)

    def _failed_stages(self) -> set[tuple[int, int]]:
        """Returns the stages, with their attempts, that did not succeed: once no task is active, or after a while."""
        deadline = time.monotonic() + _TASK_SECONDS
        while True:
            self._store.wait_for_events()
            jobs = [job for tag in self._tags for job in json.loads(self._store.jobs(tag))]
            ids = {stage_id for job in jobs for stage_id in job["stageIds"]}
            stages = [attempt for attempts in json.loads(self._store.stages(ids)) for attempt in attempts]
            if not any(stage["numActiveTasks"] for stage in stages) or time.monotonic() >= deadline:
                return {(stage["stageId"], stage["attemptId"]) for stage in stages if stage["status"] != "COMPLETE"}
            time.sleep(_POLL_SECONDS)


def _written(context: SparkContext) -> Iterator[tuple[int, int]]:
    """Yields the number of the shuffle, and the id of the task, for each file."""
    for root in context.getConf().get("spark.local.dir", "").split(","):
        for path in Path(root).glob("blockmgr-*/*/shuffle_*.index"):
            match = _NAME.fullmatch(path.name)
            if match is not None:
                yield int(match[1]), int(match[2])
