"""When a driver is ended for work that does not end, and what that costs the jobs beside it; `tests/e2e/test_poison.py`
and `tests/e2e/test_worker_faults.py` have real ones.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pytest
from py4j.protocol import Py4JError

from service.contract.enums import AttemptStatus, JobStatus
from service.store import publication
from service.store.attempts import Claim, attempts_of, crashed_attempts
from service.store.publication import Ending
from service.store.session import Database
from tests.support import lifecycle
from tests.support.hanging import silent_gateway
from tests.support.processes import wait_for
from workers.driver.driver import Driver
from workers.jobs.attempt import Attempt, AttemptStopped, RunningAttempts, StopReason
from workers.jobs.claims import hand_back_job
from workers.jobs.outcome import HandBack, Verdict, verdict_of
from workers.jobs.planning import PlanningThreads, is_in_jvm_call
from workers.process.watchdog import DriverWatch, StuckWork, must_end_driver

PATIENCE = 30
CUT = ConnectionResetError("the JVM is gone")


class Processes(Driver):
    """A process that can be killed, and what Spark would tell of the tasks in it."""

    left = 0
    of_tags: tuple[str, ...] = ()

    def leftover_tasks(self, tag: str | None = None) -> int:
        """See `Driver`."""
        return self.left if tag is None or tag in self.of_tags else 0


@dataclass
class Runtime:
    """What has the driver."""

    current: Any

    def discard(self, _: object) -> None:
        """See `SparkRuntime`."""
        self.current = None


class Bench:
    """A driver, attempts on it, and a clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.running_attempts = RunningAttempts()
        self.runtime = Runtime(None)
        self.left = 0
        self.stuck = StuckWork(self.runtime, self.running_attempts, PATIENCE, self.clock, self._leave)  # type: ignore[arg-type]
        self.watch = DriverWatch(self.runtime, self.running_attempts, 10, self.clock)  # type: ignore[arg-type]
        self.driver = self.next_driver()

    def clock(self) -> float:
        """Seconds."""
        return self.now

    def _leave(self) -> None:
        self.left += 1

    def next_driver(self) -> Processes:
        """The driver from now on."""
        if self.runtime.current is not None:
            self.runtime.current.kill()
        process = subprocess.Popen(["sleep", "600"])
        nothing: Any = None
        self.driver = Processes(
            nothing, nothing, process, slots=2, shuffle_partitions=4, monitor=nothing, pools=nothing
        )
        self.runtime.current = self.driver
        return self.driver

    def at_work(self, claim: Claim) -> Attempt:
        """An attempt that is not at its driver yet."""
        attempt = Attempt(claim, float("inf"), self.clock)
        with self.running_attempts.holding(attempt):
            self.running_attempts.keep(attempt)
        return attempt

    def on_driver(self, claim: Claim) -> Attempt:
        """An attempt in the driver."""
        attempt = self.at_work(claim)
        attempt.driver = self.driver
        return attempt

    def later(self, seconds: float) -> bool:
        """A look after so many seconds; whether the driver is left alone."""
        self.now += seconds
        self.stuck.step()
        return self.driver.is_running()


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.driver.kill()


def claimed(database: Database, job_id: str) -> Claim:
    """A claim of a job that is RUNNING."""
    claim = lifecycle.claim(database, job_id, lease_ms=60_000)
    lifecycle.run(database, claim)
    return claim


def ended(database: Database, bench: Bench, attempt: Attempt, verdict: Verdict) -> JobStatus:
    """What the runner makes of an attempt's end."""
    bench.running_attempts.release(attempt)
    if isinstance(verdict, HandBack):
        hand_back_job(database, attempt.claim, verdict, seconds=0)
    else:
        assert isinstance(verdict, Ending)
        with database.write() as session:
            assert publication.publish(session, attempt.claim, verdict, database.now(session))
    return JobStatus(lifecycle.row_of(database, attempt.claim.job_id).status)


def told(database: Database, job_id: str) -> list[tuple[str, str | None]]:
    """Ends and codes of its attempts."""
    with database.read() as session:
        return [(row.status, (row.error or {}).get("code")) for row in attempts_of(session, job_id)]


