"""The slots of a worker, and the order in which tenants are served.

A worker has `concurrency` slots for all tenants. Its other threads have the reserved slots: while no other slot is
free, they claim only jobs of tenants of which nothing runs, on any worker. Some of the jobs may have a Spark driver of
their own: a worker has memory for few of these drivers, so further such jobs wait, and other jobs take the slots.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from service.store import turns
from service.store.accounts import Quota
from service.store.attempts import Claim, is_isolated
from service.store.session import Database


class JobSlots:
    """Counts the jobs that the threads of a worker work on. Safe to share between threads, of which one claims at a
    time.

    A slot is free before its thread claims the next job. So a job that is refused because no slot is free is claimed by
    the thread whose slot becomes free.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._taken = 0
        self._served: Mapping[str, int] = MappingProxyType({})
        self._lock = threading.Lock()

    @property
    def _only_idle(self) -> bool:
        return self._taken >= self._concurrency

    def may_claim(self, database: Database) -> bool:
        """Returns False if no job can be claimed now. Only reads: while long jobs of a tenant occupy the slots, a
        message arrives for each further job that it submits."""
        if not self._only_idle:
            return True
        with database.read() as session:
            return turns.is_idle_tenant_waiting(session)

    def allow(self, session: Session, job_id: str) -> bool:
        """Returns whether a slot is free for the job."""
        return not self._only_idle or turns.is_of_idle_tenant(session, job_id)

    def next_waiting(
        self, session: Session, queues: Collection[str], quota: Quota, excluded: ColumnElement[bool] | None
    ) -> str | None:
        """Returns the job to claim next; see `turns.next_waiting`. None if no job waits for which a slot is free."""
        return turns.next_waiting(session, queues, quota, excluded, served=self._served, only_idle=self._only_idle)

    def take(self, claim: Claim | None) -> Claim | None:
        """Takes a slot for `claim`, which was just made, until `working` ends. Returns `claim`."""
        if claim is not None:
            with self._lock:
                self._taken += 1
            self._served = {**self._served, claim.tenant: max(self._served.values(), default=0) + 1}
        return claim

    @contextmanager
    def working(self) -> Iterator[None]:
        """Inside, the thread that claimed a job works on it."""
        try:
            yield
        finally:
            with self._lock:
                self._taken -= 1


class IsolatedSlots:
    """Counts the jobs of a worker that have a Spark driver of their own; at most `most` at once. Safe to share between
    threads, of which one claims at a time.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._lock = threading.Lock()

    def excluded_jobs(self) -> ColumnElement[bool] | None:
        """Returns the condition on jobs that must not begin now; None if any may begin."""
        return is_isolated() if self._taken >= self._most else None

    def take(self, claim: Claim | None) -> Claim | None:
        """Takes a driver for `claim`, which was just made, if it needs one, until `working` ends. Returns `claim`."""
        if claim is not None and claim.isolated:
            with self._lock:
                self._taken += 1
        return claim

    @contextmanager
    def working(self, claim: Claim) -> Iterator[None]:
        """Inside, the thread that claimed the job works on it."""
        try:
            yield
        finally:
            if claim.isolated:
                with self._lock:
                    self._taken -= 1
