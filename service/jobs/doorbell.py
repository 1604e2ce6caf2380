"""Tells workers of stored jobs, beside the requests that stored them.

Nobody who submits waits for the broker. What comes while messages are being sent is sent together afterwards, so that
a burst of jobs costs a few transactions, and a single job is announced at once.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from queue import Empty, SimpleQueue

import structlog

from service.dispatch import Dispatcher
from service.spec.queues import Queue
from service.store import outbox
from service.store.session import Database

_log = structlog.get_logger(__name__)

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
                outbox.settle_messages(session, sent)
