"""Attempts at hand: the first reason to stop stays, and none comes after the end."""

from __future__ import annotations

import threading

import pytest

from service.store.leases import Claim
from workers.attempt import Attempt, AttemptsAtHand, AttemptStopped, StopReason

CLAIM = Claim(
    job_id="job-1",
    tenant="default",
    kind="run",
    name="a job",
    spec={},
    fence=3,
    worker="w1",
    claimed_at=2_000,
    started_at=1_000,
    timeout_ms=60_000,
)


def test_the_tag_names_the_attempt() -> None:
    assert Attempt(CLAIM, 0.0).tag == "evenkeel-job-1-3"


def test_the_first_reason_stays() -> None:
    attempt = Attempt(CLAIM, 0.0)
    attempt.check()
    assert attempt.stop(StopReason.CANCELLED)
    assert not attempt.stop(StopReason.TIMED_OUT)
    assert attempt.reason is StopReason.CANCELLED
    with pytest.raises(AttemptStopped):
        attempt.check()


def test_an_order_to_stop_has_an_age() -> None:
    now = 10.0
    attempt = Attempt(CLAIM, 0.0, lambda: now)
    assert attempt.ignored_for() == 0
    attempt.stop(StopReason.CANCELLED)
    now = 15.0
    attempt.stop(StopReason.TIMED_OUT)
    assert attempt.ignored_for() == 5


def test_a_settled_attempt_cannot_be_stopped() -> None:
    attempt = Attempt(CLAIM, 0.0)
    attempt.settle()
    assert not attempt.stop(StopReason.LEASE_LOST)
    assert attempt.reason is None


def test_attempts_are_at_hand_while_held() -> None:
    at_hand, attempt = AttemptsAtHand(), Attempt(CLAIM, 0.0)
    with at_hand.holding(attempt):
        assert at_hand.all() == (attempt,)
        assert not at_hand.wait_until_empty(0)
    assert at_hand.wait_until_empty(0)


def test_waiting_ends_with_the_last_attempt() -> None:
    at_hand, go_on = AttemptsAtHand(), threading.Event()

    def hold() -> None:
        with at_hand.holding(Attempt(CLAIM, 0.0)):
            held.set()
            go_on.wait(10)

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    go_on.set()
    assert at_hand.wait_until_empty(10)
    thread.join(10)


def test_a_claim_made_while_closing_is_stopped_at_once() -> None:
    at_hand, attempt = AttemptsAtHand(), Attempt(CLAIM, 0.0)
    at_hand.close()
    assert at_hand.closed
    with at_hand.holding(attempt):
        assert attempt.reason is StopReason.WORKER_STOPPING


def test_waiting_ends_when_the_worker_closes() -> None:
    at_hand, closed = AttemptsAtHand(), []
    assert not at_hand.wait_until_closed(0)
    thread = threading.Thread(target=lambda: closed.append(at_hand.wait_until_closed(60)))
    thread.start()
    at_hand.close()
    thread.join(10)
    assert closed == [True]
