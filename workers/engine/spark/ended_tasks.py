"""Tasks of work that has ended: Spark asks a cancelled task to end, and one that looks at nothing goes on.

A regular expression that backtracks without end is such a task: it holds its slot until its JVM ends.

Asked is the scheduler itself. Spark's store of stages and executors is up to ten seconds late, and each of them by
another time: tasks that had just begun would look as if they belonged to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark import SparkContext

_TAGS = "spark.job.tags"


def tasks_left_behind(context: SparkContext) -> int:
    """Tasks that run in a local driver although their stage has ended. Raises what py4j raises."""
    return len(_left_behind(context))


def tasks_left_behind_by(context: SparkContext, tag: str) -> int:
    """Those among them of the jobs that carry `tag`."""
    found = (tasks.taskSet().properties().getProperty(_TAGS) for tasks in _left_behind(context))
    return sum(tag in (tags or "").split(",") for tags in found)


def _left_behind(context: SparkContext) -> Sequence[Any]:
    """For each of these tasks, the try of a stage that it belongs to."""
    scheduler: Any = context._jsc.sc().taskScheduler()
    jvm: Any = context._jvm
    # A copy, made over there: tasks come and go.
    running = jvm.java.util.Collections.list(scheduler.taskIdToTaskSetManager().elements())
    ended = [tasks for tasks in running if tasks.isZombie()]
    # Where a stage is tried again, tasks of an earlier try may still be of use.
    active = set(context.statusTracker().getActiveStageIds()) if ended else set()
    return [tasks for tasks in ended if tasks.taskSet().stageId() not in active]
