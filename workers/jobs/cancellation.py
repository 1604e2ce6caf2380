"""Stops attempts that must end early: cancelled by the client, over their time limit, or without their lease.

A cancelled Spark action fails like any other, and a cancellation affects only the Spark jobs that run at that moment.
So the attempt stores the reason, and its Spark jobs are cancelled again and again until the attempt has ended.

The thread that cancels Spark jobs waits for the JVM, which may hang. The threads that find the attempts to stop do not
wait for the JVM, so an attempt that does not need it ends at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from py4j.protocol import Py4JError

from service.contract.enums import JobStatus
from service.store.leases import claim_states
from service.store.session import Database
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason

_log = structlog.get_logger(__name__)


class CancellationWatch:
    """Three steps for three threads. Each checks all running attempts, `step` with one query."""

    def __init__(
        self, database: Database, running_attempts: RunningAttempts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._database = database
        self._running_attempts = running_attempts
        self._clock = clock

    def step(self) -> None:
        """Marks the attempts that must stop according to the database."""
        running = {attempt.claim: attempt for attempt in self._running_attempts.all() if attempt.reason is None}
        if not running:
            return
        with self._database.read() as session:
            found = claim_states(session, running.keys())
        for claim, attempt in running.items():
            state = found.get(claim)
            if state is None:
                _stop(attempt, StopReason.LEASE_LOST)
            elif state.cancel_requested or state.status is JobStatus.CANCELLING:
                _stop(attempt, StopReason.CANCELLED)
            elif state.stop_requested or state.status is JobStatus.STOPPING:
                _stop(attempt, StopReason.STOP_REQUESTED)

    def mark_overdue(self) -> None:
        """Marks the attempts that have exceeded their time limit. Runs in its own thread, since the thread of `step`
        may wait for the database.
        """
        now = self._clock()
        for attempt in self._running_attempts.all():
            if now >= attempt.deadline:
                _stop(attempt, StopReason.TIMED_OUT)

    def cancel_spark_jobs(self) -> None:
        """Cancels the Spark jobs of the attempts that must stop, and those of abandoned plannings."""
        cancel_stopped(self._running_attempts.all())
        for planning in self._running_attempts.abandoned.all():
            _cancel(planning.attempt)


def cancel_stopped(attempts: tuple[Attempt, ...]) -> None:
    """Cancels the Spark jobs of the attempts that must stop, except streams that stop between two mini-batches."""
    for attempt in attempts:
        if attempt.reason is not None and not attempt.ends_gracefully:
            _cancel(attempt)


def _cancel(attempt: Attempt) -> None:
    if attempt.driver is not None:
        with suppress(Py4JError, OSError):  # the driver has ended, and its jobs with it
            attempt.driver.cancel(attempt.tag)


def _stop(attempt: Attempt, reason: StopReason) -> None:
    if attempt.stop(reason):
        _log.info("attempt_stopping", job_id=attempt.claim.job_id, attempt=attempt.claim.fence, reason=reason.value)
