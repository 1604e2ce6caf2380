"""A worker continues as long as jobs wait, even if all messages but one are lost."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select

from service.config.settings import Settings
from service.contract.enums import Queue, SparkState
from service.store import workers
from service.store.attempts import Claim
from service.store.jobs import RUN
from service.store.session import Database
from service.store.tables import AttemptRow, JobRow
from tests.support import lifecycle
from tests.support.processes import wait_for
from workers.driver.session import SparkCondition, SparkRuntime
from workers.jobs.attempt import Attempt, AttemptStopped, StopReason
from workers.jobs.planning import PlanningThreads
from workers.process.worker import Worker

THREADS = 4
JOBS = 100


@pytest.fixture
def worker_settings(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a worker of the queue `short`, which has no Spark."""
    monkeypatch.setenv("EVENKEEL_WORKER_CONCURRENCY", str(THREADS))
    monkeypatch.setenv("EVENKEEL_WORKER_QUEUES", "short")
    # These jobs have no time left: they end before anything is asked of Spark.
    monkeypatch.setattr(SparkRuntime, "driver", lambda _: None)
    return Settings()


def submit(database: Database, prefix: str, count: int, queue: Queue = Queue.SHORT) -> list[str]:
    ids = [f"{prefix}-{number:03}" for number in range(count)]
    for job_id in ids:
        lifecycle.insert(database, job_id, max_attempts=1, timeout_ms=-1, queue=queue)
    return ids


class Announcements:
    """Records the announced jobs."""

    def __init__(self) -> None:
        self.announced: list[tuple[str, str]] = []

    def __call__(self, job_id: str, queue: str) -> bool:
        self.announced.append((job_id, queue))
        return True


def counts(database: Database) -> dict[tuple[str, str], int]:
    with database.read() as session:
        rows = session.execute(select(JobRow.queue, JobRow.status, func.count()).group_by(JobRow.queue, JobRow.status))
        return {(queue, status): count for queue, status, count in rows}


@pytest.mark.not_quick
def test_one_message_a_thread_is_enough_for_all_jobs_of_its_queues(
    worker_settings: Settings, sqlite_database: Database
) -> None:
    jobs = submit(sqlite_database, "short", JOBS)
    submit(sqlite_database, "long", 3, Queue.LONG)
    announcements = Announcements()
    worker = Worker(worker_settings, announcements)
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(worker.run, jobs[-THREADS:]))
    assert counts(sqlite_database) == {("short", "TIMED_OUT"): JOBS, ("long", "QUEUED"): 3}
    with sqlite_database.read() as session:
        assert session.scalar(select(func.count()).select_from(AttemptRow)) == JOBS
    assert announcements.announced == []


def test_one_that_is_to_leave_takes_none_and_passes_its_message_on(
    worker_settings: Settings, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = submit(sqlite_database, "short", 2)
    announcements = Announcements()
    worker = Worker(worker_settings, announcements)
    waits: list[float] = []
    monkeypatch.setattr(worker._shutdown, "wait_for_order", waits.append)
    worker._running_attempts.refuse()
    worker.run(jobs[0])
    assert announcements.announced == [(jobs[0], "short")]
    assert counts(sqlite_database) == {("short", "QUEUED"): 2}
    assert waits == [1.0], "the message may come back until it listens no more"


def test_it_listens_while_spark_is_there_and_it_is_not_to_leave(
    worker_settings: Settings, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = submit(sqlite_database, "short", 1)
    announcements = Announcements()
    worker = Worker(worker_settings, announcements)
    said: list[bool] = []
    worker.listen = said.append
    worker.held.received(jobs[0])
    for spark in (SparkState.STARTING, SparkState.UNAVAILABLE, SparkState.STARTING, SparkState.READY):
        monkeypatch.setattr(SparkRuntime, "condition", SparkCondition(spark))
        worker._watch_messages()
    assert (said, announcements.announced) == ([True, False, False, True], [(jobs[0], "short")])
    worker._running_attempts.refuse()
    worker._watch_messages()
    assert said[4:] == [False], "also where the order to leave was lost"


@pytest.mark.not_quick
def test_it_takes_nothing_while_too_many_abandoned_plannings_go_on(
    worker_settings: Settings, sqlite_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = submit(sqlite_database, "short", 2)
    announcements, said, release = Announcements(), list[bool](), threading.Event()
    worker = Worker(worker_settings, announcements)
    worker.listen = said.append
    monkeypatch.setattr(SparkRuntime, "condition", SparkCondition(SparkState.READY))
    for number in range(THREADS):
        worker._watch_messages()
        assert said.pop(), number
        attempt = Attempt(Claim(f"job-{number}", "default", RUN, "n", {}, 1, worker.id, 0, 0, 0), 0.0)
        attempt.stop(StopReason.CANCELLED)
        with pytest.raises(AttemptStopped):
            PlanningThreads(worker._running_attempts.abandoned).run(attempt, release.wait)
    worker.run(jobs[0])
    assert announcements.announced == [(jobs[0], "short")]
    worker.held.received(jobs[1])
    worker._watch_messages()
    assert (said, announcements.announced) == ([False], [(job_id, "short") for job_id in jobs])
    assert counts(sqlite_database) == {("short", "QUEUED"): 2}
    release.set()
    wait_for("the plannings to end", lambda: not worker._running_attempts.abandoned.all())
    worker._watch_messages()
    assert said == [False, True]
    worker.run(jobs[0])
    assert counts(sqlite_database) == {("short", "TIMED_OUT"): 2}


def test_a_late_call_does_not_reopen_a_closed_worker(worker_settings: Settings, sqlite_database: Database) -> None:
    worker = Worker(worker_settings, Announcements())
    worker._heartbeat.step()
    worker.close()
    worker._sweeper.step()
    with sqlite_database.read() as session:
        assert workers.list_workers(session, 0) == []
