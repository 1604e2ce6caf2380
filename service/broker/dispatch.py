"""Sends the ids of stored jobs to the workers' queues, outside the requests that store them.

A task is sent by its name, since the service imports no task. A client that submits a job does not wait for the broker.
A single job is announced immediately. Jobs that are stored while messages are being sent are announced together
afterwards. The messages of announced jobs are deleted together too, so that many jobs need only a few transactions.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

import redis
import structlog
from celery import Celery
from kombu.exceptions import ChannelError, KombuError
from kombu.utils.uuid import uuid

from service.broker.configuration import celery_config, queue_name
from service.broker.transports import RUN_JOB
from service.config.settings import Settings
from service.contract.enums import Queue
from service.store.events import delete_messages
from service.store.session import Database

_PAUSE_SECONDS = 2.0
"""How long nothing is sent after a failure: otherwise each job would wait for the same unavailable broker."""
_MAX_JOBS_TOGETHER = 200
_DELETE_AFTER_SECONDS = 0.25
"""How long messages that were sent stay in the outbox: one transaction deletes those of many jobs. Sweepers send only
messages that are older than that.
"""
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
        self._declared: set[str] = set()

    def announce(self, job_ids: Iterable[str], queue: str) -> tuple[str, ...]:
        """Announces jobs to the workers of a `Queue`. Returns those whose message the broker accepted.

        If the broker is unavailable, sends no further messages and does not raise.
        """
        sent: list[str] = []
        if self._clock() < self._paused_until:
            return ()
        job_id = ""
        try:
            with self._celery.producer_or_acquire() as producer:
                for job_id in job_ids:
                    self._send(producer, job_id, queue_name(queue))
                    sent.append(job_id)
        except (OSError, KombuError, ChannelError, redis.RedisError) as error:
            self._paused_until = self._clock() + _PAUSE_SECONDS
            _log.warning("broker_unreachable", job_id=job_id, error=type(error).__name__)
        return tuple(sent)

    def _send(self, producer: Any, job_id: str, queue: str) -> None:
        """Sends the message of a job: what `Celery.send_task` does, without its search for options, which costs more
        than the message.
        """
        amqp = self._celery.amqp
        message = amqp.as_task_v2(
            uuid(), RUN_JOB, args=[job_id], argsrepr=repr([job_id]), kwargsrepr="{}", ignore_result=True
        )
        # To declare a queue costs as much as to send. Workers declare the queues that they listen to.
        declared: list[Any] | None = [] if queue in self._declared else None
        amqp.send_task_message(producer, RUN_JOB, message, queue=queue, retry=False, declare=declared)
        self._declared.add(queue)

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
        self._sent: list[str] = []
        """Jobs that the broker has accepted, whose messages are still stored."""
        self._due = 0.0
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
        is_open = True
        while is_open:
            jobs, is_open = self._next()
            try:
                self._announce(jobs)
                if self._sent and (not is_open or len(self._sent) >= _MAX_JOBS_TOGETHER or self._remaining() <= 0):
                    self._delete_messages()
            except Exception as error:  # noqa: BLE001 - logged; later jobs must still be announced
                _log.warning("announcement_failed", jobs=len(jobs), error=type(error).__name__)

    def _next(self) -> tuple[Sequence[tuple[str, Queue]], bool]:
        """Waits for stored jobs, and returns them and whether more may follow. Returns no job when it is time to delete
        messages.
        """
        jobs: list[tuple[str, Queue]] = []
        try:
            following = self._stored.get(timeout=max(self._remaining(), 0) if self._sent else None)
            while following is not None:
                jobs.append(following)
                if len(jobs) >= _MAX_JOBS_TOGETHER:
                    return jobs, True
                following = self._stored.get_nowait()
        except Empty:
            return jobs, True
        return jobs, False

    def _remaining(self) -> float:
        """Returns the seconds until the messages of the announced jobs are deleted."""
        return self._due - time.monotonic()

    def _announce(self, jobs: Sequence[tuple[str, Queue]]) -> None:
        by_queue: dict[Queue, list[str]] = defaultdict(list)
        for job_id, queue in jobs:
            by_queue[queue].append(job_id)
        for queue, ids in by_queue.items():
            # A job that is announced again has another message.
            self._sent = [job_id for job_id in self._sent if job_id not in ids]
            sent = self._dispatcher.announce(ids, queue)
            if sent and not self._sent:
                self._due = time.monotonic() + _DELETE_AFTER_SECONDS
            self._sent += sent

    def _delete_messages(self) -> None:
        sent, self._sent = self._sent, []
        with self._database.write() as session:
            delete_messages(session, sent)