@pytest.mark.parametrize(
    ("stuck_seconds", "others_make_progress", "ends"),
    [
        (0, False, False),
        (30, False, False),
        (31, False, True),
        (31, True, False),
        (300, True, False),
        (301, True, True),
    ],
)
def test_others_are_given_time(stuck_seconds: float, others_make_progress: bool, ends: bool) -> None:
    told = must_end_driver(stuck_seconds=stuck_seconds, timeout_seconds=30, others_make_progress=others_make_progress)
    assert told is ends


@pytest.mark.parametrize("asked", [StopReason.CANCELLED, StopReason.TIMED_OUT])
def test_jobs_on_the_driver_of_an_unresponsive_attempt_lose_no_attempt(
    bench: Bench, database: Database, asked: StopReason
) -> None:
    lifecycle.insert(database, "innocent", max_attempts=2, timeout_ms=0)
    for number in range(4):
        bench.next_driver()
        lifecycle.insert(database, f"killer-{number}", max_attempts=1, timeout_ms=0)
        innocent = bench.on_driver(claimed(database, "innocent"))
        killer = bench.on_driver(claimed(database, f"killer-{number}"))
        killer.stop(asked)
        assert bench.later(10 * PATIENCE)
        assert not bench.later(1)
        bench.watch.watch()
        assert ended(database, bench, killer, verdict_of(CUT, killer)) is JobStatus(asked.value.upper())
        assert ended(database, bench, innocent, verdict_of(CUT, innocent)) is JobStatus.QUEUED
    assert told(database, "innocent") == [("CANCELLED", "driver_ended")] * 4
    assert told(database, "killer-3") == [(asked.value.upper(), asked.value)]
    with database.read() as session:
        assert crashed_attempts(session, "innocent") == 0
    assert claimed(database, "innocent").crashes == 0


def test_tasks_of_a_job_that_has_ended_cost_the_other_jobs_no_attempt(bench: Bench, database: Database) -> None:
    lifecycle.insert(database, "innocent", max_attempts=1, timeout_ms=0)
    innocent = bench.on_driver(claimed(database, "innocent"))
    bench.driver.left = 2
    bench.later(0)
    assert bench.later(PATIENCE)
    # No slot is left for it.
    assert not bench.later(1)
    assert ended(database, bench, innocent, verdict_of(CUT, innocent)) is JobStatus.QUEUED
    assert told(database, "innocent") == [("CANCELLED", "driver_ended")]


def test_an_attempt_with_leftover_tasks_of_its_own_counts(bench: Bench, database: Database) -> None:
    for job_id in ("own", "innocent"):
        lifecycle.insert(database, job_id, max_attempts=1, timeout_ms=0)
    own, innocent = (bench.on_driver(claimed(database, job_id)) for job_id in ("own", "innocent"))
    bench.driver.left, bench.driver.of_tags = 2, (own.tag,)
    bench.later(0)
    assert not bench.later(PATIENCE + 1)
    assert ended(database, bench, own, verdict_of(CUT, own)) is JobStatus.CRASHED
    assert ended(database, bench, innocent, verdict_of(CUT, innocent)) is JobStatus.QUEUED
    assert (told(database, "own"), told(database, "innocent")) == (
        [("CRASHED", "driver_lost")],
        [("CANCELLED", "driver_ended")],
    )


@pytest.mark.one_database
@pytest.mark.parametrize("finds_out", ["itself", "watch"])
def test_one_that_came_to_the_driver_as_it_was_ended_spends_none_either(
    bench: Bench, database: Database, finds_out: str
) -> None:
    for job_id in ("killer", "late"):
        lifecycle.insert(database, job_id, max_attempts=1, timeout_ms=0)
    killer, late = bench.on_driver(claimed(database, "killer")), bench.at_work(claimed(database, "late"))
    killer.stop(StopReason.CANCELLED)
    assert not bench.later(PATIENCE + 1)
    assert late.reason is None
    late.driver = bench.driver
    if finds_out == "watch":
        bench.watch.watch()
        assert late.reason is StopReason.DRIVER_ENDED
    verdict = verdict_of(CUT, late)
    assert isinstance(verdict, HandBack)
    assert (verdict.status, verdict.error.code) == (AttemptStatus.CANCELLED, "driver_ended")


