"""Keeps explanations of one tenant from taking all slots of a worker."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from service.store.jobs import EXPLAIN
from service.store.leases import Claim
from workers.attempt import AbandonedPlannings


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

    def taken_up(self) -> frozenset[str]:
        """The tenants that have reached their limit: no further explanation of theirs may begin."""
        left = Counter(one.attempt.claim.tenant for one in self._abandoned.all() if one.attempt.claim.kind == EXPLAIN)
        with self._lock:
            taken = self._taken + left
        return frozenset(tenant for tenant, number in taken.items() if 0 < self._most <= number)

    def claimed(self, claim: Claim | None) -> Claim | None:
        """Counts an explanation that was just claimed, until `working` ends."""
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
