"""Messages owed to the broker. A row stays until the broker took its message."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import delete, insert
from sqlalchemy.orm import Session

from service.store.tables import OutboxRow, table_of

_INSERT = insert(table_of(OutboxRow)).inline()


def owe_message(session: Session, *, job_id: str, tenant: str, now: int) -> None:
    """Notes, with the job itself, that workers must be told of it."""
    session.execute(_INSERT, {"job_id": job_id, "tenant": tenant, "created_at": now})


def settle_messages(session: Session, job_ids: Iterable[str]) -> None:
    """Forgets the messages that were sent."""
    session.execute(delete(OutboxRow).where(OutboxRow.job_id.in_(list(job_ids))))
