"""Keeps a job's last attempt apart from jobs that may kill the driver that both would run on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from service.spec.queues import Queue
from service.store.attempts import crashed_attempts
from service.store.leases import Claim
from service.store.suspects import is_at_last_chance, is_suspect
from workers.attempt import AttemptsAtHand


class Suspects:
    """The running jobs that lost an attempt before. Safe to share between threads.

    When a job kills the driver, each other job on that driver loses an attempt too, and may run next to that job again.
    So a job with a single attempt left does not begin while a job runs that lost one, and the other way round.

    A stream does not end, and other jobs would never begin. So a stream is no suspect any more after its first
    mini-batch, or after some minutes. A stream that makes progress and kills the driver later, each time, is not found:
    the other jobs on the driver lose an attempt each time.
    """

    def __init__(self, at_hand: AttemptsAtHand) -> None:
        self._at_hand = at_hand
        self._held: set[Claim] = set()
        self._left: set[Claim] = set()
        """The claims that the threads of their runners have left."""
        self._lock = threading.Lock()

    def claim(self, claim: Callable[[], Claim | None]) -> Claim | None:
        """Returns what `claim` returns. One thread at a time: after the loss of a driver, threads claim all of its jobs
        at the same time.
        """
        with self._lock:
            taken = claim()
            if taken is not None and taken.crashes > 0:
                self._held.add(taken)
            return taken

    @contextmanager
    def running(self, claim: Claim) -> Iterator[None]:
        """Inside, the job counts as running. Afterwards it stays a suspect while its stream runs, or while its
        abandoned planning goes on; `StuckWork` limits that time.
        """
        try:
            yield
        finally:
            if claim.crashes > 0:
                with self._lock:
                    self._left.add(claim)
                    self._forget_ended()

    def apart(self, session: Session) -> ColumnElement[bool] | None:
        """Which jobs must not begin now; None if any may begin. To be called inside `claim`."""
        self._forget_ended()
        self._held -= {held for held in self._held if _is_stream(held) and not crashed_attempts(session, held.job_id)}
        if not self._held:
            return None
        if any(not _is_stream(held) and held.crashes >= held.max_attempts - 1 for held in self._held):
            return is_suspect()
        return is_at_last_chance()

    def _forget_ended(self) -> None:
        at_work = {attempt.claim for attempt in self._at_hand.all()}
        at_work |= {planning.attempt.claim for planning in self._at_hand.abandoned.all()}
        ended = self._left - at_work
        self._held -= ended
        self._left -= ended


def _is_stream(claim: Claim) -> bool:
    return claim.queue == Queue.STREAM.value
