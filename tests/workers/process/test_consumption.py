"""A worker consumes from all of its queues or from none, also after lost requests: on real Redis servers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.app import trace
from celery.worker import state

from service.broker.dispatch import Dispatcher
from service.config.settings import Settings
from tests.support.processes import wait_for
from tests.support.servers import RedisServer, running_redis
from workers.process.queue_consumer import Consumption, RunJob, worker_config


class Listener:
    """Celery in threads of this process, with all of a worker's settings, and the API's end of the broker."""

    def __init__(self, settings: Settings) -> None:
        self.came: list[str] = []
        self.consumption = Consumption()
        self.dispatcher = Dispatcher(settings)
        self._ready = threading.Event()
        app = Celery("evenkeel", set_as_current=False)
        app.conf.update(worker_config(settings))
        app.register_task(RunJob(SimpleNamespace(run=self.came.append)))
        trace.setup_worker_optimizations(app)
        self._celery = app.WorkController(
            ready_callback=self._begin, pool_cls="threads", without_gossip=True, without_mingle=True
        )
        self._thread = threading.Thread(target=self._celery.start, name="celery")

    @property
    def consumer(self) -> Any:
        """Celery's own."""
        return self._celery.consumer

    def start(self) -> None:
        """Returns when it listens."""
        self._thread.start()
        wait_for("Celery", self._ready.is_set)

    def stop(self) -> None:
        """As a signal would."""
        state.should_stop = 0
        self._thread.join(30)
        state.should_stop = None
        trace.reset_worker_optimizations()
        self.dispatcher.close()
        assert not self._thread.is_alive()

    @contextmanager
    def held_up(self) -> Iterator[None]:
        """Inside, the thread that has the connection does nothing; what it is told to call waits."""
        reached, go_on = threading.Event(), threading.Event()

        def hold_up() -> None:
            reached.set()
            go_on.wait(60)

        self.consumer.call_soon(hold_up)
        assert reached.wait(30)
        try:
            yield
        finally:
            go_on.set()

    def called(self) -> None:
        """Returns when all that waited has been called."""
        done = threading.Event()
        self.consumer.call_soon(done.set)
        assert done.wait(30)

    def hears(self) -> list[str]:
        """The queues that it listens to."""
        return [name for name in ("evenkeel", "evenkeel.long") if self.consumer.task_consumer.consuming_from(name)]

    def send(self, number: int) -> list[str]:
        """One message to each queue; gives their ids."""
        ids = [f"short-{number}", f"long-{number}"]
        for job_id in ids:
            wait_for("the broker", lambda: self.dispatcher.announce([job_id], job_id.partition("-")[0]))  # noqa: B023
        return ids

    def has(self, ids: list[str]) -> Callable[[], bool]:
        return lambda: set(ids) <= set(self.came)

    def _begin(self, consumer: Any) -> None:
        self.consumption.begin(consumer)
        self._ready.set()


@pytest.fixture
def redis_here(tmp_path: Path) -> Iterator[RedisServer]:
    with running_redis(tmp_path) as server:
        yield server


@pytest.fixture
def listener(redis_here: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("EVENKEEL_BROKER_URL", redis_here.url)
    monkeypatch.setenv("EVENKEEL_BROKER_TIMEOUT_SECONDS", "1")
    own = Listener(Settings())
    own.start()
    yield own
    own.stop()


@pytest.mark.not_quick
def test_the_last_word_counts_in_whatever_order_orders_are_carried_out(listener: Listener) -> None:
    for number in range(20):
        with listener.held_up():
            listener.consumption.listen(False)
            listener.consumption.listen(True)
        listener.called()
        ids = listener.send(number)
        wait_for(f"{ids}", listener.has(ids))
    for _ in range(20):
        listener.consumption.listen(False)
        wait_for("silence", lambda: not listener.hears())
        with listener.held_up():
            listener.consumption.listen(True)
            listener.consumption.listen(False)
        listener.called()
        assert listener.hears() == []
        listener.consumption.listen(True)
        wait_for("both queues", lambda: len(listener.hears()) == 2)


@pytest.mark.not_quick
def test_a_connection_that_breaks_under_the_order_loses_no_queue(listener: Listener, redis_here: RedisServer) -> None:
    listener.consumption.listen(False)
    wait_for("silence", lambda: not listener.hears())
    with listener.held_up():
        redis_here.stop()
        listener.consumption.listen(True)
    redis_here.start()

    def hears_both() -> bool:
        # As a worker does, every second.
        listener.consumption.listen(True)
        return len(listener.hears()) == 2

    wait_for("both queues", hears_both)
    ids = listener.send(1)
    wait_for(f"{ids}", listener.has(ids))


@pytest.mark.not_quick
def test_a_new_connection_keeps_silent_where_it_is_to(listener: Listener, redis_here: RedisServer) -> None:
    listener.consumption.listen(False)
    wait_for("silence", lambda: not listener.hears())
    before = listener.consumer.task_consumer
    redis_here.restart()
    wait_for("a new connection", lambda: listener.consumer.task_consumer not in (None, before), 60)
    listener.send(1)
    listener.called()
    assert (listener.hears(), listener.came) == ([], [])
