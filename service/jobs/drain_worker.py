"""Asks a worker to end once its jobs have."""

from __future__ import annotations

from service.errors import WorkerSilentError
from service.jobs.find_worker import require_worker
from service.jobs.worker_views import Worker, workers_of
from service.spec.workers import WorkerStatus
from service.store.session import Database
from service.store.workers import request_drain, worker_status


def drain_worker(database: Database, tenant: str, worker_id: str, silence_ms: int) -> Worker:
    """Notes that the worker is to drain, which it learns with its next sign of life. Asking twice changes nothing.

    Raises WorkerNotFoundError, and WorkerSilentError for one that would not learn of it.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_worker(session, worker_id, now, for_change=True)
        if worker_status(row, now - silence_ms) is WorkerStatus.SILENT:
            raise WorkerSilentError(
                f"The worker was last heard of {(now - row.heartbeat_at) // 1000} s ago. If it hangs, end its process; "
                "its jobs are taken over by themselves."
            )
        request_drain(session, worker_id, now)
        session.refresh(row)
        (worker,) = workers_of(session, [row], tenant, now, silence_ms)
    return worker
