"""Lists the workers heard of lately."""

from __future__ import annotations

from service.jobs.worker_views import Worker, workers_of
from service.spec.model import Frozen
from service.store import workers
from service.store.session import Database


class WorkerList(Frozen):
    """All workers heard of within the last hour."""

    workers: tuple[Worker, ...]


def list_workers(database: Database, tenant: str, silence_ms: int) -> WorkerList:
    """Every worker that gave a sign of life within the hour, oldest first; those silent for `silence_ms` as such."""
    with database.read() as session:
        now = database.now(session)
        rows = workers.list_workers(session, now - workers.KEPT_MS)
        return WorkerList(workers=tuple(workers_of(session, rows, tenant, now, silence_ms)))
