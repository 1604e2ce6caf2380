"""Giving a job up for another attempt, also while the database is away for a moment."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.spec.status import JobStatus
from service.store import leases
from service.store.leases import Claim
from service.store.session import Database
from workers.failures import HandBack
from workers.patience import patiently


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
