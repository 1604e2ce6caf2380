"""Statistics that are read during a run. Their use is tested in `tests/workers/process/test_runner.py`."""

from __future__ import annotations

import threading

from workers.engine.spark.engine import LateStatistics
from workers.engine.statistics.model import Statistics

KNOWN = Statistics({}, {}, slots=3)


def test_the_gathered_statistics_are_returned() -> None:
    assert LateStatistics(lambda: KNOWN).result(60) is KNOWN


def test_failed_or_late_statistics_are_none() -> None:
    def fail() -> Statistics:
        raise OSError

    assert LateStatistics(fail).result(60) is None
    go_on = threading.Event()

    def wait() -> Statistics:
        go_on.wait(60)
        return KNOWN

    late = LateStatistics(wait)
    assert late.result(0) is None
    go_on.set()
    assert late.result(60) is KNOWN
