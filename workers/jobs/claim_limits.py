"""Limits which waiting jobs a worker may claim: crash isolation, and the slots for explanations of a tenant.

`Suspects` prevents that a job's last attempt runs on the same driver as a job that may kill it. `ExplanationSlots`
prevents that the explanations of one tenant take all slots of a worker.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import ColumnElement
from sqlalchemy.orm import Session

from service.contract.enums import Queue
from service.store.attempts import Claim, crashed_attempts, is_on_last_attempt, is_suspect
from service.store.jobs import EXPLAIN
from workers.jobs.attempt import AbandonedPlannings, RunningAttempts


class Suspects:
    """The running jobs that lost an attempt before. Safe to share between threads.

    When a job kills the driver, each other job on that driver loses an attempt too, and may run next to that job again.
    So a job with a single attempt left does not begin while a job runs that has lost one, and vice versa.

    A stream does not end, so other jobs would never begin. So a stream is not a suspect any more after its first
    mini-batch, or after some minutes. A stream that makes progress and kills the driver later, each time, is not found;
    the other jobs on the driver lose an attempt each time.
    """

    def __init__(self, running_attempts: RunningAttempts) -> None:
        self._running_attempts = running_attempts
        self._held: set[Claim] = set()
        self._left: set[Claim] = set()
        """The claims whose thread does not run them any more."""
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

    def excluded_jobs(self, session: Session) -> ColumnElement[bool] | None:
        """Returns the condition on jobs that must not begin now; None if any may begin. Called inside `claim`."""
        self._forget_ended()
        self._held -= {held for held in self._held if _is_stream(held) and not crashed_attempts(session, held.job_id)}
        if not self._held:
            return None
        if any(not _is_stream(held) and held.crashes >= held.max_attempts - 1 for held in self._held):
            return is_suspect()
        return is_on_last_attempt()

    def _forget_ended(self) -> None:
        active = {attempt.claim for attempt in self._running_attempts.all()}
        active |= {planning.attempt.claim for planning in self._running_attempts.abandoned.all()}
        ended = self._left - active
        self._held -= ended
        self._left -= ended


def _is_stream(claim: Claim) -> bool:
    return claim.queue == Queue.STREAM.value


class ExplanationSlots:
    """Counts the slots of a worker that the explanations of each tenant take. An explanation keeps its slot until the
    thread that plans it has ended, also after the planning was abandoned. `StuckWork` limits that time. Safe to share
    between threads.
    """

    def __init__(self, slots: int, most: int, abandoned: AbandonedPlannings) -> None:
        """A tenant's explanations get half of `slots`, and no more than `most`. If `most` is 0, there is no limit."""
        self._abandoned = abandoned
        self._most = min(most, max(1, slots // 2))
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def tenants_at_limit(self) -> frozenset[str]:
        """Returns the tenants that have reached their limit: no further explanation of theirs may begin."""
        claims = (planning.attempt.claim for planning in self._abandoned.all())
        abandoned = Counter(claim.tenant for claim in claims if claim.kind == EXPLAIN)
        with self._lock:
            taken = self._taken + abandoned
        return frozenset(tenant for tenant, number in taken.items() if 0 < self._most <= number)

    def count(self, claim: Claim | None) -> Claim | None:
        """Counts `claim`, which was just made, if it is an explanation, until `working` ends. Returns `claim`."""
        if claim is not None and claim.kind == EXPLAIN:
            with self._lock:
                self._taken[claim.tenant] += 1
        return claim

    @contextmanager
    def working(self, claim: Claim) -> Iterator[None]:
        """Inside, the thread that claimed the job works on it."""
        try:
            yield
        finally:
            if claim.kind == EXPLAIN:
                with self._lock:
                    self._taken[claim.tenant] -= 1
                    # Removes the tenants that have no explanation left.
                    self._taken += Counter()
