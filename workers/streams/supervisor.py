"""Supervises the continuous streams of this worker, which no Celery task waits for.

A pool of threads steps each stream every half second. A stream that makes its thread wait does not delay others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import NewType

import structlog

from service.config.processes import DaemonPool
from service.store.session import fault_of
from workers.jobs.attempt import RunningAttempts
from workers.jobs.outcome import Verdict
from workers.streams.attempt import StreamAttempt

_log = structlog.get_logger(__name__)

_THREADS = 4
"""How many streams are stepped or stopped at the same time. A stop may take seconds."""


Place = NewType("Place", object)
"""A slot for a stream. A thread reserves it before it claims the stream; otherwise threads that claim at the same time
could exceed the limit.
"""


class StreamSupervisor:
    """Runs streams from their start to their end. `end` publishes the verdict on an attempt, and never raises."""

    def __init__(
        self, running_attempts: RunningAttempts, end: Callable[[StreamAttempt, Verdict], None], limit: int
    ) -> None:
        self._running_attempts = running_attempts
        self._end = end
        self._limit = limit
        self._streams: dict[StreamAttempt, Future[None] | None] = {}
        self._places: set[Place] = set()
        """The slots of streams that are being claimed, planned or started."""
        self._pool = DaemonPool(_THREADS, "stream")
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether the worker has reached its limit of streams, including those that are being started."""
        with self._lock:
            return self._is_full()

    @contextmanager
    def starting(self) -> Iterator[Place]:
        """Yields a slot that the thread may `take` before it claims and starts a stream."""
        place = Place(object())
        try:
            yield place
        finally:
            with self._lock:
                self._places.discard(place)

    def take(self, place: Place) -> bool:
        """Reserves the slot; returns False if the worker has reached its limit. It stays reserved until the thread
        leaves `starting` or calls `watch` with its stream.
        """
        with self._lock:
            if place not in self._places and self._is_full():
                return False
            self._places.add(place)
            return True

    def watch(self, stream: StreamAttempt, place: Place | None = None) -> None:
        """Supervises a stream that was started; it takes over the slot. Its attempt stays registered until it ends."""
        self._running_attempts.keep(stream.attempt)
        with self._lock:
            self._streams[stream] = None
            if place is not None:
                self._places.discard(place)

    def step(self) -> None:
        """Steps every stream that no thread of the pool is stepping."""
        with self._lock:
            idle = [stream for stream, step in self._streams.items() if step is None or step.done()]
            for stream in idle:
                self._streams[stream] = self._pool.submit(partial(self._step_stream, stream))

    def close(self) -> None:
        """Stops the supervision. A step that hangs does not delay the end of the process."""
        self._pool.close()

    def _is_full(self) -> bool:
        return len(self._streams) + len(self._places) >= self._limit

    def _step_stream(self, stream: StreamAttempt) -> None:
        claim = stream.attempt.claim
        with structlog.contextvars.bound_contextvars(job_id=claim.job_id, attempt=claim.fence):
            try:
                verdict = stream.step()
                if verdict is None:
                    return
                stream.close()
            except Exception as error:  # noqa: BLE001 - the next step continues; a lost lease ends it
                trace = None if fault_of(error) is not None else error
                _log.warning("stream_step_failed", exc_info=trace, error=type(error).__name__)
                return
            try:
                self._end(stream, verdict)
            finally:
                with self._lock:
                    self._streams.pop(stream, None)
                self._running_attempts.release(stream.attempt)
