"""Ends attempts that are to end early: cancelled by the client, over their time limit, without their lease.

A cancelled Spark action fails like any other, and a cancellation reaches only the Spark jobs that run at that moment;
so the reason is kept with the attempt, and its Spark jobs are cancelled again until the runner has left them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from py4j.protocol import Py4JError

from service.spec.status import JobStatus
from service.store.leases import standings
from service.store.session import Database
from workers.attempt import Attempt, AttemptsAtHand, StopReason

_log = structlog.get_logger(__name__)


class CancellationWatch:
    """Two steps for two threads; each looks at all attempts at hand, `step` with one query."""

    def __init__(
        self, database: Database, at_hand: AttemptsAtHand, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._at_hand = at_hand
        self._clock = clock

    def step(self) -> None:
        """Marks what the database tells to stop, and cancels the Spark jobs of all that is to stop."""
        attempts = self._at_hand.all()
        if not attempts:
            return
        cancel_stopped(attempts)
        self._mark_by_database(attempts)
        cancel_stopped(attempts)

    def mark_overdue(self) -> None:
        """Ends what is over its time limit: on a thread of its own, since a database may keep the other one waiting."""
        now = self._clock()
        overdue = tuple(attempt for attempt in self._at_hand.all() if now >= attempt.deadline)
        for attempt in overdue:
            _stop(attempt, StopReason.TIMED_OUT)
        cancel_stopped(overdue)

    def _mark_by_database(self, attempts: tuple[Attempt, ...]) -> None:
        going = {attempt.claim: attempt for attempt in attempts if attempt.reason is None}
        if not going:
            return
        with self._database.read() as session:
            found = standings(session, going.keys())
        for claim, attempt in going.items():
            standing = found.get(claim)
            if standing is None:
                _stop(attempt, StopReason.LEASE_LOST)
            elif standing.cancel_requested or standing.status is JobStatus.CANCELLING:
                _stop(attempt, StopReason.CANCELLED)
            elif standing.stop_requested or standing.status is JobStatus.STOPPING:
                _stop(attempt, StopReason.STOP_REQUESTED)


def cancel_stopped(attempts: tuple[Attempt, ...]) -> None:
    """Cancels the Spark jobs of those attempts that are to stop, and do not do so by themselves."""
    for attempt in attempts:
        if attempt.reason is not None and attempt.driver is not None and not attempt.ends_gently:
            with suppress(Py4JError, OSError):  # the driver is gone, and its jobs with it
                attempt.driver.cancel(attempt.tag)


def _stop(attempt: Attempt, reason: StopReason) -> None:
    if attempt.stop(reason):
        _log.info("attempt_stopping", job_id=attempt.claim.job_id, attempt=attempt.claim.fence, reason=reason.value)
