"""The pools of Spark's fair scheduler: one for each tenant, which its jobs share evenly.

Spark gives a free slot to the pool with the fewest running tasks. It has neither a limit for the tasks of a pool nor a
way to end a task in favour of another pool: `end_task` does that. Spark runs an ended task again, without counting it
as failed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext

_POOL = "spark.scheduler.pool"
_TAGS = "spark.job.tags"
_LEAST_TASKS = 2
"""The fewest tasks of a tenant of which one is ended."""
_REASON = "a job of another tenant had no slot"


@dataclass(frozen=True)
class PoolState:
    """The number of running tasks of a pool, and whether it has tasks that wait for a slot although none of its tasks
    runs."""

    running: int
    is_waiting: bool


class TenantPools:
    """Creates the pools of a Spark application, and reads their tasks. Safe to share between threads. All methods raise
    what py4j raises, and wait while the JVM hangs."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._created: set[str] = set()
        self._ended: dict[str, int] = {}
        """The task of each tenant that was ended last. It may still run."""
        self._times: Counter[str] = Counter()
        """How often a task of each tag was ended."""
        self._lock = threading.Lock()

    def create(self, tenant: str) -> None:
        """Creates the pool of a tenant, named as the tenant, unless it exists.

        Spark itself would create a pool in which a job waits for all tasks of the earlier ones (FIFO).
        """
        with self._lock:
            if tenant in self._created:
                return
            root = self._scheduler.rootPool()
            if root.getSchedulableByName(tenant) is None:
                scheduler: Any = self._jvm.org.apache.spark.scheduler
                root.addSchedulable(scheduler.Pool(tenant, scheduler.SchedulingMode.FAIR(), 0, 1))
            self._created.add(tenant)

    def state(self, tenant: str) -> PoolState:
        """Returns the state of a pool, which `create` has created."""
        found = self._scheduler.rootPool().getSchedulableByName(tenant)
        running = int(found.runningTasks())
        return PoolState(running, running == 0 and not found.schedulableQueue().isEmpty())

    def are_all_slots_taken(self, slots: int) -> bool:
        """Returns whether at least as many tasks run as there are slots. Fewer run if free slots do not suit the
        waiting tasks, such as those that wait for the executor with their data."""
        return int(self._scheduler.rootPool().runningTasks()) >= slots

    def end_task(self, tenant: str, tags: Collection[str]) -> int | None:
        """Ends a task of the tenant, of those whose Spark job has one of `tags`: the task that started last of the job
        whose tasks were ended least often. Spark runs it again. Returns its id.

        None if there are not two such tasks, so that one of them always continues, or while the task that was ended
        before still runs.
        """
        # A copy, made in the JVM, since tasks start and end meanwhile.
        entries = self._jvm.java.util.ArrayList(self._scheduler.taskIdToTaskSetManager().entrySet())
        tasks = {int(entry.getKey()): entry.getValue() for entry in entries}
        if self._ended.get(tenant) in tasks:
            return None
        tag_of = {task: _tag_of(managed, tenant, tags) for task, managed in tasks.items()}
        candidates = [(self._times[tag], -task, tag) for task, tag in tag_of.items() if tag is not None]
        if len(candidates) < _LEAST_TASKS:
            return None
        _, task, tag = min(candidates)
        self._times = Counter({known: number for known, number in self._times.items() if known in tags})
        self._times[tag] += 1
        self._ended[tenant] = -task
        self._context._jsc.sc().killTaskAttempt(-task, True, _REASON)
        return -task

    @property
    def _jvm(self) -> Any:
        jvm = self._context._jvm
        if jvm is None:
            raise ConnectionError("the driver was discarded")
        return jvm

    @property
    def _scheduler(self) -> Any:
        return self._context._jsc.sc().taskScheduler()


def _tag_of(managed: Any, tenant: str, tags: Collection[str]) -> str | None:
    """Returns the one of `tags` that the task's Spark job has; None if it has none, or is of another tenant."""
    # Spark waits for the tasks of an ended stage, and would not run them again.
    properties = managed.taskSet().properties()
    if managed.isZombie() or properties is None or properties.getProperty(_POOL) != tenant:
        return None
    return next((tag for tag in (properties.getProperty(_TAGS) or "").split(",") if tag in tags), None)
