"""How a worker comes by a job, also where it is not told that it did."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from sqlalchemy.orm import Session

from service.store import leases
from service.store.faults import CommitUnknownError
from service.store.leases import Claim
from service.store.session import Database
from workers.patience import patiently

_log = structlog.get_logger(__name__)


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
