"""Running attempts: the first reason to stop is kept, and there is none after the end."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from service.store.attempts import Claim
from tests.support.processes import wait_for
from workers.jobs.attempt import Attempt, AttemptStopped, RunningAttempts, StopReason

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
    assert attempt.seconds_since_stop() == 0
    attempt.stop(StopReason.CANCELLED)
    now = 15.0
    attempt.stop(StopReason.TIMED_OUT)
    assert attempt.seconds_since_stop() == 5


def test_whoever_waits_for_an_order_to_stop_is_woken() -> None:
    attempt, before, after = Attempt(CLAIM, 0.0), threading.Event(), threading.Event()
    attempt.set_on_stop(before)
    assert not before.is_set()
    attempt.stop(StopReason.CANCELLED)
    attempt.set_on_stop(after)
    assert before.is_set()
    assert after.is_set()


def test_a_settled_attempt_cannot_be_stopped() -> None:
    attempt = Attempt(CLAIM, 0.0)
    attempt.settle()
    assert not attempt.stop(StopReason.LEASE_LOST)
    assert attempt.reason is None


def test_attempts_are_at_hand_while_held() -> None:
    running_attempts, attempt = RunningAttempts(), Attempt(CLAIM, 0.0)
    with running_attempts.holding(attempt):
        assert running_attempts.all() == (attempt,)
        assert not running_attempts.wait_until_empty(0)
    assert running_attempts.wait_until_empty(0)


def test_waiting_ends_with_the_last_attempt() -> None:
    running_attempts, go_on = RunningAttempts(), threading.Event()

    def hold() -> None:
        with running_attempts.holding(Attempt(CLAIM, 0.0)):
            held.set()
            go_on.wait(10)

    held = threading.Event()
    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(10)
    go_on.set()
    assert running_attempts.wait_until_empty(10)
    thread.join(10)


def test_a_claim_made_while_closing_is_stopped_at_once() -> None:
    running_attempts, attempt = RunningAttempts(), Attempt(CLAIM, 0.0)
    running_attempts.close()
    assert running_attempts.closed
    with running_attempts.holding(attempt):
        assert attempt.reason is StopReason.WORKER_STOPPING


def test_waiting_ends_when_the_worker_closes() -> None:
    running_attempts, closed = RunningAttempts(), []
    assert not running_attempts.wait_until_closed(0)
    thread = threading.Thread(target=lambda: closed.append(running_attempts.wait_until_closed(60)))
    thread.start()
    running_attempts.close()
    thread.join(10)
    assert closed == [True]


def test_a_kept_attempt_stays_at_hand_until_it_is_released() -> None:
    running_attempts, attempt = RunningAttempts(), Attempt(CLAIM, 0.0)
    with running_attempts.holding(attempt):
        running_attempts.keep(attempt)
    assert running_attempts.all() == running_attempts.kept() == (attempt,)
    assert not running_attempts.wait_until_empty(0)
    running_attempts.release(attempt)
    assert running_attempts.all() == running_attempts.kept() == ()
    assert running_attempts.wait_until_empty(0)


def test_one_that_is_released_before_its_thread_has_left_is_let_go_with_it() -> None:
    running_attempts, attempt = RunningAttempts(), Attempt(CLAIM, 0.0)
    with running_attempts.holding(attempt):
        running_attempts.keep(attempt)
        running_attempts.release(attempt)
    assert running_attempts.wait_until_empty(0)


def test_a_worker_that_is_to_leave_stops_what_is_kept_and_lets_the_rest_end() -> None:
    running_attempts, kept, held = RunningAttempts(), Attempt(CLAIM, 0.0), Attempt(CLAIM, 0.0)
    with running_attempts.holding(kept):
        running_attempts.keep(kept)
    with running_attempts.holding(held):
        running_attempts.refuse()
        assert held.reason is None
        assert kept.reason is StopReason.WORKER_STOPPING
        running_attempts.keep(held)
        assert held.reason is StopReason.WORKER_STOPPING


def test_only_streams_end_gently_with_their_worker() -> None:
    stream, batch, stopped = Attempt(CLAIM, 0.0), Attempt(CLAIM, 0.0), Attempt(CLAIM, 0.0)
    stream.streams = stopped.streams = True
    assert not stream.ends_gracefully
    stream.stop(StopReason.WORKER_STOPPING)
    batch.stop(StopReason.WORKER_STOPPING)
    stopped.stop(StopReason.STOP_REQUESTED)
    assert [one.ends_gracefully for one in (stream, batch, stopped)] == [True, False, True]
    cancelled = Attempt(CLAIM, 0.0)
    cancelled.streams = True
    cancelled.stop(StopReason.CANCELLED)
    assert not cancelled.ends_gracefully


@pytest.mark.parametrize("how", ["release", "taking", "holding", "refuse", "close"])
def test_who_waits_for_the_end_or_for_the_close_is_woken_by_it(how: str) -> None:
    """Nobody waits until the timeout, here ten minutes, for what has happened."""
    running_attempts, attempt, found = RunningAttempts(), Attempt(CLAIM, 0.0), []
    wait = running_attempts.wait_until_closed if how in {"refuse", "close"} else running_attempts.wait_until_empty
    waiter = threading.Thread(target=lambda: found.append(wait(600)), daemon=True)
    with ExitStack() as inside:
        if how == "release":
            with running_attempts.holding(attempt):
                running_attempts.keep(attempt)
        elif how in {"taking", "holding"}:
            inside.enter_context(running_attempts.taking() if how == "taking" else running_attempts.holding(attempt))
        waiter.start()
        wait_for("the thread to wait", lambda: getattr(running_attempts._changed, "_waiters", None))
    if how == "release":
        running_attempts.release(attempt)
    elif how in {"refuse", "close"}:
        getattr(running_attempts, how)()
    waiter.join(60)
    assert found == [True]
