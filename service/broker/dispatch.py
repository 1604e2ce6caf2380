"""Rings workers: sends the id of each job to a queue, by the task's name, since the service imports no task.

Tells workers of stored jobs, beside the requests that stored them.

Nobody who submits waits for the broker. What comes while messages are being sent is sent together afterwards, so that
a burst of jobs costs a few transactions, and a single job is announced at once.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue

import redis
import structlog
from celery import Celery
from kombu.exceptions import KombuError

from service.broker.configuration import celery_config, queue_name
from service.broker.transports import RUN_JOB
from service.config.settings import Settings
from service.contract.enums import Queue
from service.store.jobs import settle_messages
from service.store.session import Database

_log = structlog.get_logger(__name__)

_REST_SECONDS = 2.0
"""For so long after a failure nothing is sent: each submission would wait for the same silent broker."""


def build_celery(settings: Settings) -> Celery:
    """A Celery application that can send; it knows no tasks."""
    app = Celery("evenkeel", set_as_current=False)
    options = celery_config(settings)
    # A submission must not wait for a broker that is away: the outbox row stays and a worker's sweeper rings again.
    options["broker_transport_options"] = {
        **options["broker_transport_options"],
        "max_retries": 1,
        "interval_start": 0.0,
        "interval_step": 0.0,
        "connect_retries_timeout": settings.broker.timeout_seconds,
    }
    app.conf.update(options)
    return app


class Dispatcher:
    """Sends messages on connections of its own. Safe to share between threads."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._celery = build_celery(settings)
        self._clock = clock
        self._rests_until = clock()

    def ring(self, job_ids: Iterable[str], queue: str) -> tuple[str, ...]:
        """Announces jobs to the workers of a `Queue`; gives those whose message the broker took.

        Never raises for a broker that is away, and gives up on the rest then.
        """
        sent: list[str] = []
        for job_id in job_ids:
            if self._clock() < self._rests_until:
                break
            try:
                self._celery.send_task(RUN_JOB, args=[job_id], queue=queue_name(queue), retry=False, ignore_result=True)
            except (OSError, KombuError, redis.RedisError) as error:
                self._rests_until = self._clock() + _REST_SECONDS
                _log.warning("broker_unreachable", job_id=job_id, error=type(error).__name__)
            else:
                sent.append(job_id)
        return tuple(sent)

    def close(self) -> None:
        """Closes the connections."""
        self._celery.close()


_AT_ONCE = 200
_CLOSING_SECONDS = 5.0


class Doorbell:
    """A thread that rings. What it does not get to, since the broker is away or the process ends, keeps its outbox row:
    a worker's sweeper rings for it. Safe to share between threads."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._stored: SimpleQueue[tuple[str, Queue] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._ring_on, name="doorbell", daemon=True)
        self._thread.start()

    def ring(self, job_id: str, queue: Queue) -> None:
        """Has the workers of `queue` told of a stored job, soon. Never waits."""
        self._stored.put((job_id, queue))

    def close(self) -> None:
        """Rings for what was stored until now, for a few seconds at the most, and closes the broker's connections."""
        self._stored.put(None)
        self._thread.join(_CLOSING_SECONDS)
        self._dispatcher.close()

    def _ring_on(self) -> None:
        while (first := self._stored.get()) is not None:
            jobs, goes_on = self._with_those_behind(first)
            try:
                self._announce(jobs)
            except Exception as error:  # noqa: BLE001 - told below
                # Whatever it was, those that come later may be told of.
                _log.warning("message_left_unsettled", jobs=len(jobs), error=type(error).__name__)
            if not goes_on:
                return

    def _with_those_behind(self, first: tuple[str, Queue]) -> tuple[Sequence[tuple[str, Queue]], bool]:
        """What waits now, and whether there may be more afterwards."""
        jobs = [first]
        try:
            while len(jobs) < _AT_ONCE:
                following = self._stored.get_nowait()
                if following is None:
                    return jobs, False
                jobs.append(following)
        except Empty:
            pass
        return jobs, True

    def _announce(self, jobs: Sequence[tuple[str, Queue]]) -> None:
        by_queue: dict[Queue, list[str]] = defaultdict(list)
        for job_id, queue in jobs:
            by_queue[queue].append(job_id)
        sent = [job_id for queue, ids in by_queue.items() for job_id in self._dispatcher.ring(ids, queue)]
        if sent:
            with self._database.write() as session:
                settle_messages(session, sent)
