"""Looks a worker up for the other use cases."""

from __future__ import annotations

import re

from sqlalchemy.orm import Session

from service.errors import WorkerNotFoundError
from service.store import workers
from service.store.tables import WorkerRow

_ID = re.compile(r"[\x21-\x7e]{1,128}")


def require_worker(session: Session, worker_id: str, now: int, *, for_change: bool = False) -> WorkerRow:
    """The worker, if it was heard of lately; locked until the transaction ends where it is read `for_change`.

    Raises WorkerNotFoundError, also for an id that no worker can have.
    """
    row = None
    if _ID.fullmatch(worker_id):
        row = workers.find_worker(session, worker_id, now - workers.KEPT_MS, lock=for_change)
    if row is None:
        raise WorkerNotFoundError("No worker has this id; it may have ended. GET /v1/workers lists those there are.")
    return row
