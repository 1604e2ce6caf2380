"""The streams that this worker runs without a task of their own: looked at every half second, each by a thread that it
keeps waiting alone.
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
from workers.jobs.attempt import AttemptsAtHand
from workers.jobs.outcome import Verdict
from workers.streams.attempt import StreamAttempt

_log = structlog.get_logger(__name__)

_THREADS = 4
"""Streams that are looked at, or stopped, at the same time: a stop may take seconds."""


Place = NewType("Place", object)
"""Room for a stream that a thread may claim: taken before it does, else threads that claim at the same time would start
more streams than there may be.
"""


class StreamSupervisor:
    """Owns the streams from their start on. `end` publishes the verdict on an attempt, and never raises."""

    def __init__(self, at_hand: AttemptsAtHand, end: Callable[[StreamAttempt, Verdict], None], limit: int) -> None:
        self._at_hand = at_hand
        self._end = end
        self._limit = limit
        self._streams: dict[StreamAttempt, Future[None] | None] = {}
        self._places: set[Place] = set()
        """Of streams that are being claimed, planned and started."""
        self._pool = DaemonPool(_THREADS, "stream")
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether this worker runs as many streams as it may, those included that are being started."""
        with self._lock:
            return self._is_full()

    @contextmanager
    def starting(self) -> Iterator[Place]:
        """For a thread that may `take` the place, claim a stream, and start it inside."""
        place = Place(object())
        try:
            yield place
        finally:
            with self._lock:
                self._places.discard(place)

    def take(self, place: Place) -> bool:
        """Whether the place is the thread's own, now or before. It is until the thread leaves `starting`, or `watch`
        has its stream.
        """
        with self._lock:
            if place not in self._places and self._is_full():
                return False
            self._places.add(place)
            return True

    def watch(self, stream: StreamAttempt, place: Place | None = None) -> None:
        """Takes over a stream that was started, in its place; its attempt is at hand, and kept so."""
        self._at_hand.keep(stream.attempt)
        with self._lock:
            self._streams[stream] = None
            if place is not None:
                self._places.discard(place)

    def step(self) -> None:
        """Looks at every stream that nobody is looking at."""
        with self._lock:
            idle = [stream for stream, looking in self._streams.items() if looking is None or looking.done()]
            for stream in idle:
                self._streams[stream] = self._pool.submit(partial(self._look_at, stream))

    def close(self) -> None:
        """Looks at no stream any more. A look that hangs does not delay the end of the process."""
        self._pool.close()

    def _is_full(self) -> bool:
        return len(self._streams) + len(self._places) >= self._limit

    def _look_at(self, stream: StreamAttempt) -> None:
        claim = stream.attempt.claim
        with structlog.contextvars.bound_contextvars(job_id=claim.job_id, attempt=claim.fence):
            try:
                verdict = stream.step()
                if verdict is None:
                    return
                stream.close()
            except Exception as error:  # noqa: BLE001 - the next look goes on; a lease that is lost ends it
                told = fault_of(error) is not None
                _log.warning("stream_not_looked_at", exc_info=None if told else error, error=type(error).__name__)
                return
            try:
                self._end(stream, verdict)
            finally:
                with self._lock:
                    self._streams.pop(stream, None)
                self._at_hand.release(stream.attempt)