@pytest.mark.one_database
def test_a_driver_that_died_by_itself_costs_an_attempt(bench: Bench, database: Database) -> None:
    lifecycle.insert(database, "a", max_attempts=1, timeout_ms=0)
    attempt = bench.on_driver(claimed(database, "a"))
    bench.driver.kill()
    assert ended(database, bench, attempt, verdict_of(CUT, attempt)) is JobStatus.CRASHED


@pytest.mark.one_database
def test_an_attempt_that_waits_for_the_database_is_not_unresponsive(bench: Bench, database: Database) -> None:
    lifecycle.insert(database, "a", max_attempts=1, timeout_ms=0)
    attempt = bench.on_driver(claimed(database, "a"))
    attempt.stop(StopReason.CANCELLED)
    bench.now += 5
    with attempt.waiting_for_database():
        assert bench.later(60)
    # Back at its driver, which has done nothing yet.
    assert bench.later(PATIENCE)
    with attempt.waiting_for_database():
        assert bench.later(60)
    assert not bench.later(PATIENCE + 1)


@pytest.mark.one_database
def test_an_attempt_that_publishes_its_end_is_not_unresponsive(bench: Bench, database: Database) -> None:
    lifecycle.insert(database, "a", max_attempts=1, timeout_ms=0)
    attempt = bench.on_driver(claimed(database, "a"))
    attempt.stop(StopReason.TIMED_OUT)
    attempt.settle()
    assert bench.later(100 * PATIENCE)
    # Tasks that it left behind are another thing.
    bench.driver.left = 1
    assert bench.later(0)
    assert not bench.later(PATIENCE + 1)


@contextmanager
def abandoned(bench: Bench, database: Database, plan: Callable[[], object], number: int = 0) -> Iterator[None]:
    """The planning of a job that was cancelled on the driver, which goes on inside."""
    lifecycle.insert(database, f"planned-{number}", max_attempts=1, timeout_ms=0)
    attempt = bench.on_driver(claimed(database, f"planned-{number}"))
    attempt.stop(StopReason.CANCELLED)
    with pytest.raises(AttemptStopped):
        PlanningThreads(bench.running_attempts.abandoned).run(attempt, plan)
    attempt.settle()
    bench.running_attempts.release(attempt)
    yield


@pytest.mark.one_database
def test_a_driver_that_does_not_answer_an_abandoned_planning_is_ended(bench: Bench, database: Database) -> None:
    with silent_gateway() as gateway, abandoned(bench, database, lambda: gateway.jvm.java.lang.System.nanoTime()):
        bench.later(0)
        assert bench.later(PATIENCE)
        assert not bench.later(1)
        # The one after it has nothing to do with that call.
        bench.next_driver()
        assert bench.later(10 * PATIENCE)
    wait_for("the end of the planning", lambda: not bench.running_attempts.abandoned.all())


@pytest.mark.one_database
def test_other_jobs_get_time_before_an_abandoned_planning_ends_the_driver(bench: Bench, database: Database) -> None:
    lifecycle.insert(database, "innocent", max_attempts=1, timeout_ms=0)
    innocent = bench.on_driver(claimed(database, "innocent"))
    with silent_gateway() as gateway, abandoned(bench, database, lambda: gateway.jvm.java.lang.System.nanoTime()):
        bench.later(0)
        assert bench.later(10 * PATIENCE)
        assert not bench.later(1)
    assert ended(database, bench, innocent, verdict_of(CUT, innocent)) is JobStatus.QUEUED
    assert told(database, "innocent") == [("CANCELLED", "driver_ended")]


@pytest.mark.one_database
def test_an_abandoned_planning_that_waits_for_something_else_costs_no_driver(bench: Bench, database: Database) -> None:
    release = threading.Event()
    with abandoned(bench, database, release.wait):
        bench.later(0)
        assert bench.later(100 * PATIENCE)
        release.set()


def looked(bench: Bench, seconds: float) -> int:
    """How many times the worker was asked to leave, after another look at the plannings so many seconds later."""
    bench.now += seconds
    bench.stuck.check_plannings()
    return bench.left


