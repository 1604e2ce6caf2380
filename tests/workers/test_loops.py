"""Loops: called over and over, failures survived, stopped when asked."""

from __future__ import annotations

import threading

import structlog
from sqlalchemy.exc import OperationalError

from workers.periodic import Loop


class Steps:
    """Fails as often as told, then says that it has been called again."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.went_on = threading.Event()

    def __call__(self) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no database")
        self.went_on.set()


def test_a_loop_survives_failures() -> None:
    steps = Steps(failures=3)
    loop = Loop("test", 0.001, steps)
    loop.start()
    assert steps.went_on.wait(10)
    loop.ask_to_stop()
    loop.join(10)
    assert not any(thread.name == "test" for thread in threading.enumerate())


def test_a_loop_that_waits_for_its_next_step_stops_at_once() -> None:
    steps = Steps(failures=0)
    loop = Loop("test", 3600, steps)
    loop.start()
    assert steps.went_on.wait(10)
    loop.ask_to_stop()
    loop.join(10)
    assert not any(thread.name == "test" for thread in threading.enumerate())


def test_a_loop_that_never_started_is_stopped_already() -> None:
    loop = Loop("test", 1, Steps(failures=0))
    loop.ask_to_stop()
    loop.join(1)


def test_an_outage_is_explained_at_length_once() -> None:
    def away(failures: list[int]) -> None:
        failures.append(1)
        if len(failures) == 4:
            done.set()
        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    done, failures = threading.Event(), list[int]()
    with structlog.testing.capture_logs() as logs:
        loop = Loop("test", 0.001, lambda: away(failures))
        loop.start()
        assert done.wait(10)
        loop.ask_to_stop()
        loop.join(10)
    assert [entry["exc_info"] is not None for entry in logs[:3]] == [True, False, False]
