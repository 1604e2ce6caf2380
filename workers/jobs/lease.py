"""Claims jobs and hands them back, with retries while the database is unavailable.

A claim is found even if the connection broke during its commit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.contract.enums import JobStatus
from service.store import leases
from service.store.attempts import Claim
from service.store.session import CommitUnknownError, Database, fault_of
from workers.jobs.attempt import Attempt
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
