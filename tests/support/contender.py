"""`python -m tests.support.contender URL NAME SEED`: a worker without Spark that competes for jobs with others.

It claims, renews, publishes and sweeps until every job has ended, and then prints a JSON list of [job, fence] of its
published results. It prints `here` first and waits for a line. Some of its leases expire at once, as those of a paused
worker: it abandons half of these jobs and publishes the other half anyway, sometimes after a sweep.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.contract.enums import JobStatus, Queue
from service.store import leases, publication
from service.store.attempts import Claim
from service.store.maintenance import sweep
from service.store.publication import Ending, PublishedResult
from service.store.session import Database, Fault, fault_of
from service.store.tables import JobRow

LEASE_MS = 60_000
LATE_TRIES = 2
"""How many attempts may lose their lease. The next one keeps it, so that no job runs out of attempts."""

_WORK_SECONDS = 0.002
"""Outside of transactions. Without it, the last writer on SQLite writes next, and another process may never write."""

T = TypeVar("T")


class Contender:
    """The worker of one process."""

    def __init__(self, database: Database, name: str, seed: int) -> None:
        self._database = database
        self._name = name
        self._chance = random.Random(seed)
        self.published: list[tuple[str, int]] = []

    def contend(self) -> None:
        """Processes jobs until all have ended."""
        while self._is_work_left():
            held = self._write(self._take)
            if held is not None:
                self._work(held)
            if held is None or self._chance.random() < 0.1:
                self._write(lambda s: sweep(s, self._database.now(s), announce_again_ms=1, free={Queue.SHORT.value: 4}))

    def _is_work_left(self) -> bool:
        ended = [status.value for status in JobStatus if status.is_terminal]
        with self._database.read() as session:
            return session.scalars(select(JobRow.id).where(JobRow.status.not_in(ended)).limit(1)).first() is not None

    def _take(self, session: Session) -> Claim | None:
        # A job as a free worker looks for it, or one named by a message, which others may have received too.
        job_id = leases.oldest_waiting(session, [Queue.SHORT.value])
        if self._chance.random() < 0.5:
            waiting = select(JobRow.id).where(JobRow.status == JobStatus.QUEUED.value).limit(1)
            job_id = session.scalars(waiting.order_by(JobRow.id.desc())).first()
        if job_id is None:
            return None
        return leases.claim(session, job_id, self._name, self._database.now(session), LEASE_MS)

    def _work(self, held: Claim) -> None:
        late = held.fence <= LATE_TRIES and self._chance.random() < 0.3
        lease_ms = 0 if late else LEASE_MS
        self._write(lambda s: leases.mark_running(s, held, self._database.now(s)))
        time.sleep(_WORK_SECONDS)
        self._write(lambda s: leases.renew(s, self._name, [held], self._database.now(s), lease_ms))
        if late and self._chance.random() < 0.5:
            return  # abandoned
        ending = Ending(JobStatus.SUCCEEDED, result=PublishedResult(f"{held.job_id}/{held.fence}", 1, 1))
        if self._write(lambda s: publication.publish(s, held, ending, self._database.now(s))):
            self.published.append((held.job_id, held.fence))

    def _write(self, transaction: Callable[[Session], T]) -> T:
        while True:
            try:
                with self._database.write() as session:
                    return transaction(session)
            except SQLAlchemyError as error:
                if fault_of(error) not in (Fault.CONFLICT, Fault.BUSY):
                    raise


def main(url: str, name: str, seed: int) -> None:
    """Runs a contender; see the module's docstring."""
    with closing(Database(url)) as database:
        contender = Contender(database, name, seed)
        sys.stdout.write("here\n")
        sys.stdout.flush()
        sys.stdin.readline()
        contender.contend()
        sys.stdout.write(json.dumps(contender.published))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
