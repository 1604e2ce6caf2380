"""Reads one worker."""

from __future__ import annotations

from service.jobs.find_worker import require_worker
from service.jobs.worker_views import Worker, workers_of
from service.store.session import Database


def get_worker(database: Database, tenant: str, worker_id: str, silence_ms: int) -> Worker:
    """The worker as it last described itself. Raises WorkerNotFoundError."""
    with database.read() as session:
        now = database.now(session)
        row = require_worker(session, worker_id, now)
        (worker,) = workers_of(session, [row], tenant, now, silence_ms)
    return worker
