"""The heartbeat of a worker: renews its leases and reports its state. Also stores the progress of jobs."""

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
from service.store.attempts import Claim
from service.store.session import Database
from service.store.workers import WorkerFacts
from workers.driver.session import SparkCondition
from workers.engine.spark.status_store import MonitorError
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.metrics import Resident

_MAX_LENGTH = 255
_USER = re.compile(r"//[^/?#]*@")

_log = structlog.get_logger(__name__)

_HUNG_SECONDS = 60.0
"""An attempt that still runs this long after it was stopped is hung."""


class Facts:
    """Collects the facts about the worker for each heartbeat. Neither `condition` nor `memory` may block."""

    def __init__(
        self, settings: Settings, condition: Callable[[], SparkCondition], memory: Callable[[], Resident]
    ) -> None:
        self._host = socket.gethostname()[:_MAX_LENGTH]
        self._concurrency = settings.worker.concurrency
        self._queues = settings.worker.queues
        self._cluster = without_secrets(settings.spark.master)[:_MAX_LENGTH]
        self._condition = condition
        self._memory = memory

    def __call__(self) -> WorkerFacts:
        """Returns the current facts."""
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
    """Returns the URL without user, password and query."""
    return _USER.sub("//", url).partition("?")[0]


class Heartbeat:
    """Renews every lease of this worker in one statement, and stores the facts about the worker.

    `facts` must not block. `drain` is called with every heartbeat after a request to drain the worker.
    """

    def __init__(
        self,
        database: Database,
        worker: str,
        running_attempts: RunningAttempts,
        lease_ms: int,
        facts: Callable[[], WorkerFacts] = WorkerFacts,
        drain: Callable[[], object] = lambda: None,
    ) -> None:
        self._database = database
        self._worker = worker
        self._running_attempts = running_attempts
        self._lease_ms = lease_ms
        self._facts = facts
        self._drain = drain
        self._beating = threading.Lock()
        self._left = False

    def step(self) -> None:
        """Stores the heartbeat and renews the leases. Stops the attempts whose lease is lost.

        A hung attempt must not keep its job for ever, so its lease is not renewed and expires.
        """
        attempts = [
            attempt for attempt in self._running_attempts.all() if attempt.seconds_since_stop() <= _HUNG_SECONDS
        ]
        facts = self._facts()
        # The sweeper also calls this method, and two concurrent first heartbeats would add this worker twice.
        with self._beating:
            if self._left:
                return
            must_drain, held = self._beat(attempts, facts)
        for attempt in attempts:
            # `stop` returns False for an attempt that has published its end meanwhile.
            if attempt.claim not in held and attempt.stop(StopReason.LEASE_LOST):
                _log.info("lease_not_renewed", job_id=attempt.claim.job_id, attempt=attempt.claim.fence)
        if must_drain:
            self._drain()

    def leave(self) -> None:
        """Removes the worker from the list of workers. A late step does not add it again."""
        with self._beating:
            self._left = True
            with self._database.write() as session:
                workers.remove_worker(session, self._worker)

    def _beat(self, attempts: Sequence[Attempt], facts: WorkerFacts) -> tuple[bool, set[Claim]]:
        """Returns whether the worker must drain, and which leases are held."""
        with self._database.write() as session:
            now = self._database.now(session)
            must_drain = workers.record_heartbeat(
                session, self._worker, now, __version__, facts, leaving=self._running_attempts.closed
            )
            return must_drain, leases.renew(
                session, self._worker, [item.claim for item in attempts], now, self._lease_ms
            )


class ProgressReporter:
    """Stores the progress of the attempts."""

    def __init__(self, database: Database, running_attempts: RunningAttempts) -> None:
        self._database = database
        self._running_attempts = running_attempts

    def step(self) -> None:
        """Reads the progress of each attempt from Spark, and stores what has changed."""
        changed = []
        for attempt in self._running_attempts.all():
            # A stream reports its mini-batches instead, since the number of its tasks only grows.
            if attempt.driver is None or attempt.reason is not None or attempt.streams:
                continue
            try:
                progress = attempt.driver.monitor.progress(attempt.run_tag)
            except MonitorError as error:
                # The driver is busy or has ended. `DriverWatch` handles that.
                _log.debug("progress_missing", job_id=attempt.claim.job_id, error=type(error).__name__)
                continue
            if progress != attempt.progress:
                attempt.progress = progress
                changed.append((attempt.claim, progress))
        for claim, progress in changed:
            # One job per transaction: the heartbeat locks the rows of all jobs in another order, which could cause a
            # deadlock on PostgreSQL.
            with self._database.write() as session:
                leases.save_progress(session, claim, progress, self._database.now(session))
