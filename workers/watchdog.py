"""Watches the driver: whether it comes up, whether its JVM exists and still answers, whether it has executors."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from workers.attempt import AttemptsAtHand, reason_of_loss
from workers.engine.spark.driver import Driver
from workers.spark_session import SparkRuntime

_log = structlog.get_logger(__name__)


class DriverWatch:
    """Two steps for two threads: `ping` may hang with the JVM, `watch` never does."""

    def __init__(
        self,
        runtime: SparkRuntime,
        at_hand: AttemptsAtHand,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._at_hand = at_hand
        self._timeout = timeout_seconds
        self._clock = clock
        self._answered: tuple[Driver, float] | None = None
        self._start: tuple[int, float] | None = None
        self._alone: tuple[Driver, float] | None = None
        self._overdue = 0

    def ping(self) -> None:
        """Notes when the JVM last answered, and what. A failure is silence too: `watch` draws the conclusion."""
        driver = self._runtime.current
        if driver is None:
            return
        driver.ping()
        self._answered = (driver, self._clock())
        driver.look()

    def watch(self) -> None:
        """Gives up a driver that is gone or has lost its cluster, and ends one that fell silent, or never comes up."""
        self._tell_left_behind()
        driver = self._runtime.current
        if driver is None:
            self._watch_start()
            return
        if not driver.is_running():
            self._give_up(driver, "exited")
        elif self._is_silent(driver):
            # Once more: after the whole machine slept, the clock jumped and nobody had time to answer.
            self._overdue += 1
            if self._overdue >= 2:
                driver.kill()
                self._give_up(driver, "silent")
        elif driver.stopped:
            self._give_up(driver, "stopped")
        elif self._is_left_alone(driver):
            # A master that was started anew knows neither the application nor that it waits for executors.
            self._give_up(driver, "no_executors")
        else:
            self._overdue = 0

    def _tell_left_behind(self) -> None:
        """Attempts whose JVM is gone, whoever found that out: a job that began just then has another built."""
        for attempt in self._at_hand.all():
            driver = attempt.driver
            if driver is None or driver is self._runtime.current or driver.is_running():
                continue
            if attempt.stop(reason_of_loss(driver)):
                _log.warning("attempt_left_behind", job_id=attempt.claim.job_id, pid=driver.process.pid)

    def _watch_start(self) -> None:
        """Ends a JVM that hangs before it is a driver. Whoever waits for it sees a start that failed."""
        start, now = self._runtime.starting, self._clock()
        if start is None:
            return
        if self._start is None or self._start[0] != start:
            self._start = (start, now)
        elif now - self._start[1] > self._runtime.start_timeout_seconds:
            _log.error("spark_start_killed", seconds=round(now - self._start[1]))
            self._runtime.kill_start()

    def _is_silent(self, driver: Driver) -> bool:
        now = self._clock()
        if self._answered is None or self._answered[0] is not driver:
            self._answered = (driver, now)
        return now - self._answered[1] > self._timeout

    def _is_left_alone(self, driver: Driver) -> bool:
        if driver.seconds_alone is None or driver.executors is None or driver.executors.number:
            self._alone = None
            return False
        now = self._clock()
        if self._alone is None or self._alone[0] is not driver:
            self._alone = (driver, now)
        return now - self._alone[1] > driver.seconds_alone

    def _give_up(self, driver: Driver, why: str) -> None:
        _log.error("spark_driver_lost", why=why, exit_code=driver.process.poll(), pid=driver.process.pid)
        self._overdue = 0
        for attempt in self._at_hand.all():
            if attempt.driver is driver:
                attempt.stop(reason_of_loss(driver))
        self._runtime.discard(driver)
