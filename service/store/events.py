"""What happened to jobs, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from service.store.tables import JobEventRow, table_of

# Nobody wants its id, which to ask for costs more than the row.
_INSERT = insert(table_of(JobEventRow)).inline()


def append_event(session: Session, *, job_id: str, tenant: str, now: int, type: str, data: dict[str, Any]) -> None:  # noqa: A002
    """Adds an event. `type` is `status`, `progress`, `attempt` or `plan`; `now` in milliseconds."""
    session.execute(_INSERT, {"job_id": job_id, "tenant": tenant, "at": now, "type": type, "data": data})


def events_after(session: Session, job_id: str, after: int, limit: int) -> Sequence[JobEventRow]:
    """At most `limit` events of a job whose id is greater than `after`, oldest first."""
    statement = (
        select(JobEventRow)
        .where(JobEventRow.job_id == job_id, JobEventRow.id > after)
        .order_by(JobEventRow.id)
        .limit(limit)
    )
    return session.scalars(statement).all()
