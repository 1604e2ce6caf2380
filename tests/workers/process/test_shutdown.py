"""After a request a worker gives its jobs all their time, after an order their drain time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.store.attempts import Claim
from tests.support.drivers import Hung
from tests.support.processes import start_python, wait_for
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.jobs.outcome import HandBack
from workers.process.shutdown import Shutdown


class Bench:
    """What a departure works on, and what it did."""

    def __init__(self, drain_seconds: float) -> None:
        self.running_attempts = RunningAttempts()
        self.done: list[str] = []
        self.handed_back: list[HandBack] = []
        self.fails = False
        self.departure = Shutdown(
            "w1",
            self.running_attempts,
            drain_seconds,
            hand_back=self._hand_back,
            kill_driver=lambda: self.done.append("driver killed"),
            stop_taking=self._stop_taking,
            end_process=self._end_process,
        )
        self.departure.start()

    def _hand_back(self, _: Claim, given: HandBack, seconds: float) -> None:
        assert 0 < seconds < 10, "the wait is limited"
        self.handed_back.append(given)

    def _stop_taking(self) -> None:
        self.done.append("no more messages")
        if self.fails:
            raise ConnectionError("no broker")

    def _end_process(self) -> None:
        # What Celery does with a signal: it orders the worker to leave, and closes it.
        self.done.append("ended")
        self.departure.order()
        self.departure.finish()

    def has(self, what: str) -> Callable[[], bool]:
        return lambda: what in self.done


@pytest.fixture
def bench() -> Iterator[Bench]:
    own = Bench(drain_seconds=0.0)
    yield own
    own.departure.order()
    own.departure.finish()


def attempt() -> Attempt:
    return Attempt(Claim("job-1", "default", "run", "a job", {}, 1, "w1", 0, 0, 60_000), 60.0)


def test_after_a_request_it_ends_when_its_jobs_have(bench: Bench) -> None:
    with bench.running_attempts.holding(job := attempt()):
        bench.departure.request()
        bench.departure.request()
        wait_for("the messages to stop", bench.has("no more messages"))
        assert bench.running_attempts.closed
        assert bench.departure.is_requested
        assert job.reason is None
        assert "ended" not in bench.done
    wait_for("the end", bench.has("ended"))
    assert bench.done == ["no more messages", "ended"]
    assert job.reason is None


def test_a_job_that_is_being_claimed_runs(bench: Bench) -> None:
    with bench.running_attempts.taking():
        bench.departure.request()
        wait_for("the messages to stop", bench.has("no more messages"))
        with bench.running_attempts.holding(late := attempt()):
            assert late.reason is None
        assert "ended" not in bench.done
    wait_for("the end", bench.has("ended"))


def test_an_order_after_a_request_makes_it_hand_back(bench: Bench) -> None:
    with bench.running_attempts.holding(job := attempt()):
        bench.departure.request()
        wait_for("the messages to stop", bench.has("no more messages"))
        bench.departure.order()
        wait_for("the order to stop", lambda: job.reason)
        assert job.reason is StopReason.WORKER_STOPPING
    bench.departure.finish()
    assert "ended" not in bench.done, "the signal has ended it"


@pytest.mark.not_quick
def test_a_runner_that_does_not_end_is_not_waited_for(bench: Bench) -> None:
    with bench.running_attempts.holding(attempt()):
        bench.departure.order()
        wait_for("the driver's end", bench.has("driver killed"), 20)
        assert [given.error.code for given in bench.handed_back] == ["handed_back"]
        bench.departure.finish()


@pytest.mark.not_quick
def test_a_driver_that_hangs_keeps_no_job_from_being_handed_back(bench: Bench) -> None:
    with bench.running_attempts.holding(job := attempt()):
        job.driver = Hung()  # type: ignore[assignment]
        bench.departure.order()
        wait_for("the driver's end", bench.has("driver killed"), 20)
        assert [given.error.code for given in bench.handed_back] == ["handed_back"]
        bench.departure.finish()


HANGS = """
import threading
from workers.process import shutdown
shutdown._LAST_SECONDS = 0.1
threading.Thread(target=threading.Event().wait).start()
shutdown.force_exit("w1")
"""


@pytest.mark.not_quick
def test_a_process_ends_although_a_thread_of_it_does_not(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start_python(["-c", HANGS], log=log, cwd=tmp_path)
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    assert "worker_exit_forced" in log.read_text()


def test_an_unavailable_broker_delays_nothing(bench: Bench) -> None:
    bench.fails = True
    bench.departure.request()
    wait_for("the end", bench.has("ended"))
