"""How long stages would take on a number of slots, as their tasks were and had they been even: numbers in, numbers out.

A stage is over when the last of its tasks is. Tasks given out longest first, each to the slot that is free first (LPT),
end at most (4/3 - 1/(3 slots)) times as late as in the best order (R. L. Graham, "Bounds on multiprocessing timing
anomalies", SIAM J. Appl. Math. 17(2), 1969). Tasks do not wait for each other here, so that more slots never make it
later. Sparklens reckons alike what a Spark application would take on another cluster.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from service.spec.reports import Quantiles, StageMetrics
from service.spec.savings import SimulatedSaving, StageSaving
from service.spec.task_times import task_times, work

MOST_TASKS = 100_000
"""Tasks that are given out one by one for one answer. Stages beyond take their work over the slots, or their slowest
task: of so many tasks the order hardly matters."""

_COMPLETE = "COMPLETE"


def simulate(stages: Sequence[StageMetrics], slots: int) -> SimulatedSaving:
    """The completed stages on `slots`, 1 or more, and their sum."""
    left = MOST_TASKS
    found = []
    for stage in stages:
        if stage.duration_ms is None or stage.status != _COMPLETE or stage.tasks < 1:
            continue
        as_is, even = stage_times(stage.duration_ms, stage.tasks, slots, one_by_one=stage.tasks <= left)
        left -= stage.tasks if stage.tasks <= left else 0
        found.append(
            StageSaving(
                stage_id=stage.stage_id,
                stage_attempt=stage.stage_attempt,
                as_is_ms=round(as_is),
                even_ms=round(even),
                saved_ms=round(as_is) - round(even),
            )
        )
    return SimulatedSaving(
        slots=slots,
        as_is_ms=sum(stage.as_is_ms for stage in found),
        even_ms=sum(stage.even_ms for stage in found),
        saved_ms=sum(stage.saved_ms for stage in found),
        stages=tuple(found),
    )


def stage_times(times: Quantiles, tasks: int, slots: int, *, one_by_one: bool = True) -> tuple[float, float]:
    """Milliseconds of a stage of so many tasks on `slots`: as they were, and had they been even.

    Even are n tasks of W / n each, W being the work of all: ceil(n / slots) of them follow each other, which ends no
    later than the tasks as they were, or else counts as these.
    """
    if one_by_one:
        durations = list(task_times(times, tasks))
        total, as_is = sum(durations), makespan(durations, slots)
    else:
        total = work(times, tasks)
        as_is = max(total / slots, times.max)
    even = -(-tasks // slots) * total / tasks
    return as_is, min(even, as_is)


def makespan(durations: Sequence[float], slots: int) -> float:
    """When the last task ends, given out longest first, each to the slot that is free first.

    >>> makespan([3, 3, 2, 2, 2], 2), makespan([5, 1], 9), makespan([], 4)
    (7.0, 5, 0.0)
    """
    if len(durations) <= slots:
        return max(durations, default=0.0)
    free = [0.0] * slots
    for duration in sorted(durations, reverse=True):
        heapq.heapreplace(free, free[0] + duration)
    return max(free)
