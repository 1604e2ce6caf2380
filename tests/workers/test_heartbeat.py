"""Heartbeats renew leases, but not those of runners that do not listen any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy.orm import Session

from service.store import leases, workers
from service.store.jobs import NewJob, insert_job
from service.store.session import Database
from service.store.tables import JobRow
from service.store.workers import WorkerFacts
from workers.attempt import Attempt, AttemptsAtHand, StopReason
from workers.heartbeat import Heartbeat

LEASE_MS = 30_000


class Clock:
    """One for the database, in milliseconds, and for the attempts, in seconds."""

    ms = 1_000_000

    def __call__(self, _session: Session) -> int:
        return self.ms

    def seconds(self) -> float:
        """The same in seconds."""
        return self.ms / 1000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database(database_url: str, clock: Clock) -> Iterator[Database]:
    with closing(Database(database_url, clock)) as database:
        yield database


@pytest.fixture
def attempt(database: Database, clock: Clock) -> Attempt:
    """A job that worker w1 has just claimed."""
    with database.write() as session:
        insert_job(session, NewJob("job-1", "default", "run", "a job", {}, None, 1, 60_000), clock.ms)
        claim = leases.claim(session, "job-1", "w1", clock.ms, LEASE_MS)
    assert claim is not None
    return Attempt(claim, clock.seconds() + 60, clock.seconds)


def lease_left(database: Database, clock: Clock) -> int:
    with database.read() as session:
        return (session.get_one(JobRow, "job-1").lease_expires_at or 0) - clock.ms


def test_a_lease_is_renewed_while_the_attempt_goes_on(database: Database, clock: Clock, attempt: Attempt) -> None:
    at_hand = AttemptsAtHand()
    heartbeat = Heartbeat(database, "w1", at_hand, LEASE_MS)
    with at_hand.holding(attempt):
        for _ in range(30):
            clock.ms += 20_000
            heartbeat.step()
            assert lease_left(database, clock) == LEASE_MS
    assert attempt.reason is None


def test_the_lease_of_a_runner_that_does_not_stop_runs_out(database: Database, clock: Clock, attempt: Attempt) -> None:
    at_hand = AttemptsAtHand()
    heartbeat = Heartbeat(database, "w1", at_hand, LEASE_MS)
    with at_hand.holding(attempt):
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


def test_a_late_step_does_not_bring_back_a_worker_that_left(database: Database, clock: Clock) -> None:
    heartbeat = Heartbeat(database, "w1", AttemptsAtHand(), LEASE_MS)
    beating, left = threading.Event(), threading.Event()

    def facts() -> WorkerFacts:
        beating.set()
        assert left.wait(30)
        return WorkerFacts()

    late = Heartbeat(database, "w2", AttemptsAtHand(), LEASE_MS, facts)
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
