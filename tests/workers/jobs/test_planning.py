"""Plannings in other threads: they end with their attempt, or are abandoned."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import structlog

from service.store.attempts import Claim
from tests.support.hanging import silent_gateway
from tests.support.processes import wait_for
from workers.jobs.attempt import AbandonedPlannings, Attempt, AttemptStopped, StopReason
from workers.jobs.planning import PlanningThreads, is_in_jvm_call

MOST = 2


def attempt() -> Attempt:
    return Attempt(Claim("job-1", "default", "run", "a job", {}, 1, "w1", 0, 0, 0), float("inf"))


@pytest.fixture
def abandoned() -> AbandonedPlannings:
    return AbandonedPlannings(MOST)


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """Ends the plannings that hang."""
    event = threading.Event()
    yield event
    event.set()


class Runner(threading.Thread):
    """The thread of a runner, and what `PlanningThreads` gave it."""

    def __init__(
        self,
        own: Attempt,
        abandoned: AbandonedPlannings,
        plan: Callable[[], object],
        discard: Callable[[object], object] = lambda _: None,
    ) -> None:
        super().__init__(daemon=True)
        self.outcome: object = None
        self._call: Callable[[], object] = lambda: PlanningThreads(abandoned).run(own, plan, discard)
        self.start()

    def run(self) -> None:
        """See `Thread`."""
        try:
            self.outcome = self._call()
        except Exception as error:  # noqa: BLE001 - what the tests look at
            self.outcome = error

    def stopped(self) -> bool:
        """Whether the runner got AttemptStopped, within ten seconds."""
        self.join(10)
        return isinstance(self.outcome, AttemptStopped)


def test_a_plan_comes_from_another_thread_that_knows_the_job(abandoned: AbandonedPlannings) -> None:
    with structlog.contextvars.bound_contextvars(job_id="job-1"):
        found = PlanningThreads(abandoned).run(
            attempt(), lambda: (threading.current_thread().name, structlog.contextvars.get_contextvars())
        )
    assert found == ("planning", {"job_id": "job-1"})
    assert abandoned.all() == ()


def test_what_planning_raises_is_raised(abandoned: AbandonedPlannings) -> None:
    def fails() -> None:
        raise ValueError("no such column")

    with pytest.raises(ValueError, match="no such column"):
        PlanningThreads(abandoned).run(attempt(), fails)


def test_threads_are_used_again_unless_they_were_abandoned(
    abandoned: AbandonedPlannings, release: threading.Event
) -> None:
    threads = PlanningThreads(abandoned)
    first, second = (threads.run(attempt(), threading.current_thread) for _ in range(2))
    assert first is second
    own = attempt()
    own.stop(StopReason.CANCELLED)
    with pytest.raises(AttemptStopped):
        threads.run(own, lambda: release.wait(60))
    assert threads.run(attempt(), threading.current_thread) is not first
    release.set()
    wait_for("the end of the thread", lambda: not first.is_alive())


def test_a_thread_ends_that_was_idle_for_long(abandoned: AbandonedPlannings) -> None:
    threads = PlanningThreads(abandoned, idle_seconds=0.01)
    found = threads.run(attempt(), threading.current_thread)
    wait_for("the end of the thread", lambda: not found.is_alive())
    assert threads.run(attempt(), threading.current_thread) is not found


def test_planning_that_checks_ends_by_itself(abandoned: AbandonedPlannings) -> None:
    own, begun = attempt(), threading.Event()

    def loops() -> None:
        while True:
            own.check()
            begun.set()

    runner = Runner(own, abandoned, loops)
    assert begun.wait(10)
    own.stop(StopReason.CANCELLED)
    assert runner.stopped()
    assert abandoned.all() == ()


def test_planning_that_does_not_end_is_abandoned_until_it_does(
    abandoned: AbandonedPlannings, release: threading.Event
) -> None:
    own, begun = attempt(), threading.Event()
    discarded: list[object] = []

    def hangs() -> str:
        begun.set()
        release.wait(60)
        return "a plan"

    runner = Runner(own, abandoned, hangs, discarded.append)
    assert begun.wait(10)
    own.stop(StopReason.TIMED_OUT)
    assert runner.stopped()
    (left,) = abandoned.all()
    assert left.attempt is own
    assert not is_in_jvm_call(left.thread)
    assert left.thread.daemon, "the end of the process does not wait for it"
    release.set()
    wait_for("its end", lambda: not abandoned.all())
    assert discarded == ["a plan"]


def test_what_an_abandoned_planning_raises_is_dropped(abandoned: AbandonedPlannings, release: threading.Event) -> None:
    own = attempt()
    own.stop(StopReason.LEASE_LOST)

    def fails_late() -> None:
        release.wait(60)
        raise ValueError("it fails late")

    with pytest.raises(AttemptStopped, match="lease_lost"):
        PlanningThreads(abandoned).run(own, fails_late)
    assert len(abandoned.all()) == 1
    release.set()
    wait_for("its end", lambda: not abandoned.all())


def test_a_plan_that_is_there_when_the_attempt_is_stopped_is_not_lost(abandoned: AbandonedPlannings) -> None:
    own = attempt()

    def plans() -> str:
        own.stop(StopReason.STOP_REQUESTED)
        return "a plan"

    assert PlanningThreads(abandoned).run(own, plans) == "a plan"


def test_so_many_abandoned_plannings_are_too_many(abandoned: AbandonedPlannings, release: threading.Event) -> None:
    for number in range(MOST):
        assert not abandoned.are_too_many, number
        own = attempt()
        own.stop(StopReason.CANCELLED)
        with pytest.raises(AttemptStopped):
            PlanningThreads(abandoned).run(own, lambda: release.wait(60))
    assert abandoned.are_too_many
    release.set()
    wait_for("their end", lambda: not abandoned.are_too_many)


def test_a_thread_that_waits_for_the_jvm_is_known(abandoned: AbandonedPlannings) -> None:
    own = attempt()
    own.stop(StopReason.CANCELLED)
    with silent_gateway() as gateway:
        with pytest.raises(AttemptStopped):
            PlanningThreads(abandoned).run(own, lambda: gateway.jvm.java.lang.System.nanoTime())
        (left,) = abandoned.all()
        assert is_in_jvm_call(left.thread)
    wait_for("its end", lambda: not abandoned.all())
