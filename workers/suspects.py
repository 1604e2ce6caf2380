"""Keeps a job's last attempt apart from jobs that may kill the driver both would run on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import ColumnElement

from service.spec.queues import Queue
from service.store.leases import Claim
from service.store.suspects import is_at_last_chance, is_suspect


class Suspects:
    """The jobs at hand that lost an attempt before. Safe to share between threads.

    Where a job kills the driver, each job beside it loses an attempt too, and is tried again beside it. So one that has
    a single attempt left does not begin beside a job that lost one, nor such a job beside it.
    """

    def __init__(self) -> None:
        self._held: set[Claim] = set()
        self._lock = threading.Lock()

    def claim(self, claim: Callable[[], Claim | None]) -> Claim | None:
        """What `claim` gives. One thread at a time: after a driver was lost, all of its jobs are claimed at once."""
        with self._lock:
            taken = claim()
            if taken is not None and _is_suspect(taken):
                self._held = {*self._held, taken}
            return taken

    @contextmanager
    def running(self, claim: Claim) -> Iterator[None]:
        """A claimed job is at hand inside."""
        try:
            yield
        finally:
            if _is_suspect(claim):
                with self._lock:
                    self._held = self._held - {claim}

    def apart(self) -> ColumnElement[bool] | None:
        """Which jobs must not begin now; None where any may. To be asked inside `claim`."""
        if not self._held:
            return None
        if any(held.crashes >= held.max_attempts - 1 for held in self._held):
            return is_suspect()
        return is_at_last_chance()


def _is_suspect(claim: Claim) -> bool:
    return claim.crashes > 0 and claim.queue != Queue.STREAM.value
