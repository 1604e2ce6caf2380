"""Claims jobs and hands them back, and limits which waiting jobs a worker may claim.

Claims are retried while the database is unavailable. A claim is found even if the connection broke during its commit.

`Suspects` prevents that a job's last attempt runs on the same driver as a job that may kill it. `ExplanationSlots`
prevents that the explanations of one tenant take all slots of a worker.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import structlog
from sqlalchemy import ColumnElement
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.contract.enums import JobStatus, Queue
from service.store import leases
from service.store.attempts import Claim, crashed_attempts, is_isolated, is_on_last_attempt, is_suspect
from service.store.jobs import EXPLAIN
from service.store.session import CommitUnknownError, Database, fault_of
from workers.jobs.attempt import AbandonedPlannings, Attempt, RunningAttempts
from workers.jobs.outcome import HandBack

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_TRIES = 8


def retry_on_database_fault(
    write: Callable[[int], T],
    *,
    pause: Callable[[float], object] = time.sleep,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """Calls `write` and returns its result. Tries again for a minute while the database is unavailable, locked, or has
    no free connection; then raises the last error. The last try begins after `seconds` at the latest.

    `write` gets the number of earlier tries: one of them may have been committed although its answer was lost.
    """
    until = clock() + seconds
    for tried in range(_TRIES - 1):
        try:
            return write(tried)
        except SQLAlchemyError as error:
            fault = fault_of(error)
            left = until - clock()
            if fault is None or left <= 0:
                raise
            _log.warning("database_away", fault=fault.value, tries=tried + 1, error=type(error).__name__)
            pause(min(0.5 * 2**tried, left))
    return write(_TRIES - 1)


def retry_attempt_write(attempt: Attempt, write: Callable[[], T], pause: Callable[[float], object]) -> T:
    """As `retry_on_database_fault`, for a running attempt, which does not count as unresponsive meanwhile."""
    with attempt.waiting_for_database():
        return retry_on_database_fault(lambda _: write(), pause=pause)


def claim_job(
    database: Database,
    choose: Callable[[Session], str | None],
    worker: str,
    lease_ms: int,
    *,
    pause: Callable[[float], object] = time.sleep,
) -> Claim | None:
    """Claims the job whose id `choose` returns. Returns None if there is nothing to claim.

    If the connection broke during the commit, reads whether the claim was committed. Raises CommitUnknownError if it
    was not, and otherwise only errors of the database.
    """
    claim = None
    try:
        with database.write() as session:
            job_id = choose(session)
            if job_id is not None:
                claim = leases.claim(session, job_id, worker, database.now(session), lease_ms)
    except CommitUnknownError:
        # A committed claim without a runner would cost the job an attempt, like the loss of a worker.
        if claim is None or not retry_on_database_fault(lambda _: _holds(database, claim), pause=pause):
            raise
        _log.warning("claim_found_committed", job_id=claim.job_id, attempt=claim.fence)
    if claim is None and job_id is not None:
        _log.info("nothing_to_claim", job_id=job_id)
    return claim


def _holds(database: Database, claim: Claim) -> bool:
    with database.write() as session:
        return leases.is_claimed(session, claim)


def hand_back_job(
    database: Database, claim: Claim, given: HandBack, *, seconds: float, pause: Callable[[float], object] = time.sleep
) -> JobStatus | None:
    """Hands the job back. Returns its new status; None if the lease was lost. Tries for `seconds` while the database is
    unavailable, then raises the last error, and the lease expires."""

    def try_once(tried: int) -> JobStatus | None:
        with database.write() as session:
            now = database.now(session)
            became = leases.hand_back(session, claim, now, status=given.status, error=given.error)
            if became is None and tried > 0:
                # An earlier try may have been committed although its answer was lost.
                became = leases.outcome_of_hand_back(session, claim, status=given.status, error=given.error)
            return became

    return retry_on_database_fault(try_once, pause=pause, seconds=seconds)


class Suspects:
    """The running jobs that lost an attempt before. Safe to share between threads.

    When a job kills the driver, each other job on that driver loses an attempt too, and may run next to that job again.
    So a job with a single attempt left does not begin while a job runs that has lost one, and vice versa. A job with a
    driver of its own is no suspect, and may always begin.

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
            if taken is not None and taken.crashes > 0 and not taken.isolated:
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
            if claim.crashes > 0 and not claim.isolated:
                with self._lock:
                    self._left.add(claim)
                    self._forget_ended()

    def excluded_jobs(self, session: Session) -> ColumnElement[bool] | None:
        """Returns the condition on jobs that must not begin now; None if any may begin. Called inside `claim`."""
        self._forget_ended()
        self._held -= {held for held in self._held if _is_stream(held) and not crashed_attempts(session, held.job_id)}
        if not self._held:
            return None
        is_last = any(not _is_stream(held) and held.crashes >= held.max_attempts - 1 for held in self._held)
        return (is_suspect() if is_last else is_on_last_attempt()) & ~is_isolated()

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
