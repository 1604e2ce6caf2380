"""How a worker consumes messages: Celery's settings, the task, and how to stop and resume the consumption.

The only task announces a job. `HeldMessages` contains the messages that wait for a free thread, so that their jobs can
be announced again when the worker stops. `Consumption` stops the flow of messages without stopping the worker; Celery
itself does that only by remote control.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

import structlog
from celery import Task
from kombu import Exchange, Queue

from service.broker.configuration import celery_config, is_embedded, queue_name
from service.broker.transports import RUN_JOB
from service.config.settings import Settings

_log = structlog.get_logger(__name__)


def worker_config(settings: Settings) -> dict[str, Any]:
    """Returns all Celery settings of a worker process."""
    names = [queue_name(queue) for queue in settings.worker_queues]
    return {
        **celery_config(settings),
        "task_queues": [Queue(name, Exchange(name), routing_key=name) for name in names],
        "broker_connection_retry_on_startup": True,
        # No limit: without the broker, the worker still finds jobs in the database.
        "broker_connection_max_retries": None,
        # With the folder broker, a worker prefetches as many messages as it has threads. If other workers could run
        # their jobs sooner, the sweeper announces the jobs again. With Redis, a worker prefetches none.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": not is_embedded(settings),
        "worker_enable_prefetch_count_reduction": False,
        # Affects no task, since all are acknowledged early; avoids a warning whenever the broker was unavailable.
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_concurrency": settings.worker.threads,
        "worker_pool": "threads",
        "worker_send_task_events": False,
        "worker_enable_remote_control": False,
    }


class Runner(Protocol):
    """Runs jobs."""

    def run(self, job_id: str) -> None: ...


class RunJob(Task):  # type: ignore[misc]
    """Runs the job of the given id, unless another worker has it. The message contains nothing but the id."""

    name = RUN_JOB
    ignore_result = True
    # Acknowledged before it runs: the jobs of a killed worker are recovered from the database, not from the broker.
    acks_late = False

    def __init__(self, worker: Runner) -> None:
        self._worker = worker

    def run(self, job_id: str, *_: object, **__: object) -> None:
        """Runs the job. Ignores arguments that a later version may add: the worker does not claim a job that it cannot
        run.

        Raises only errors of the database: Celery logs them, and the sweeper recovers the job.
        """
        self._worker.run(job_id)


class HeldMessages:
    """The ids of jobs whose message was received and that no thread has begun. Safe to share between threads.

    Celery acknowledges messages early, and drops those that wait in its pool when it stops: they would be lost.
    """

    def __init__(self) -> None:
        self._job_ids: dict[str, None] = {}
        self._lock = threading.Lock()

    def received(self, job_id: str) -> None:
        """Adds a job whose message was received. A second message for the same job changes nothing."""
        with self._lock:
            self._job_ids[job_id] = None

    def begun(self, job_id: str) -> None:
        """Removes a job that a thread has begun."""
        with self._lock:
            self._job_ids.pop(job_id, None)

    def take_all(self) -> tuple[str, ...]:
        """Removes and returns all ids, oldest first."""
        with self._lock:
            taken = tuple(self._job_ids)
            self._job_ids.clear()
        return taken


class Consumer(Protocol):
    """The part of Celery's consumer that is used here."""

    app: Any
    task_consumer: Any
    """The consumer on the current connection; None before the first connection and after the last."""

    def call_soon(self, callback: Any, *arguments: object) -> object:
        """Calls `callback` in the thread of the connection, in no fixed order; not at all if the connection breaks."""

    def cancel_task_queue(self, queue: str) -> None:
        """Stops consuming from the queue, also after a reconnect."""

    def add_task_queue(self, queue: str) -> None:
        """Starts consuming from the queue."""


class Consumption:
    """Switches between consuming from all queues and from none. Safe to share between threads."""

    def __init__(self) -> None:
        self._consumer: Consumer | None = None
        self._queues: tuple[str, ...] = ()
        self._wanted = True

    def begin(self, consumer: Consumer) -> None:
        """Called when Celery has started to consume, with its consumer."""
        self._queues = tuple(consumer.app.amqp.queues.consume_from)
        self._consumer = consumer
        self._align_soon(consumer)

    def listen(self, wanted: bool) -> None:
        """Starts or stops consuming, shortly after the call. The worker announces again what it receives until then.

        To be called repeatedly, since Celery may lose the request while it loses its connection.
        """
        self._wanted = wanted
        if self._consumer is not None:
            self._align_soon(self._consumer)

    def _align_soon(self, consumer: Consumer) -> None:
        if not self._is_aligned(consumer):
            # `_align` reads `_wanted` when it runs, since the calls may run in another order.
            consumer.call_soon(self._align, consumer)

    def _is_aligned(self, consumer: Consumer) -> bool:
        wanted = set(self._queues) if self._wanted else set()
        # The queues of the next connection; those of the current one are compared below.
        chosen = set(consumer.app.amqp.queues.consume_from)
        return wanted == chosen and (
            consumer.task_consumer is None or wanted == _consumed_queues(consumer, self._queues)
        )

    def _align(self, consumer: Consumer) -> None:
        if self._is_aligned(consumer):
            return
        for queue in self._queues:
            try:
                if self._wanted:
                    _add(consumer, queue)
                else:
                    _cancel(consumer, queue)
            except Exception as error:  # noqa: BLE001 - Celery would drop other calls, or stop
                _log.warning("consumption_change_deferred", queue=queue, error=type(error).__name__)


def _consumed_queues(consumer: Consumer, queues: tuple[str, ...]) -> set[str]:
    return {queue for queue in queues if consumer.task_consumer.consuming_from(queue)}


def _add(consumer: Consumer, queue: str) -> None:
    queues = consumer.app.amqp.queues
    # First, so that it also holds for the next connection.
    queues.select_add(queues[queue])
    if consumer.task_consumer is not None and not consumer.task_consumer.consuming_from(queue):
        consumer.add_task_queue(queue)


def _cancel(consumer: Consumer, queue: str) -> None:
    if consumer.task_consumer is None:
        consumer.app.amqp.queues.deselect(queue)
    else:
        consumer.cancel_task_queue(queue)