@pytest.mark.not_quick
@pytest.mark.one_database
def test_a_worker_that_abandoned_plannings_block_leaves(bench: Bench, database: Database) -> None:
    release = threading.Event()
    with ExitStack() as plannings:
        for number in range(4):
            assert looked(bench, PATIENCE) == 0, number
            plannings.enter_context(abandoned(bench, database, release.wait, number))
        assert looked(bench, 0) == 0
        assert looked(bench, 2 * PATIENCE) == 0
        assert looked(bench, 1) == 1
    release.set()
    wait_for("the end of the plannings", lambda: not bench.running_attempts.abandoned.all())
    assert looked(bench, 100 * PATIENCE) == 1


@pytest.mark.not_quick
@pytest.mark.one_database
def test_a_worker_does_not_leave_while_the_end_of_the_driver_would_end_the_plannings(
    bench: Bench, database: Database
) -> None:
    with silent_gateway() as gateway, ExitStack() as plannings:
        for number in range(4):
            plan = abandoned(bench, database, lambda: gateway.jvm.java.lang.System.nanoTime(), number)
            plannings.enter_context(plan)
        assert looked(bench, 0) == 0
        assert looked(bench, 11 * PATIENCE) == 0
        assert looked(bench, 1) == 1
    wait_for("the end of the plannings", lambda: not bench.running_attempts.abandoned.all())


@pytest.mark.not_quick
@pytest.mark.one_database
def test_the_time_of_a_planning_in_the_jvm_does_not_count(bench: Bench, database: Database) -> None:
    release, returned = threading.Event(), threading.Event()

    def calls_and_waits() -> None:
        with suppress(Py4JError, OSError):
            gateway.jvm.java.lang.System.nanoTime()
        returned.set()
        release.wait()

    plans: list[Callable[[], object]] = [release.wait, release.wait, release.wait, calls_and_waits]
    with ExitStack() as plannings:
        with silent_gateway() as gateway:
            for number, plan in enumerate(plans):
                plannings.enter_context(abandoned(bench, database, plan, number))
            assert looked(bench, 0) == 0
            assert looked(bench, 5 * PATIENCE) == 0
        assert returned.wait(10)
        assert looked(bench, 0) == 0
        assert looked(bench, 2 * PATIENCE) == 0
        assert looked(bench, 1) == 1
    release.set()
    wait_for("the end of the plannings", lambda: not bench.running_attempts.abandoned.all())


@pytest.mark.one_database
def test_a_worker_leaves_for_one_planning_that_hangs_for_long(bench: Bench, database: Database) -> None:
    release = threading.Event()
    with abandoned(bench, database, release.wait):
        assert looked(bench, 0) == 0
        assert looked(bench, 10 * PATIENCE) == 0
        assert looked(bench, 1) == 1
        # It is asked again where it has not left.
        assert looked(bench, 0) == 1
        assert looked(bench, 10 * PATIENCE) == 1
        assert looked(bench, 1) == 2
    release.set()
    wait_for("the end of the planning", lambda: not bench.running_attempts.abandoned.all())


@pytest.mark.not_quick
@pytest.mark.one_database
def test_plannings_that_end_in_time_do_not_make_a_worker_leave(bench: Bench, database: Database) -> None:
    for number in range(3):
        release = threading.Event()
        with abandoned(bench, database, release.wait, number):
            assert looked(bench, 0) == 0
            assert looked(bench, 10 * PATIENCE) == 0
            release.set()
            wait_for("the end of the planning", lambda: not bench.running_attempts.abandoned.all())
    assert looked(bench, 10 * PATIENCE) == 0


@pytest.mark.one_database
def test_a_worker_leaves_for_one_planning_that_is_in_the_jvm_now_and_then(bench: Bench, database: Database) -> None:
    release = threading.Event()

    def waits_and_calls() -> None:
        release.wait()
        gateway.jvm.java.lang.System.nanoTime()

    with silent_gateway() as gateway, abandoned(bench, database, waits_and_calls):
        (planning,) = bench.running_attempts.abandoned.all()
        assert looked(bench, 0) == 0
        assert looked(bench, 10 * PATIENCE) == 0
        release.set()
        wait_for("the call into the JVM", lambda: is_in_jvm_call(planning.thread))
        assert looked(bench, PATIENCE) == 0
        assert looked(bench, 1) == 1
    wait_for("the end of the planning", lambda: not bench.running_attempts.abandoned.all())
