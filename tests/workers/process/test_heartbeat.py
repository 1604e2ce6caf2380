"""Heartbeats renew leases, but not those of hung attempts."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import update

from service.contract.reports import Progress
from service.store import workers
from service.store.session import Database
from service.store.tables import JobRow
from service.store.workers import WorkerFacts
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from workers.engine.spark.status_store import MonitorError
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.process.heartbeat import Heartbeat, ProgressReporter

LEASE_MS = 30_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def attempt(database: Database, clock: ManualClock) -> Attempt:
    """A job that worker w1 has just claimed."""
    lifecycle.insert(database, "job-1", max_attempts=1, timeout_ms=60_000)
    return Attempt(lifecycle.claim(database, "job-1"), clock.seconds() + 60, clock.seconds)


def lease_left(database: Database, clock: ManualClock) -> int:
    return (lifecycle.row_of(database, "job-1").lease_expires_at or 0) - clock.ms


def test_a_lease_is_renewed_while_the_attempt_runs(database: Database, clock: ManualClock, attempt: Attempt) -> None:
    running_attempts = RunningAttempts()
    heartbeat = Heartbeat(database, "w1", running_attempts, LEASE_MS)
    with running_attempts.holding(attempt):
        for _ in range(30):
            clock.ms += 20_000
            heartbeat.step()
            assert lease_left(database, clock) == LEASE_MS
    assert attempt.reason is None


def test_the_lease_of_a_runner_that_does_not_stop_runs_out(
    database: Database, clock: ManualClock, attempt: Attempt
) -> None:
    running_attempts = RunningAttempts()
    heartbeat = Heartbeat(database, "w1", running_attempts, LEASE_MS)
    with running_attempts.holding(attempt):
        clock.ms += 20_000
        attempt.stop(StopReason.TIMED_OUT)
        for _ in range(3):
            clock.ms += 20_000
            heartbeat.step()
        assert lease_left(database, clock) == LEASE_MS, "it has a minute to clean up"
        clock.ms += 20_000
        heartbeat.step()
        assert lease_left(database, clock) == LEASE_MS - 20_000
    assert attempt.reason is StopReason.TIMED_OUT


def test_a_late_step_does_not_add_a_worker_that_left(database: Database, clock: ManualClock) -> None:
    heartbeat = Heartbeat(database, "w1", RunningAttempts(), LEASE_MS)
    beating, left = threading.Event(), threading.Event()

    def facts() -> WorkerFacts:
        beating.set()
        assert left.wait(30)
        return WorkerFacts()

    late = Heartbeat(database, "w2", RunningAttempts(), LEASE_MS, facts)
    thread = threading.Thread(target=late.step)
    thread.start()
    assert beating.wait(30)
    late.leave()
    left.set()
    thread.join()
    heartbeat.step()
    with database.read() as session:
        assert [row.id for row in workers.list_workers(session, 0)] == ["w1"]
    heartbeat.leave()
    heartbeat.step()
    with database.read() as session:
        assert workers.list_workers(session, 0) == []


def test_an_attempt_whose_lease_is_lost_is_stopped_and_no_other(
    database: Database, clock: ManualClock, attempt: Attempt
) -> None:
    lifecycle.insert(database, "job-2", timeout_ms=60_000)
    lost = Attempt(lifecycle.claim(database, "job-2"), 60.0)
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "job-2").values(lease_owner="w2"))
    running_attempts, drained = RunningAttempts(), []
    heartbeat = Heartbeat(database, "w1", running_attempts, LEASE_MS, drain=lambda: drained.append(clock.ms))
    with running_attempts.holding(attempt), running_attempts.holding(lost):
        heartbeat.step()
    assert (attempt.reason, lost.reason) == (None, StopReason.LEASE_LOST)
    assert drained == []


def test_a_worker_learns_of_a_request_to_drain_with_every_heartbeat(database: Database, clock: ManualClock) -> None:
    drained: list[int] = []
    heartbeat = Heartbeat(database, "w1", RunningAttempts(), LEASE_MS, drain=lambda: drained.append(clock.ms))
    heartbeat.step()
    with database.write() as session:
        workers.request_drain(session, "w1", clock.ms)
    for _ in range(2):
        clock.ms += 1
        heartbeat.step()
    assert drained == [clock.ms - 1, clock.ms]


@dataclass
class Monitored:
    """A driver that reports the given tasks as Spark would. Without tasks, it reports a failure."""

    told: dict[str, int]
    asked: list[str] = field(default_factory=list)

    @property
    def monitor(self) -> Monitored:
        """See `Driver`."""
        return self

    def progress(self, tag: str) -> Progress:
        """See `SparkMonitor`."""
        self.asked.append(tag)
        if tag not in self.told:
            raise MonitorError
        return Progress(tasks_done=self.told[tag])


def test_progress_is_stored_of_attempts_that_moved(database: Database) -> None:
    running_attempts = RunningAttempts()
    driver: Any = Monitored({})
    attempts: dict[str, Attempt] = {}
    for job_id in ("waits", "stops", "streams", "fails", "moves"):
        lifecycle.insert(database, job_id)
        attempt = attempts[job_id] = Attempt(lifecycle.claim(database, job_id), 60.0)
        attempt.driver = None if job_id == "waits" else driver
        attempt.streams = job_id == "streams"
        if job_id != "fails":
            driver.told[attempt.run_tag] = 0
        with running_attempts.holding(attempt):
            running_attempts.keep(attempt)
    attempts["stops"].stop(StopReason.CANCELLED)
    reporter = ProgressReporter(database, running_attempts)
    found = []
    for done in (0, 1, 1, 2):
        driver.told[attempts["moves"].run_tag] = done
        reporter.step()
        row = lifecycle.row_of(database, "moves")
        found.append(((row.progress or {}).get("tasks_done"), row.version))
    # What Spark tells first is what the attempt begins with: nothing has moved.
    assert found == [(None, 2), (1, 3), (1, 3), (2, 4)]
    assert set(driver.asked) == {attempts["fails"].run_tag, attempts["moves"].run_tag}
    assert {lifecycle.row_of(database, job_id).version for job_id in attempts if job_id != "moves"} == {2}
