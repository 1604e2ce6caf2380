"""Keeps jobs moving when something was lost: a worker, a message, an asker. One worker at a time does it for all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from service.settings import WorkerSettings
from service.store import jobs, leaders, workers
from service.store.session import Database
from service.store.sweeping import sweep
from workers.result_files import remove_job

_log = structlog.get_logger(__name__)

_TASK = "sweep"
_EXPLAIN_KEPT_MS = 10 * 60 * 1000
_WORKER_KEPT_MS = 60 * 60 * 1000


class Sweeper:
    """One step looks at every job once, if this worker is the one to do it."""

    def __init__(
        self, database: Database, worker: str, settings: WorkerSettings, results: Path, ring: Callable[[str], object]
    ) -> None:
        self._database = database
        self._worker = worker
        self._results = results
        self._ring = ring
        self._ring_again_ms = round(settings.ring_again_seconds * 1000)
        # Two missed sweeps hand the task to another worker.
        self._term_ms = round(settings.sweep_seconds * 2500)

    def step(self) -> None:
        """Ends lost attempts, announces jobs again, removes what nobody needs; does nothing while another leads."""
        with self._database.write() as session:
            now = self._database.now(session)
            if not leaders.elect(session, _TASK, self._worker, now, self._term_ms):
                return
            found = sweep(session, now, ring_again_ms=self._ring_again_ms)
            workers.purge(session, now - _WORKER_KEPT_MS)
            jobs.delete_forgotten_explains(session, now - _EXPLAIN_KEPT_MS)
        for job_id in found.recovered:
            _log.warning("lost_attempt_recovered", job_id=job_id)
        for job_id in found.ring:
            self._ring(job_id)
        for _, job_id in found.ended:
            _log.warning("lost_job_ended", job_id=job_id)
            remove_job(self._results, job_id)

    def resign(self) -> None:
        """Lets another worker sweep at once."""
        with self._database.write() as session:
            leaders.resign(session, _TASK, self._worker)
