"""Ends the flow of messages into this worker without ending the worker, which Celery does by remote control alone."""

from __future__ import annotations

from typing import Any, Protocol


class Consumer(Protocol):
    """What is used of Celery's consumer."""

    app: Any

    def call_soon(self, callback: Any, *arguments: object) -> object:
        """Calls in the thread that has the connection."""

    def cancel_task_queue(self, queue: str) -> None:
        """Listens to the queue no more, not after a new connection either."""

    def add_task_queue(self, queue: str) -> None:
        """Listens to the queue, until a new connection is made."""


class Consumption:
    """The consumer of this process, once there is one."""

    def __init__(self) -> None:
        self._consumer: Consumer | None = None
        self._paused: tuple[str, ...] = ()
        self._stopped = False

    def begin(self, consumer: Consumer) -> None:
        """Celery listens, with this consumer."""
        self._consumer = consumer

    def stop(self) -> None:
        """Listens to no queue any more, from a moment later on. What comes until then, the worker passes on."""
        self._stopped = True
        self._cancel()

    def pause(self) -> None:
        """As `stop`, until `resume`."""
        self._paused = self._paused or self._cancel()

    def resume(self) -> None:
        """Listens again to what it listened to before `pause`; never after `stop`."""
        paused, self._paused = self._paused, ()
        if self._consumer is not None and not self._stopped:
            for queue in paused:
                self._consumer.call_soon(_listen, self._consumer, queue)

    def _cancel(self) -> tuple[str, ...]:
        consumer = self._consumer
        if consumer is None:
            return ()
        queues = tuple(consumer.app.amqp.queues.consume_from)
        for queue in queues:
            consumer.call_soon(consumer.cancel_task_queue, queue)
        return queues


def _listen(consumer: Consumer, queue: str) -> None:
    # Celery's own way forgets the queue with the connection.
    queues = consumer.app.amqp.queues
    queues.select_add(queues[queue])
    consumer.add_task_queue(queue)
