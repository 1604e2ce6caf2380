"""What ends attempts early, by the database and by the clock, and which may end by themselves."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from sqlalchemy import update

from service.contract.enums import JobStatus, Mode
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.drivers import Cancelled, Hung
from tests.support.processes import wait_for
from workers.jobs.attempt import Attempt, AttemptStopped, RunningAttempts, StopReason
from workers.jobs.cancellation import CancellationWatch, cancel_stopped
from workers.jobs.planning import PlanningThreads


@pytest.fixture
def driver() -> Cancelled:
    return Cancelled()


@pytest.fixture
def attempt(database: Database, driver: Cancelled) -> Attempt:
    """A stream that worker w1 runs."""
    lifecycle.insert(database, "job-1", timeout_ms=0, mode=Mode.CONTINUOUS)
    claim = lifecycle.claim(database, "job-1", lease_ms=60_000)
    lifecycle.run(database, claim)
    attempt = Attempt(claim, 100.0)
    attempt.driver = driver  # type: ignore[assignment]
    attempt.streams = True
    return attempt


def looked(database: Database, attempt: Attempt, **values: object) -> StopReason | None:
    """What the watch makes of a job with these columns."""
    running_attempts = RunningAttempts()
    with running_attempts.holding(attempt):
        with database.write() as session:
            session.execute(update(JobRow).values(**values))
        watch = CancellationWatch(database, running_attempts)
        watch.step()
        watch.cancel_spark_jobs()
    return attempt.reason


def test_a_job_without_a_request_to_stop_continues(database: Database, attempt: Attempt, driver: Cancelled) -> None:
    assert looked(database, attempt, version=7) is None
    assert driver.tags == []


def test_a_stream_with_a_stop_request_ends_by_itself(database: Database, attempt: Attempt, driver: Cancelled) -> None:
    reason = looked(database, attempt, status=JobStatus.STOPPING.value, stop_requested_at=1)
    assert reason is StopReason.STOP_REQUESTED
    assert driver.tags == [], "its mini-batch goes on to its end"


def test_a_cancellation_does_not_wait_for_a_mini_batch(database: Database, attempt: Attempt, driver: Cancelled) -> None:
    reason = looked(database, attempt, status=JobStatus.CANCELLING.value, stop_requested_at=1, cancel_requested_at=2)
    assert reason is StopReason.CANCELLED
    assert set(driver.tags) == {attempt.tag}


def test_an_attempt_whose_job_another_has_is_ended(database: Database, attempt: Attempt, driver: Cancelled) -> None:
    assert looked(database, attempt, fence=2) is StopReason.LEASE_LOST
    assert set(driver.tags) == {attempt.tag}


@pytest.mark.one_database
def test_what_leaves_with_its_worker_ends_gently_if_it_streams(attempt: Attempt, driver: Cancelled) -> None:
    attempt.stop(StopReason.WORKER_STOPPING)
    cancel_stopped((attempt,))
    assert driver.tags == []
    attempt.streams = False
    cancel_stopped((attempt,))
    assert driver.tags == [attempt.tag]


@pytest.mark.one_database
def test_the_time_limit_of_a_run_is_kept(database: Database, attempt: Attempt, driver: Cancelled) -> None:
    running_attempts, now = RunningAttempts(), 99.0
    watch = CancellationWatch(database, running_attempts, lambda: now)
    with running_attempts.holding(attempt):
        watch.mark_overdue()
        assert attempt.reason is None
        now = 100.0
        watch.mark_overdue()
        watch.cancel_spark_jobs()
    assert attempt.reason is StopReason.TIMED_OUT
    assert driver.tags == [attempt.tag]


@pytest.mark.one_database
def test_a_driver_that_hangs_keeps_no_other_attempt_from_being_stopped(database: Database, attempt: Attempt) -> None:
    driver, running_attempts = Hung(), RunningAttempts()
    other = Attempt(replace(attempt.claim, job_id="job-2"), 0.0)
    for one in (attempt, other):
        one.driver = driver  # type: ignore[assignment]
    attempt.stop(StopReason.CANCELLED)
    watch = CancellationWatch(database, running_attempts, lambda: 1.0)
    with running_attempts.holding(attempt), running_attempts.holding(other):
        threading.Thread(target=watch.cancel_spark_jobs, daemon=True).start()
        wait_for("the thread to hang", lambda: driver.tags)
        for step in (watch.mark_overdue, watch.step):
            thread = threading.Thread(target=step, daemon=True)
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
    assert other.reason is StopReason.TIMED_OUT


@pytest.mark.one_database
def test_spark_jobs_of_an_abandoned_planning_are_cancelled(
    database: Database, attempt: Attempt, driver: Cancelled
) -> None:
    running_attempts, release = RunningAttempts(), threading.Event()
    attempt.stop(StopReason.STOP_REQUESTED)
    with pytest.raises(AttemptStopped):
        PlanningThreads(running_attempts.abandoned).run(attempt, release.wait)
    watch = CancellationWatch(database, running_attempts)
    watch.cancel_spark_jobs()
    assert driver.tags == [attempt.tag], "it is at no mini-batch that could end by itself"
    release.set()
    wait_for("its end", lambda: not running_attempts.abandoned.all())
    watch.cancel_spark_jobs()
    assert driver.tags == [attempt.tag]
