"""How a worker listens: Celery's settings beside those that it shares with the API.

The one message that workers listen to: there is a job.

Messages that wait in this process for a free thread, so that they can be passed on when it is to end.

Ends the flow of messages into this worker without ending the worker, which Celery does by remote control alone.
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


def worker_config(settings: Settings) -> dict[str, Any]:
    """All Celery settings of a worker process."""
    names = [queue_name(queue) for queue in settings.worker_queues]
    return {
        **celery_config(settings),
        "task_queues": [Queue(name, Exchange(name), routing_key=name) for name in names],
        "broker_connection_retry_on_startup": True,
        # For ever: the database is there, and so are jobs.
        "broker_connection_max_retries": None,
        # From folders, a worker takes as many messages beside those it runs as it has threads, and they wait here.
        # Where other workers could have them by now, the sweeper announces their jobs again. From Redis it takes none
        # to wait.
        "worker_prefetch_multiplier": 1,
        "worker_disable_prefetch": not is_embedded(settings),
        "worker_enable_prefetch_count_reduction": False,
        # Touches no task here, since all are acknowledged early, and saves a warning each time the broker was away.
        "worker_cancel_long_running_tasks_on_connection_loss": True,
        "worker_concurrency": settings.worker.concurrency,
        "worker_pool": "threads",
        "worker_send_task_events": False,
        "worker_enable_remote_control": False,
    }


class Runner(Protocol):
    """Brings jobs to their end."""

    def run(self, job_id: str) -> None: ...


class RunJob(Task):  # type: ignore[misc]
    """Brings the job of the given id to an end, unless another worker has it. The message holds nothing else."""

    name = RUN_JOB
    ignore_result = True
    # Acknowledged before it runs: what a killed worker leaves behind is found in the database, not in the broker.
    acks_late = False

    def __init__(self, worker: Runner) -> None:
        self._worker = worker

    def run(self, job_id: str, *_: object, **__: object) -> None:
        """What the next version may add to the message is ignored: a job that this one cannot run, it does not claim.

        Never raises for what a job does; what the database does is logged by Celery and made good by the sweeper."""
        self._worker.run(job_id)


class HeldMessages:
    """Ids of jobs whose message came and which no thread has begun. Safe to share between threads.

    Celery acknowledges early and drops what waits in its pool when it stops: these are what would be lost.
    """

    def __init__(self) -> None:
        self._job_ids: dict[str, None] = {}
        self._lock = threading.Lock()

    def received(self, job_id: str) -> None:
        """A message came; once more for the same job makes no difference."""
        with self._lock:
            self._job_ids[job_id] = None

    def begun(self, job_id: str) -> None:
        """A thread has come to the job."""
        with self._lock:
            self._job_ids.pop(job_id, None)

    def take_all(self) -> tuple[str, ...]:
        """Those that wait, oldest first; they are the caller's now."""
        with self._lock:
            taken = tuple(self._job_ids)
            self._job_ids.clear()
        return taken


_log = structlog.get_logger(__name__)


class Consumer(Protocol):
    """What is used of Celery's consumer."""

    app: Any
    task_consumer: Any
    """What listens on the connection of this moment; None before the first and after the last."""

    def call_soon(self, callback: Any, *arguments: object) -> object:
        """Calls in the thread that has the connection; in no order, and not at all where the connection breaks."""

    def cancel_task_queue(self, queue: str) -> None:
        """Listens to the queue no more, not after a new connection either."""

    def add_task_queue(self, queue: str) -> None:
        """Listens to the queue."""


class Consumption:
    """Whether this process listens to its queues: to all of them, or to none. Safe to share between threads."""

    def __init__(self) -> None:
        self._consumer: Consumer | None = None
        self._queues: tuple[str, ...] = ()
        self._wanted = True

    def begin(self, consumer: Consumer) -> None:
        """Celery listens, with this consumer."""
        self._queues = tuple(consumer.app.amqp.queues.consume_from)
        self._consumer = consumer
        self._align_soon(consumer)

    def listen(self, wanted: bool) -> None:
        """Listens, or does not, from a moment later on; what comes until then, the worker passes on.

        To be said again every now and then: Celery may lose what it is told while it loses its connection.
        """
        self._wanted = wanted
        if self._consumer is not None:
            self._align_soon(self._consumer)

    def _align_soon(self, consumer: Consumer) -> None:
        if not self._is_aligned(consumer):
            # One that looks at what is wanted when it is called: an earlier one may be called after it.
            consumer.call_soon(self._align, consumer)

    def _is_aligned(self, consumer: Consumer) -> bool:
        wanted = set(self._queues) if self._wanted else set()
        # What the next connection will listen to, and what this one does.
        chosen = set(consumer.app.amqp.queues.consume_from)
        return wanted == chosen and (consumer.task_consumer is None or wanted == _heard(consumer, self._queues))

    def _align(self, consumer: Consumer) -> None:
        if self._is_aligned(consumer):
            return
        for queue in self._queues:
            try:
                if self._wanted:
                    _add(consumer, queue)
                else:
                    _cancel(consumer, queue)
            except Exception as error:  # noqa: BLE001 - Celery would drop what else waits to be called, or end itself
                _log.warning("listening_put_off", queue=queue, error=type(error).__name__)


def _heard(consumer: Consumer, queues: tuple[str, ...]) -> set[str]:
    return {queue for queue in queues if consumer.task_consumer.consuming_from(queue)}


def _add(consumer: Consumer, queue: str) -> None:
    queues = consumer.app.amqp.queues
    # First, and whatever becomes of this connection.
    queues.select_add(queues[queue])
    if consumer.task_consumer is not None and not consumer.task_consumer.consuming_from(queue):
        consumer.add_task_queue(queue)


def _cancel(consumer: Consumer, queue: str) -> None:
    if consumer.task_consumer is None:
        consumer.app.amqp.queues.deselect(queue)
    else:
        consumer.cancel_task_queue(queue)
