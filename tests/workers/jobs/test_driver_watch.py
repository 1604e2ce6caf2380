"""When the watch drops a driver, by a manual clock: the process is real, Spark's answers are not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from service.store.attempts import Claim
from tests.support.clocks import ManualSeconds
from workers.driver.driver import Driver, Executors
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.process.watchdog import DriverWatch

TIMEOUT = 10.0
START_TIMEOUT = 60.0
ALONE = 5.0
NONE_LEFT = Executors(number=0, cores=0)
SOME_LEFT = Executors(number=1, cores=2)


class Processes(Driver):
    """A process without Spark."""

    refreshes = 0

    def ping(self) -> None:
        """Answers at once."""

    def refresh(self) -> None:
        """Counts its calls."""
        self.refreshes += 1


@dataclass
class Runtime:
    """What the watch asks for the driver and for its start."""

    current: Processes | None = None
    starting: int | None = None
    start_timeout_seconds: float = START_TIMEOUT
    killed_starts: int = 0
    discarded: list[Driver] = field(default_factory=list)

    def discard(self, driver: Processes) -> None:
        """Removes the driver."""
        self.discarded.append(driver)
        self.current = None

    def kill_start(self) -> None:
        """Counts."""
        self.killed_starts += 1


class Bench:
    """A watch, its clock, and drivers."""

    def __init__(self) -> None:
        self.clock = ManualSeconds()
        self.running_attempts = RunningAttempts()
        self.runtime = Runtime()
        self.watch = DriverWatch(self.runtime, self.running_attempts, TIMEOUT, self.clock)  # type: ignore[arg-type]
        self.drivers: list[Processes] = []

    def start(self) -> Processes:
        """Makes a new driver the current one."""
        nothing: Any = None
        process = subprocess.Popen(["sleep", "600"])
        driver = Processes(nothing, nothing, process, slots=2, shuffle_partitions=4, monitor=nothing, pools=nothing)
        self.drivers.append(driver)
        self.runtime.current = driver
        return driver

    def attempt_on(self, driver: Driver | None) -> Attempt:
        """Returns an attempt at hand."""
        claim = Claim(f"job-{id(driver)}", "default", "run", "a job", {}, 1, "w1", 0, 0, 60_000)
        attempt = Attempt(claim, float("inf"), self.clock)
        attempt.driver = driver
        with self.running_attempts.holding(attempt):
            self.running_attempts.keep(attempt)
        return attempt

    def look_at(self, seconds: float) -> bool:
        """Watches once at this time. Returns whether the driver was left alone."""
        self.clock.now = seconds
        self.watch.watch()
        return self.runtime.discarded == []


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for driver in bench.drivers:
        driver.kill()


def test_an_unresponsive_driver_is_killed_at_the_second_check(bench: Bench) -> None:
    driver, before = bench.start(), bench.start()
    bench.runtime.current = driver
    lost, waiting, elsewhere = bench.attempt_on(driver), bench.attempt_on(None), bench.attempt_on(before)
    assert [bench.look_at(at) for at in (100, 100 + TIMEOUT, 100.5 + TIMEOUT)] == [True, True, True]
    assert driver.is_running()
    assert not bench.look_at(101 + TIMEOUT)
    assert (bench.runtime.discarded, driver.has_ended(5)) == ([driver], True)
    assert (lost.reason, waiting.reason, elsewhere.reason) == (StopReason.DRIVER_LOST, None, None)


def test_a_driver_that_answers_again_has_its_time_again(bench: Bench) -> None:
    driver = bench.start()
    bench.look_at(0)
    for begin in (20, 40, 60):
        assert bench.look_at(begin), "one look too late"
        bench.watch.ping()
        assert bench.look_at(begin + TIMEOUT)
    assert driver.refreshes == 3
    # A start in between: neither the answers nor the late looks of the driver before count for the next one.
    assert bench.look_at(80)
    bench.start()
    assert [bench.look_at(at) for at in (81, 81 + TIMEOUT)] == [True, True]
    assert [bench.look_at(at) for at in (101, 102)] == [True, False]


def test_a_question_that_fails_is_no_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start()
    assert bench.look_at(0)

    def fail(_: Processes) -> None:
        raise ConnectionError("the driver was discarded")

    monkeypatch.setattr(Processes, "ping", fail)
    bench.clock.now = TIMEOUT
    with pytest.raises(ConnectionError):
        bench.watch.ping()
    assert [bench.look_at(TIMEOUT + late) for late in (1, 2)] == [True, False]
    # The next driver is given up at its second late look, as the first one was.
    after = bench.start()
    bench.runtime.discarded.clear()
    assert [bench.look_at(at) for at in (50, 51 + TIMEOUT, 52 + TIMEOUT)] == [True, True, False]
    assert bench.runtime.discarded == [after]


def test_without_a_driver_there_is_nothing_to_check(bench: Bench) -> None:
    bench.watch.ping()
    assert bench.look_at(1_000)
    assert bench.runtime.killed_starts == 0


@pytest.mark.parametrize(
    ("how", "reason"), [("exited", StopReason.DRIVER_LOST), ("ended", StopReason.DRIVER_ENDED), ("stopped", None)]
)
def test_a_driver_that_has_ended_is_dropped_at_once(bench: Bench, how: str, reason: StopReason | None) -> None:
    driver = bench.start()
    attempt = bench.attempt_on(driver)
    assert bench.look_at(0)
    if how == "stopped":
        driver.stopped = True
    else:
        driver.ended = how == "ended"
        driver.kill()
    assert not bench.look_at(1)
    assert attempt.reason is (reason or StopReason.DRIVER_LOST)


def test_an_attempt_on_a_driver_that_was_replaced_stops_once_that_is_gone(bench: Bench) -> None:
    before = bench.start()
    attempt, current = bench.attempt_on(before), bench.attempt_on(bench.start())
    found = []
    for at in (0, 1):
        assert bench.look_at(at)
        found.append((attempt.reason, current.reason))
        before.kill()
    assert found == [(None, None), (StopReason.DRIVER_LOST, None)]


def test_a_driver_without_executors_is_dropped_after_its_time(bench: Bench) -> None:
    driver = bench.start()
    driver.seconds_without_executors, driver.executors = ALONE, NONE_LEFT

    def look_at(seconds: float) -> bool:
        bench.clock.now = seconds
        bench.watch.ping()
        return bench.look_at(seconds)

    assert [look_at(at) for at in (100, 100 + ALONE)] == [True, True]
    driver.executors = SOME_LEFT
    assert look_at(120)
    driver.executors = NONE_LEFT
    assert [look_at(at) for at in (121, 121 + ALONE)] == [True, True]
    after = bench.start()
    after.seconds_without_executors, after.executors = ALONE, NONE_LEFT
    assert [look_at(at) for at in (130, 130 + ALONE, 130.5 + ALONE)] == [True, True, False]
    assert bench.runtime.discarded == [after]


@pytest.mark.parametrize(
    ("seconds_without_executors", "executors"), [(None, NONE_LEFT), (ALONE, None), (ALONE, SOME_LEFT)]
)
def test_nothing_follows_from_executors_that_are_there_or_not_known(
    bench: Bench, seconds_without_executors: float | None, executors: Executors | None
) -> None:
    driver = bench.start()
    driver.seconds_without_executors, driver.executors = seconds_without_executors, executors
    for at in (1, 9, 17):
        assert bench.look_at(at)
        bench.watch.ping()


def test_a_start_is_ended_when_one_of_its_steps_takes_too_long(bench: Bench) -> None:
    found = []
    for step, at in [
        (1, 0.0),
        (1, 60.0),
        (2, 61.0),
        (2, 121.0),
        (2, 121.5),
        (None, 122.0),
        (None, 300.0),
        (3, 500.0),
        (3, 560.0),
    ]:
        bench.runtime.starting = step
        bench.look_at(at)
        found.append(bench.runtime.killed_starts)
    assert found == [0, 0, 0, 0, 1, 1, 1, 1, 1]
