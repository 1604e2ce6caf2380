"""Heartbeats renew leases, but not those of runners that do not listen any more."""

from __future__ import annotations

import threading

import pytest

from service.store import workers
from service.store.session import Database
from service.store.workers import WorkerFacts
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from workers.attempt import Attempt, AttemptsAtHand, StopReason
from workers.heartbeat import Heartbeat

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


def test_a_lease_is_renewed_while_the_attempt_goes_on(database: Database, clock: ManualClock, attempt: Attempt) -> None:
    at_hand = AttemptsAtHand()
    heartbeat = Heartbeat(database, "w1", at_hand, LEASE_MS)
    with at_hand.holding(attempt):
        for _ in range(30):
            clock.ms += 20_000
            heartbeat.step()
            assert lease_left(database, clock) == LEASE_MS
    assert attempt.reason is None


def test_the_lease_of_a_runner_that_does_not_stop_runs_out(
    database: Database, clock: ManualClock, attempt: Attempt
) -> None:
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


def test_a_late_step_does_not_bring_back_a_worker_that_left(database: Database, clock: ManualClock) -> None:
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
