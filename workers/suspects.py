"""Keeps a job's last attempt apart from jobs that may kill the driver both would run on."""

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
    """The jobs at hand that lost an attempt before. Safe to share between threads.

    Where a job kills the driver, each job beside it loses an attempt too, and is tried again beside it. So one that has
    a single attempt left does not begin beside a job that lost one, nor such a job beside it.

    A stream does not end, and others would wait for it for ever: it is no suspect any more once it gets on, which it
    does with a mini-batch, or within minutes. One that gets on and kills the driver later, again and again, is not
    found so: those beside it lose an attempt each time.
    """

    def __init__(self, at_hand: AttemptsAtHand) -> None:
        self._at_hand = at_hand
        self._held: set[Claim] = set()
        self._left: set[Claim] = set()
        """Those that the threads of their runners have left."""
        self._lock = threading.Lock()

    def claim(self, claim: Callable[[], Claim | None]) -> Claim | None:
        """What `claim` gives. One thread at a time: after a driver was lost, all of its jobs are claimed at once."""
        with self._lock:
            taken = claim()
            if taken is not None and taken.crashes > 0:
                self._held.add(taken)
            return taken

    @contextmanager
    def running(self, claim: Claim) -> Iterator[None]:
        """A claimed job is at hand inside. It stays a suspect afterwards while its stream runs, or while its planning
        goes on that was abandoned.
        """
        try:
            yield
        finally:
            if claim.crashes > 0:
                with self._lock:
                    self._left.add(claim)
                    self._forget_ended()

    def apart(self, session: Session) -> ColumnElement[bool] | None:
        """Which jobs must not begin now; None where any may. To be asked inside `claim`."""
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
