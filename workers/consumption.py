"""Ends the flow of messages into this worker without ending the worker, which Celery does by remote control alone."""

from __future__ import annotations

from typing import Any, Protocol

import structlog

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
