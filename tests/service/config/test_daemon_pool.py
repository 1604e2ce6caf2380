"""A pool whose threads do not delay the end of the process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from service.config.processes import DaemonPool
from tests.support.processes import wait_for

MOST = 2


@pytest.fixture
def pool() -> Iterator[DaemonPool]:
    own = DaemonPool(MOST, "pool")
    yield own
    own.close()


def test_calls_run_in_a_few_daemon_threads(pool: DaemonPool) -> None:
    seen: list[threading.Thread] = []
    for answer in [pool.submit(lambda: seen.append(threading.current_thread())) for _ in range(20)]:
        answer.result(10)
    assert len(seen) == 20
    assert len(set(seen)) <= MOST
    assert all(thread.daemon for thread in seen)


def test_the_error_of_a_call_is_in_its_future_and_ends_no_thread(pool: DaemonPool) -> None:
    def fails() -> None:
        raise ValueError("no")

    for _ in range(2 * MOST):
        with pytest.raises(ValueError, match="no"):
            pool.submit(fails).result(10)
    pool.submit(lambda: None).result(10)


def test_a_closed_pool_begins_nothing(pool: DaemonPool) -> None:
    release, begun, done = threading.Event(), threading.Semaphore(0), list[int]()

    def waits() -> None:
        begun.release()
        release.wait(30)

    running = [pool.submit(waits) for _ in range(MOST)]
    for _ in running:
        assert begun.acquire(timeout=10)
    waiting = pool.submit(lambda: done.append(1))
    pool.close()
    late = pool.submit(lambda: done.append(2))
    release.set()
    for answer in running:
        answer.result(10)
    for answer in (waiting, late):
        with pytest.raises(CancelledError):
            answer.result(10)
    assert done == []


def fails_to_start(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_cannot_be_started_is_started_later(pool: DaemonPool, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    for _ in range(MOST):
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fails_to_start)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                pool.submit(lambda: done.append("refused"))
    pool.submit(lambda: done.append("taken")).result(10)
    assert done == ["taken"], "what was refused is not run"


def test_existing_threads_run_the_calls_if_no_other_can_be_started(
    pool: DaemonPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    barrier = threading.Barrier(MOST)
    names: set[str] = set()

    def meets() -> None:
        barrier.wait(10)

    pool.submit(lambda: None).result(10)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails_to_start)
        for _ in range(MOST):
            pool.submit(lambda: names.add(threading.current_thread().name)).result(10)
    assert names == {"pool-1"}
    # Then the pool starts the others: all of them meet.
    for answer in [pool.submit(meets) for _ in range(MOST)]:
        answer.result(10)


def test_a_thread_that_waits_keeps_no_result(pool: DaemonPool) -> None:
    class Result:
        pass

    answer = pool.submit(Result)
    result = weakref.ref(answer.result(10))
    del answer
    wait_for("the thread to drop the result", lambda: result() is None)
