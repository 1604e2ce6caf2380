"""The times of a stage's tasks, as far as five quantiles of them tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from service.spec.reports import Quantiles


def task_times(times: Quantiles, tasks: int) -> Iterator[float]:
    """The time of each of `tasks`, shortest first, as far as five of them tell it; exact for five tasks and fewer.

    Spark's quantile q of n sorted times is number floor(q n). Between two that are known the times lie on a straight
    line, but for those above the third quartile: they take as long as that one, the slowest being by itself. So the
    slowest task of 100 does not stand for 25 slow ones.
    """
    known = _known(times, tasks)
    places = sorted(known)
    for low, high in pairwise(places):
        begin, end = known[low], known[low] if high == tasks - 1 else known[high]
        yield known[low]
        yield from (begin + (end - begin) * (place - low) / (high - low) for place in range(low + 1, high))
    yield known[tasks - 1]


def work(times: Quantiles, tasks: int) -> float:
    """The sum of `task_times`, without making them: the milliseconds of all tasks together."""
    known = _known(times, tasks)
    places, total = sorted(known), 0.0
    for low, high in pairwise(places):
        end = known[low] if high == tasks - 1 else known[high]
        total += known[low] + (high - low - 1) * (known[low] + end) / 2
    return total + known[tasks - 1]


def _known(times: Quantiles, tasks: int) -> dict[int, float]:
    values = (times.min, times.p25, times.median, times.p75, times.max)
    return {min(tasks * quarter // 4, tasks - 1): value for quarter, value in enumerate(values)}
