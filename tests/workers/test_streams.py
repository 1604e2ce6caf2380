"""Streams without a task of their own: looked at in turn, each until there is a verdict, whatever the others do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from service.store.leases import Claim
from service.store.stream_state import StoppedBecause
from tests.support.processes import wait_for
from workers.attempt import Attempt, AttemptsAtHand, StopReason
from workers.failures import Rest, Verdict
from workers.stream_attempt import StreamAttempt
from workers.streams import StreamSupervisor

RESTS = Rest(StoppedBecause.STOPPED)


class Scripted:
    """A stream that does at each look what it is told to; the last thing over and over."""

    def __init__(self, number: int, *looks: Callable[[], Verdict | None]) -> None:
        claim = Claim(f"job-{number}", "default", "run", "a job", {}, 1, "w1", 0, 0, 0)
        self.attempt = Attempt(claim, float("inf"))
        self.looks = list(looks)
        self.looked = 0
        self.closed = 0

    def step(self) -> Verdict | None:
        """See `StreamAttempt`."""
        self.looked += 1
        return self.looks[min(self.looked, len(self.looks)) - 1]()

    def close(self) -> None:
        """See `StreamAttempt`."""
        self.closed += 1


def goes_on() -> None:
    """No verdict yet."""


def rests() -> Verdict:
    return RESTS


def fails() -> Verdict:
    raise OperationalError("UPDATE", None, ValueError("away"))


class Watched:
    """A supervisor of two streams at most, and what it published."""

    def __init__(self) -> None:
        self.at_hand = AttemptsAtHand()
        self.ended: list[tuple[str, Verdict]] = []
        self.supervisor = StreamSupervisor(self.at_hand, self._end, 2)

    def add(self, stream: Scripted) -> None:
        """Hands a stream over, as a runner's thread does."""
        with self.at_hand.holding(stream.attempt):
            self.supervisor.watch(_as_stream(stream))

    def step_until(self, probe: Callable[[], Any]) -> None:
        """Looks at the streams until something holds."""

        def look() -> Any:
            self.supervisor.step()
            return probe()

        wait_for("the supervisor", look, 30)

    def _end(self, stream: StreamAttempt, verdict: Verdict) -> None:
        self.ended.append((stream.attempt.claim.job_id, verdict))


def _as_stream(stream: Scripted) -> StreamAttempt:
    return stream  # type: ignore[return-value]


@pytest.fixture
def watched() -> Iterator[Watched]:
    own = Watched()
    yield own
    own.supervisor.close()


def test_a_stream_is_watched_until_its_verdict_and_let_go(watched: Watched) -> None:
    stream = Scripted(1, goes_on, goes_on, rests)
    watched.add(stream)
    assert watched.at_hand.all() == (stream.attempt,), "its thread has left, and it is still at hand"
    watched.step_until(lambda: not watched.at_hand.all())
    assert watched.ended == [("job-1", RESTS)]
    assert (stream.looked, stream.closed) == (3, 1)
    watched.supervisor.step()
    assert stream.looked == 3


def test_a_database_that_is_away_ends_no_stream(watched: Watched) -> None:
    stream = Scripted(1, fails, fails, goes_on, rests)
    watched.add(stream)
    watched.step_until(lambda: not watched.at_hand.all())
    assert (watched.ended, stream.looked) == ([("job-1", RESTS)], 4)


def test_one_that_keeps_its_thread_waiting_does_not_hold_up_the_others(watched: Watched) -> None:
    go_on = threading.Event()

    def hangs() -> None:
        assert go_on.wait(30)

    slow, quick = Scripted(1, hangs, rests), Scripted(2, goes_on, rests)
    watched.add(slow)
    watched.add(quick)
    watched.step_until(lambda: watched.ended)
    assert watched.ended == [("job-2", RESTS)]
    assert slow.looked == 1, "nobody else looks at it meanwhile"
    go_on.set()
    watched.step_until(lambda: len(watched.ended) == 2)


def test_a_worker_takes_so_many_streams_and_no_more(watched: Watched) -> None:
    streams = [Scripted(1, goes_on), Scripted(2, goes_on, rests)]
    for stream in streams:
        assert not watched.supervisor.is_full
        watched.add(stream)
    assert watched.supervisor.is_full
    watched.step_until(lambda: watched.ended)
    wait_for("its place", lambda: not watched.supervisor.is_full)


def test_a_stream_that_starts_on_a_worker_that_leaves_is_told_at_once(watched: Watched) -> None:
    early, late = Scripted(1, goes_on), Scripted(2, goes_on)
    watched.add(early)
    watched.at_hand.refuse()
    assert early.attempt.reason is StopReason.WORKER_STOPPING
    watched.add(late)
    assert late.attempt.reason is StopReason.WORKER_STOPPING
