"""Tasks of work that has ended: Spark asks a cancelled task to end, and one that looks at nothing goes on.

A regular expression that backtracks without end is such a task: it holds its slot until its JVM ends.
"""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext

_DRIVER = "driver"


def tasks_left_behind(context: SparkContext) -> int:
    """Tasks that run in a local driver although their stage has ended. Raises what py4j raises.

    Looked at one after the other, the two counts may differ for a moment by tasks that come and go.
    """
    store: Any = context._jsc.sc().statusStore()
    running = int(store.executorSummary(_DRIVER).activeTasks())
    if not running:
        return 0
    tracker = context.statusTracker()
    stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
    return max(0, running - sum(stage.numActiveTasks for stage in stages if stage is not None))
