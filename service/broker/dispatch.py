"""Sends the ids of stored jobs to the workers' queues, outside the requests that store them.

A task is sent by its name, since the service imports no task. A client that submits a job does not wait for the broker.
A single job is announced immediately. Jobs that are stored while messages are being sent are announced together
afterwards, so that many jobs need only a few transactions.
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
from service.store.events import delete_messages
from service.store.session import Database

_PAUSE_SECONDS = 2.0
"""How long nothing is sent after a failure: otherwise each job would wait for the same unavailable broker."""
_MAX_JOBS_TOGETHER = 200
_CLOSE_TIMEOUT_SECONDS = 5.0

_log = structlog.get_logger(__name__)


def build_celery(settings: Settings) -> Celery:
    """Returns a Celery application that can send messages. It has no tasks."""
    app = Celery("evenkeel", set_as_current=False)
    options = celery_config(settings)
    # Few retries: if the broker is unavailable, the message stays in the outbox, and a worker's sweeper announces the
    # job.
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
    """Sends messages on its own connections. Safe to share between threads."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._celery = build_celery(settings)
        self._clock = clock
        self._paused_until = clock()

    def announce(self, job_ids: Iterable[str], queue: str) -> tuple[str, ...]:
        """Announces jobs to the workers of a `Queue`. Returns those whose message the broker accepted.

        If the broker is unavailable, sends no further messages and does not raise.
        """
        sent: list[str] = []
        for job_id in job_ids:
            if self._clock() < self._paused_until:
                break
            try:
                self._celery.send_task(RUN_JOB, args=[job_id], queue=queue_name(queue), retry=False, ignore_result=True)
            except (OSError, KombuError, redis.RedisError) as error:
                self._paused_until = self._clock() + _PAUSE_SECONDS
                _log.warning("broker_unreachable", job_id=job_id, error=type(error).__name__)
            else:
                sent.append(job_id)
        return tuple(sent)

    def close(self) -> None:
        """Closes the connections."""
        self._celery.close()


class JobAnnouncer:
    """Announces stored jobs in its own thread. Safe to share between threads.

    If the broker is unavailable or the process ends, the message stays in the outbox, and a worker's sweeper announces
    the job.
    """

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._stored: SimpleQueue[tuple[str, Queue] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="job-announcer", daemon=True)
        self._thread.start()

    def announce(self, job_id: str, queue: Queue) -> None:
        """Announces a stored job to the workers of `queue`, shortly after the call. Returns immediately."""
        self._stored.put((job_id, queue))

    def close(self) -> None:
        """Announces the remaining jobs, for a few seconds at most, and closes the connections to the broker."""
        self._stored.put(None)
        self._thread.join(_CLOSE_TIMEOUT_SECONDS)
        self._dispatcher.close()

    def _run(self) -> None:
        while (first := self._stored.get()) is not None:
            jobs, is_open = self._with_following(first)
            try:
                self._send(jobs)
            except Exception as error:  # noqa: BLE001 - logged; later jobs must still be announced
                _log.warning("announcement_failed", jobs=len(jobs), error=type(error).__name__)
            if not is_open:
                return

    def _with_following(self, first: tuple[str, Queue]) -> tuple[Sequence[tuple[str, Queue]], bool]:
        """Returns `first` and the jobs that were added after it, and whether more may follow."""
        jobs = [first]
        try:
            while len(jobs) < _MAX_JOBS_TOGETHER:
                following = self._stored.get_nowait()
                if following is None:
                    return jobs, False
                jobs.append(following)
        except Empty:
            pass
        return jobs, True

    def _send(self, jobs: Sequence[tuple[str, Queue]]) -> None:
        by_queue: dict[Queue, list[str]] = defaultdict(list)
        for job_id, queue in jobs:
            by_queue[queue].append(job_id)
        sent = [job_id for queue, ids in by_queue.items() for job_id in self._dispatcher.announce(ids, queue)]
        if sent:
            with self._database.write() as session:
                delete_messages(session, sent)
