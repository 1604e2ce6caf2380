"""The database may be away for a moment: what is worth waiting for it is tried again.

How a worker comes by a job, also where it is not told that it did.

Giving a job up for another attempt, also while the database is away for a moment.
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
from service.store.leases import Claim
from service.store.session import CommitUnknownError, Database, fault_of
from workers.jobs.attempt import Attempt
from workers.jobs.outcome import HandBack

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_TRIES = 8


def patiently(
    write: Callable[[int], T],
    *,
    pause: Callable[[float], object] = time.sleep,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """What `write` gives, tried for a minute while the database is away, locked, or has no connection left; then its
    last error is raised. The last try begins after `seconds` at the latest.

    `write` gets how often it was tried before: a try whose answer was lost may have been the one that did it.
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


def patiently_aside(attempt: Attempt, write: Callable[[], T], pause: Callable[[float], object]) -> T:
    """As `patiently`, for an attempt that is told to stop meanwhile, perhaps: it is not deaf for its driver's sake."""
    with attempt.aside():
        return patiently(lambda _: write(), pause=pause)


def claim_job(
    database: Database,
    choose: Callable[[Session], str | None],
    worker: str,
    lease_ms: int,
    *,
    pause: Callable[[float], object] = time.sleep,
) -> Claim | None:
    """Claims the job whose id `choose` gives; None where there is nothing to claim.

    Where the connection broke during the commit, looks what became of it. Raises only when the database fails, and
    CommitUnknownError where nothing was claimed after all.
    """
    claim = None
    try:
        with database.write() as session:
            job_id = choose(session)
            if job_id is not None:
                claim = leases.claim(session, job_id, worker, database.now(session), lease_ms)
    except CommitUnknownError:
        # A claim that was done and that nobody works on would cost the job an attempt, as that of a lost worker.
        if claim is None or not patiently(lambda _: _holds(database, claim), pause=pause):
            raise
        _log.warning("claim_found_done", job_id=claim.job_id, attempt=claim.fence)
    if claim is None and job_id is not None:
        _log.info("nothing_to_claim", job_id=job_id)
    return claim


def _holds(database: Database, claim: Claim) -> bool:
    with database.write() as session:
        return leases.is_claimed(session, claim)


def hand_back_job(
    database: Database, claim: Claim, given: HandBack, *, seconds: float, pause: Callable[[float], object] = time.sleep
) -> JobStatus | None:
    """What became of the job; None where the lease was lost. Tries for `seconds` while the database is away, and raises
    its last error then: the lease is left to run out."""

    def try_once(tried: int) -> JobStatus | None:
        with database.write() as session:
            now = database.now(session)
            became = leases.hand_back(session, claim, now, status=given.status, error=given.error)
            if became is None and tried > 0:
                # An earlier try, whose answer was lost, may have done it.
                became = leases.handed_back(session, claim, status=given.status, error=given.error)
            return became

    return patiently(try_once, pause=pause, seconds=seconds)
