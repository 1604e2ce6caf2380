"""Ends a driver in which work goes on that was ordered to end. A JVM cannot end a thread by force.

Such work is a task, an attempt that waits for the driver, or a call into the JVM of an abandoned planning.

On a cluster Spark ends the executor of such a task (`spark.task.reaper`). In local mode there is only the driver, which
Spark does not end.

The job of such work keeps the end that was ordered, or has ended before. The other attempts on the driver lose their
work, but it does not count as an attempt of their jobs: otherwise a series of such jobs would use up the attempts of
any other job.

Watches the driver: whether it comes up, whether its JVM exists and still answers, whether it has executors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

import structlog

from workers.driver.driver import Driver
from workers.driver.session import SparkRuntime
from workers.jobs.attempt import AbandonedPlanning, Attempt, AttemptsAtHand, StopReason, reason_of_loss
from workers.jobs.planning import is_in_jvm_call

_log = structlog.get_logger(__name__)

_PATIENCE_FOR_OTHERS = 10
"""How many times the patience a driver is kept on which other attempts still make progress."""

_PATIENCE_FOR_PLANNINGS = 2
"""How many times the patience a worker claims no job because of abandoned plannings, before it leaves."""


def is_to_end(*, stuck_seconds: float, patience_seconds: float, are_others_at_work: bool) -> bool:
    """Whether a driver with work that does not end must be ended now.

    Other attempts that still make progress would lose their work, so they get time to end first.
    """
    return stuck_seconds > patience_seconds * (_PATIENCE_FOR_OTHERS if are_others_at_work else 1)


class StuckWork:
    """Looks for such work. `step` needs a thread of its own, since its calls into the JVM can hang."""

    def __init__(
        self,
        runtime: SparkRuntime,
        at_hand: AttemptsAtHand,
        patience_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        leave: Callable[[], object] = lambda: None,
    ) -> None:
        """`leave` makes the worker end after its jobs, so that another one replaces it. It may be called again."""
        self._runtime = runtime
        self._at_hand = at_hand
        self._patience = patience_seconds
        self._clock = clock
        self._leave = leave
        self._since: tuple[Driver, float] | None = None
        self._calls: dict[AbandonedPlanning, float] = {}
        """The calls into the JVM of abandoned plannings, and when each was first seen."""
        self._abandoned: dict[AbandonedPlanning, float] = {}
        """The abandoned plannings, and when each was first seen."""
        self._outside: dict[AbandonedPlanning, float] = {}
        """Those that are in no call into the JVM, and when each was first seen so, without a break since then."""

    def look_at_plannings(self) -> None:
        """Makes the worker leave when abandoned plannings block jobs and the end of the driver would not end them.

        As many plannings as the worker may have block all jobs. A single one blocks some: an explanation keeps its
        slot, and a suspect keeps jobs at their last chance from beginning.

        `step` ends a driver that does not answer a planning, after ten times the patience at the latest. So while a
        planning is in a call into the JVM, the worker leaves only after a longer time. Makes no call into the JVM.
        """
        now = self._clock()
        plannings = self._at_hand.abandoned.all()
        outside = [one for one in plannings if not is_in_jvm_call(one.thread)]
        self._abandoned = {one: self._abandoned.get(one, now) for one in plannings}
        self._outside = {one: self._outside.get(one, now) for one in outside}
        if self._is_blocked(now):
            _log.error("worker_blocked_by_plannings", jobs=[one.attempt.claim.job_id for one in plannings])
            self._leave()
            self._abandoned, self._outside = {}, {}

    def _is_blocked(self, now: float) -> bool:
        abandoned = [now - since for since in self._abandoned.values()]
        outside = [now - since for since in self._outside.values()]
        if max(outside, default=0.0) > _PATIENCE_FOR_OTHERS * self._patience:
            return True
        if max(abandoned, default=0.0) > (_PATIENCE_FOR_OTHERS + 1) * self._patience:
            return True
        is_any_in_jvm = len(outside) < len(abandoned)
        return (
            self._at_hand.abandoned.are_too_many
            and not is_any_in_jvm
            and min(outside, default=0.0) > _PATIENCE_FOR_PLANNINGS * self._patience
        )

    def step(self) -> None:
        """Kills the driver when its time is over. Then `DriverWatch` hands its attempts back and builds another one."""
        driver = self._runtime.current
        if driver is None:
            self._since = None
            return
        # An attempt that has ended does not need the driver any more, also while its end is being published.
        attempts = [one for one in self._at_hand.all() if one.driver is driver and not one.is_settled]
        ordered = [one for one in attempts if _must_end(one)]
        left = driver.tasks_left_behind()
        waiting = [self._seconds_of_tasks(driver, left), self._seconds_of_calls(driver)]
        stuck = max([*waiting, *(one.deaf_for() for one in ordered)])
        others = len(attempts) > len(ordered) and left < driver.slots
        if is_to_end(stuck_seconds=stuck, patience_seconds=self._patience, are_others_at_work=others):
            self._end(driver, left, attempts)

    def _seconds_of_tasks(self, driver: Driver, left: int) -> float:
        """For how long the driver has had such tasks without a break."""
        now = self._clock()
        if not left:
            self._since = None
        elif self._since is None or self._since[0] is not driver:
            self._since = (driver, now)
        return 0.0 if self._since is None else now - self._since[1]

    def _seconds_of_calls(self, driver: Driver) -> float:
        """For how long an abandoned planning has waited for an answer of the driver, without a break."""
        now = self._clock()
        left = [one for one in self._at_hand.abandoned.all() if one.attempt.driver is driver]
        self._calls = {one: self._calls.get(one, now) for one in left if is_in_jvm_call(one.thread)}
        return max((now - since for since in self._calls.values()), default=0.0)

    def _end(self, driver: Driver, tasks: int, attempts: Collection[Attempt]) -> None:
        ordered = [one for one in attempts if _must_end(one)]
        own = [one for one in attempts if one.reason is None and driver.tasks_left_behind_by(one.tag)]
        abandoned = [planning.attempt for planning in self._calls]
        jobs = list(dict.fromkeys(attempt.claim.job_id for attempt in (*ordered, *own, *abandoned)))
        _log.error("spark_driver_stuck", tasks=tasks, jobs=jobs, pid=driver.process.pid)
        for attempt in own:
            # Its own tasks do not end, and would not end the next time. So this attempt counts.
            attempt.stop(StopReason.DRIVER_LOST)
        # Before the driver is killed: an attempt that fails reads this, also one that begins only now.
        driver.ended = True
        for attempt in attempts:
            attempt.stop(StopReason.DRIVER_ENDED)
        driver.kill()
        self._since = None
        self._calls = {}


def _must_end(attempt: Attempt) -> bool:
    """Whether the attempt must end at once."""
    return attempt.reason is not None and not attempt.ends_gently


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
