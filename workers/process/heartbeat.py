"""What a worker says of itself with every sign of life.

Signs of life: leases renewed, progress stored.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Sequence

import structlog

from service import __version__
from service.config.settings import Settings
from service.contract.enums import SparkState
from service.store import leases, workers
from service.store.leases import Claim
from service.store.session import Database
from service.store.workers import WorkerFacts
from workers.driver.session import SparkCondition
from workers.engine.spark.status_store import MonitorError
from workers.jobs.attempt import Attempt, AttemptsAtHand, StopReason
from workers.metrics import Resident

_LONGEST = 255
_USER = re.compile(r"//[^/?#]*@")


class Facts:
    """Gathers them anew for every heartbeat. Neither `condition` nor `memory` may wait for anything."""

    def __init__(
        self, settings: Settings, condition: Callable[[], SparkCondition], memory: Callable[[], Resident]
    ) -> None:
        self._host = socket.gethostname()[:_LONGEST]
        self._concurrency = settings.worker.concurrency
        self._queues = settings.worker.queues
        self._cluster = without_secrets(settings.spark.master)[:_LONGEST]
        self._condition = condition
        self._memory = memory

    def __call__(self) -> WorkerFacts:
        """As everything is now."""
        spark = self._condition()
        return WorkerFacts(
            host=self._host,
            pid=os.getpid(),
            concurrency=self._concurrency,
            queues=self._queues,
            cluster=self._cluster,
            app_id=spark.app_id,
            spark_state=spark.state.value,
            spark_fault=spark.fault if spark.state is SparkState.UNAVAILABLE else None,
            slots=spark.slots,
            memory_bytes=self._memory().total,
        )


def without_secrets(url: str) -> str:
    """A URL without user, password and query: where it leads, and nothing else."""
    return _USER.sub("//", url).partition("?")[0]


_log = structlog.get_logger(__name__)

_IGNORED_SECONDS = 60.0
"""An attempt that goes on for longer after it was told to stop does not listen any more."""


class Heartbeat:
    """One step renews every lease of this worker in one statement, and tells what the worker says of itself.

    `facts` must not wait for anything; `drain` is called with every beat once the worker was asked to drain.
    """

    def __init__(
        self,
        database: Database,
        worker: str,
        at_hand: AttemptsAtHand,
        lease_ms: int,
        facts: Callable[[], WorkerFacts] = WorkerFacts,
        drain: Callable[[], object] = lambda: None,
    ) -> None:
        self._database = database
        self._worker = worker
        self._at_hand = at_hand
        self._lease_ms = lease_ms
        self._facts = facts
        self._drain = drain
        self._beating = threading.Lock()
        self._left = False

    def step(self) -> None:
        """Tells the database that the worker lives; attempts whose lease is lost are told to stop.

        A runner that hangs must not keep its job for ever: its lease is left to run out.
        """
        attempts = [attempt for attempt in self._at_hand.all() if attempt.ignored_for() <= _IGNORED_SECONDS]
        facts = self._facts()
        # The sweeper beats too; two first beats at once would add this worker twice.
        with self._beating:
            if self._left:
                return
            is_to_drain, held = self._beat(attempts, facts)
        for attempt in attempts:
            # One that published in between is settled and does not listen any more.
            if attempt.claim not in held and attempt.stop(StopReason.LEASE_LOST):
                _log.info("lease_not_renewed", job_id=attempt.claim.job_id, attempt=attempt.claim.fence)
        if is_to_drain:
            self._drain()

    def leave(self) -> None:
        """Takes the worker off the list of workers, for good: a step that comes late does not put it back."""
        with self._beating:
            self._left = True
            with self._database.write() as session:
                workers.leave(session, self._worker)

    def _beat(self, attempts: Sequence[Attempt], facts: WorkerFacts) -> tuple[bool, set[Claim]]:
        """Whether the worker is to drain, and which leases hold."""
        with self._database.write() as session:
            now = self._database.now(session)
            is_to_drain = workers.beat(session, self._worker, now, __version__, facts, leaving=self._at_hand.closed)
            return is_to_drain, leases.renew(
                session, self._worker, [item.claim for item in attempts], now, self._lease_ms
            )


class ProgressReporter:
    """One step stores how far the attempts are, of those that moved."""

    def __init__(self, database: Database, at_hand: AttemptsAtHand) -> None:
        self._database = database
        self._at_hand = at_hand

    def step(self) -> None:
        """Asks Spark about every attempt on it; writes only what changed."""
        moved = []
        for attempt in self._at_hand.all():
            # A stream tells of its mini-batches instead: the number of its tasks grows for ever.
            if attempt.driver is None or attempt.reason is not None or attempt.streams:
                continue
            try:
                progress = attempt.driver.monitor.progress(attempt.run_tag)
            except MonitorError as error:
                # A driver that is busy, or gone: neither is for this thread to judge.
                _log.debug("progress_missing", job_id=attempt.claim.job_id, error=type(error).__name__)
                continue
            if progress != attempt.progress:
                attempt.progress = progress
                moved.append((attempt.claim, progress))
        for claim, progress in moved:
            # One job a transaction: the heartbeat locks all of them in an order of its own, and on PostgreSQL the two
            # would wait for each other.
            with self._database.write() as session:
                leases.save_progress(session, claim, progress, self._database.now(session))
