"""Worker processes and when each last gave a sign of life."""

from __future__ import annotations

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from service.store.session import NO_SYNC
from service.store.tables import WorkerRow


def beat(session: Session, worker: str, now: int, version: str) -> None:
    """Notes that the worker lives; adds it when it is new."""
    known = session.execute(
        update(WorkerRow)
        .where(WorkerRow.id == worker)
        .values(heartbeat_at=now)
        .returning(WorkerRow.id)
        .execution_options(**NO_SYNC)
    ).scalar_one_or_none()
    if known is None:
        session.add(WorkerRow(id=worker, started_at=now, heartbeat_at=now, version=version))


def leave(session: Session, worker: str) -> None:
    """Forgets a worker that stops."""
    session.execute(delete(WorkerRow).where(WorkerRow.id == worker).execution_options(**NO_SYNC))


def purge(session: Session, silent_since: int) -> None:
    """Forgets workers whose last sign of life is older than `silent_since`."""
    session.execute(delete(WorkerRow).where(WorkerRow.heartbeat_at < silent_since).execution_options(**NO_SYNC))


def count_alive(session: Session, heard_since: int) -> int:
    """How many workers gave a sign of life at `heard_since` or later."""
    return session.execute(
        select(func.count()).select_from(WorkerRow).where(WorkerRow.heartbeat_at >= heard_since)
    ).scalar_one()
