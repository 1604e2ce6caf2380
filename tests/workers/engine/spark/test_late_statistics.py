"""Statistics beside a run. What they are for is in `tests/workers/process/test_runner.py`."""

from __future__ import annotations

import threading

from workers.engine.spark.engine import LateStatistics
from workers.engine.statistics.model import Statistics

KNOWN = Statistics({}, {}, slots=3)


def test_what_was_gathered() -> None:
    assert LateStatistics(lambda: KNOWN).result(60) is KNOWN


def test_what_failed_or_is_late_is_not_known() -> None:
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
