"""What is stored together with a change of a job: events for clients, and the outbox of messages for the broker.

A message stays in the outbox until the broker has accepted it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.orm import Session

from service.store.tables import JobEventRow, OutboxRow, table_of

# `inline`: to fetch the generated id would cost more than the insert.
_INSERT_EVENT = insert(table_of(JobEventRow)).inline()
_OUTBOX = table_of(OutboxRow)
_INSERT_MESSAGE = insert(_OUTBOX).inline()
_DELETE_MESSAGES = delete(_OUTBOX).where(_OUTBOX.c.job_id.in_(bindparam("job_ids", expanding=True)))


def append_event(session: Session, *, job_id: str, tenant: str, now: int, type: str, data: dict[str, Any]) -> None:  # noqa: A002
    """Appends an event. `type` is `status`, `progress`, `attempt` or `plan`; `now` in milliseconds."""
    # Without the objects of the session, a statement takes a quarter less time.
    values = {"job_id": job_id, "tenant": tenant, "at": now, "type": type, "data": data}
    session.connection().execute(_INSERT_EVENT, values)


def add_first_events(session: Session, new_jobs: Iterable[tuple[str, str]], now: int, status: str) -> None:
    """Appends the event of its `status` to each of these new jobs, given by id and tenant."""
    same = {"at": now, "type": "status", "data": {"status": status}}
    values = [{"job_id": job_id, "tenant": tenant, **same} for job_id, tenant in new_jobs]
    session.connection().execute(_INSERT_EVENT, values)


def events_after(session: Session, job_id: str, after: int, limit: int) -> Sequence[JobEventRow]:
    """Returns at most `limit` events of a job whose id is greater than `after`, oldest first."""
    statement = select(JobEventRow).where(JobEventRow.job_id == job_id, JobEventRow.id > after)
    return session.scalars(statement.order_by(JobEventRow.id).limit(limit)).all()


def add_message(session: Session, *, job_id: str, tenant: str, now: int) -> None:
    """Stores that the job must be announced to workers."""
    add_messages(session, [(job_id, tenant)], now)


def add_messages(session: Session, to_announce: Iterable[tuple[str, str]], now: int) -> None:
    """Stores that these jobs, given by id and tenant, must be announced to workers."""
    values = [{"job_id": job_id, "tenant": tenant, "created_at": now} for job_id, tenant in to_announce]
    session.connection().execute(_INSERT_MESSAGE, values)


def delete_messages(session: Session, job_ids: Iterable[str]) -> None:
    """Deletes the messages of these jobs, which the broker has accepted."""
    session.connection().execute(_DELETE_MESSAGES, {"job_ids": list(job_ids)})
