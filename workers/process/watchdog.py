"""Checks the Spark driver: whether it starts, responds, has executors, and ends the work that was stopped.

`StuckWork` kills a driver with stuck work: a task, an attempt, or a JVM call of an abandoned planning that does not end
after it was stopped. A JVM cannot kill a thread. On a cluster, Spark kills the executor of a stuck task
(`spark.task.reaper`); in local mode, only the driver can be killed. The job of the stuck work ends as was requested.
The other attempts on the driver lose their work, but do not count: otherwise jobs with stuck work could use up the
attempts of other jobs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import structlog

from workers.driver.driver import Driver
from workers.driver.session import SparkRuntime
from workers.jobs.attempt import AbandonedPlanning, Attempt, RunningAttempts, StopReason, reason_of_loss
from workers.jobs.planning import is_in_jvm_call
from workers.periodic import Durations

_log = structlog.get_logger(__name__)

_FACTOR_WITH_OTHERS = 10
"""The timeout is multiplied by this while other attempts on the driver make progress."""

_FACTOR_FOR_PLANNINGS = 2
"""If abandoned plannings prevent the worker from claiming jobs for this many timeouts, it drains."""


def must_end_driver(*, stuck_seconds: float, timeout_seconds: float, others_make_progress: bool) -> bool:
    """Whether a driver with stuck work must be killed now.

    Other attempts that make progress would lose their work, so they get time to end first.
    """
    return stuck_seconds > timeout_seconds * (_FACTOR_WITH_OTHERS if others_make_progress else 1)


class StuckWork:
    """Finds stuck work and kills its driver. `step` needs its own thread, since its calls into the JVM can hang."""

    def __init__(
        self,
        runtime: SparkRuntime,
        running_attempts: RunningAttempts,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        drain: Callable[[], object] = lambda: None,
    ) -> None:
        """`drain` makes the worker drain, so that a new one replaces it. It may be called several times."""
        self._runtime = runtime
        self._running_attempts = running_attempts
        self._timeout = timeout_seconds
        self._drain = drain
        self._leftover_tasks = Durations(clock)
        """How long the driver has had leftover tasks."""
        self._jvm_calls = Durations(clock)
        """How long each abandoned planning has been in a JVM call."""
        self._abandoned = Durations(clock)
        """How long each planning has been abandoned."""
        self._outside_jvm = Durations(clock)
        """How long each abandoned planning has not been in a JVM call."""

    def check_plannings(self) -> None:
        """Makes the worker drain if abandoned plannings block jobs and killing the driver would not end them.

        If their number reaches the limit, they block all jobs. A single one blocks some jobs: an explanation keeps its
        slot, and while a suspect runs, jobs with one attempt left do not start.

        `step` kills a driver that does not answer a planning, after at most ten times the timeout. So while a planning
        is in a JVM call, the worker waits longer before it drains. This method makes no JVM call itself.
        """
        plannings = self._running_attempts.abandoned.all()
        abandoned = self._abandoned.update(plannings)
        outside = self._outside_jvm.update(each for each in plannings if not is_in_jvm_call(each.thread))
        if self._is_blocked(abandoned, outside):
            _log.error("worker_blocked_by_plannings", jobs=[planning.attempt.claim.job_id for planning in plannings])
            self._drain()
            self._abandoned.update(())
            self._outside_jvm.update(())

    def _is_blocked(self, abandoned: list[float], outside: list[float]) -> bool:
        if max(outside, default=0.0) > _FACTOR_WITH_OTHERS * self._timeout:
            return True
        if max(abandoned, default=0.0) > (_FACTOR_WITH_OTHERS + 1) * self._timeout:
            return True
        is_any_in_jvm = len(outside) < len(abandoned)
        return (
            self._running_attempts.abandoned.are_too_many
            and not is_any_in_jvm
            and min(outside, default=0.0) > _FACTOR_FOR_PLANNINGS * self._timeout
        )

    def step(self) -> None:
        """Kills a driver with stuck work after the timeout. `DriverWatch` then stops its attempts and drops it."""
        driver = self._runtime.current
        if driver is None:
            self._leftover_tasks.update(())
            return
        # A settled attempt no longer needs the driver, even while its end is being published.
        attempts = [one for one in self._running_attempts.all() if one.driver is driver and not one.is_settled]
        stopping = [one for one in attempts if _must_end(one)]
        left = driver.leftover_tasks()
        calls = self._abandoned_calls(driver)
        waiting = (self._leftover_tasks.longest([driver] if left else []), self._jvm_calls.longest(calls))
        stuck = max([*waiting, *(one.unresponsive_for() for one in stopping)])
        others = len(attempts) > len(stopping) and left < driver.slots
        if must_end_driver(stuck_seconds=stuck, timeout_seconds=self._timeout, others_make_progress=others):
            self._end(driver, left, attempts, [planning.attempt for planning in calls])

    def _abandoned_calls(self, driver: Driver) -> list[AbandonedPlanning]:
        """Returns the abandoned plannings that wait for the driver to answer a call."""
        plannings = self._running_attempts.abandoned.all()
        return [one for one in plannings if one.attempt.driver is driver and is_in_jvm_call(one.thread)]

    def _end(self, driver: Driver, tasks: int, attempts: Collection[Attempt], abandoned: Collection[Attempt]) -> None:
        stopping = [one for one in attempts if _must_end(one)]
        own = [one for one in attempts if one.reason is None and driver.leftover_tasks(one.tag)]
        jobs = list(dict.fromkeys(attempt.claim.job_id for attempt in (*stopping, *own, *abandoned)))
        _log.error("spark_driver_stuck", tasks=tasks, jobs=jobs, pid=driver.process.pid)
        for attempt in own:
            # Its own tasks do not end, and would not end in the next attempt. So this attempt counts.
            attempt.stop(StopReason.DRIVER_LOST)
        # Set before the driver is killed: an attempt that fails reads this, even one that has only just begun.
        driver.ended = True
        for attempt in attempts:
            attempt.stop(StopReason.DRIVER_ENDED)
        driver.kill()
        self._leftover_tasks.update(())
        self._jvm_calls.update(())


def _must_end(attempt: Attempt) -> bool:
    """Whether the attempt must stop at once."""
    return attempt.reason is not None and not attempt.ends_gracefully


class DriverWatch:
    """Checks the driver, with a method for each of two threads: `ping` hangs if the JVM hangs, `watch` never does."""

    def __init__(
        self,
        runtime: SparkRuntime,
        running_attempts: RunningAttempts,
        timeout_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runtime = runtime
        self._running_attempts = running_attempts
        self._timeout = timeout_seconds
        self._clock = clock
        self._answered: tuple[Driver, float] | None = None
        self._starting = Durations(clock)
        """How long a JVM has been starting."""
        self._without_executors = Durations(clock)
        """How long the driver has had no executors."""
        self._overdue = 0

    def ping(self) -> None:
        """Records when the JVM last answered, and updates the cluster's state. A failure counts as no answer; see
        `watch`.
        """
        driver = self._runtime.current
        if driver is None:
            return
        driver.ping()
        self._answered = (driver, self._clock())
        driver.refresh()

    def watch(self) -> None:
        """Drops a driver that has ended or lost its cluster. Kills one that does not respond, or that hangs at its
        start.
        """
        self._stop_attempts_of_ended_drivers()
        driver = self._runtime.current
        if driver is None:
            self._watch_start()
            return
        if not driver.is_running():
            self._drop(driver, "exited")
        elif self._is_unresponsive(driver):
            # Only at the second check: if the machine was suspended, the driver had no time to answer before the first.
            self._overdue += 1
            if self._overdue >= 2:
                driver.kill()
                self._drop(driver, "silent")
        elif driver.stopped:
            self._drop(driver, "stopped")
        elif self._is_without_executors(driver):
            # A restarted master no longer has the application, and starts no executors for it.
            self._drop(driver, "no_executors")
        else:
            self._overdue = 0

    def _stop_attempts_of_ended_drivers(self) -> None:
        """Stops attempts whose JVM has ended. `SparkRuntime` may have replaced the driver for another job already."""
        for attempt in self._running_attempts.all():
            driver = attempt.driver
            if driver is None or driver is self._runtime.current or driver.is_running():
                continue
            if attempt.stop(reason_of_loss(driver)):
                _log.warning("attempt_of_ended_driver_stopped", job_id=attempt.claim.job_id, pid=driver.process.pid)

    def _watch_start(self) -> None:
        """Kills a JVM that hangs during its start. The start then fails."""
        start = self._runtime.starting
        if start is None:
            return
        seconds = self._starting.longest([start])
        if seconds > self._runtime.start_timeout_seconds:
            _log.error("spark_start_killed", seconds=round(seconds))
            self._runtime.kill_start()

    def _is_unresponsive(self, driver: Driver) -> bool:
        now = self._clock()
        if self._answered is None or self._answered[0] is not driver:
            self._answered = (driver, now)
        return now - self._answered[1] > self._timeout

    def _is_without_executors(self, driver: Driver) -> bool:
        limit, executors = driver.seconds_without_executors, driver.executors
        if limit is None or executors is None or executors.number:
            self._without_executors.update(())
            return False
        return self._without_executors.longest([driver]) > limit

    def _drop(self, driver: Driver, why: str) -> None:
        _log.error("spark_driver_lost", why=why, exit_code=driver.process.poll(), pid=driver.process.pid)
        self._overdue = 0
        for attempt in self._running_attempts.all():
            if attempt.driver is driver:
                attempt.stop(reason_of_loss(driver))
        self._runtime.discard(driver)
