"""How much of the service a tenant takes, against how much it may.

Explanations do not count: somebody waits for each, and it ends within seconds. Streams are counted apart from jobs that
end by themselves.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Integer, Select, bindparam, func, select, text
from sqlalchemy.orm import Session

from service.spec.queues import Queue
from service.spec.status import LEASED, JobStatus
from service.store.jobs import RUN
from service.store.tables import JobRow

_LEASED = tuple(sorted(status.value for status in LEASED))
_LOCK_SPACE = 0x65766B
"""Tells this lock from others on the same database server: any number does that nobody else takes."""

# Built once: every submission asks.
_WAITING = select(func.count()).select_from(
    select(JobRow.id)
    .where(JobRow.tenant == bindparam("tenant"), JobRow.status == JobStatus.QUEUED.value, JobRow.kind == RUN)
    .limit(bindparam("at_most", type_=Integer))
    .subquery()
)


def count_waiting(session: Session, tenant: str, at_most: int) -> int:
    """How many jobs of the tenant wait for a worker; counted no further than `at_most`."""
    return session.execute(_WAITING, {"tenant": tenant, "at_most": at_most}).scalar_one()


def is_full(session: Session, tenant: str, queue: str, most_running: int) -> bool:
    """Whether as many jobs of the tenant are with workers as may be, of those that `queue` counts among."""
    return session.execute(_full(most_running, queue).where(JobRow.tenant == tenant)).first() is not None


def has_room(session: Session, job_id: str, most_running: int) -> bool:
    """Whether the job's tenant may have one more with a worker. Nobody else claims one of the tenant's until this
    transaction ends.
    """
    # The job first, then its tenant: two that claim would else wait for each other.
    looked_at = select(JobRow.tenant, JobRow.queue, JobRow.kind).where(JobRow.id == job_id)
    found = session.execute(looked_at.with_for_update()).one_or_none()
    if found is None or found.kind != RUN:
        return True
    _lock_claims(session, found.tenant)
    return not is_full(session, found.tenant, found.queue, most_running)


def of_full_tenants(most_running: int) -> ColumnElement[bool]:
    """Whether a job is one that must wait for another of its tenant to end."""
    streams, others = (
        JobRow.tenant.in_(_full(most_running, queue)) for queue in (Queue.STREAM.value, Queue.SHORT.value)
    )
    return (JobRow.kind == RUN) & ((_is_stream() & streams) | (~_is_stream() & others))


def _full(most_running: int, queue: str) -> Select[str]:
    counted = _is_stream() if queue == Queue.STREAM.value else ~_is_stream()
    return (
        select(JobRow.tenant)
        .where(JobRow.status.in_(_LEASED), JobRow.kind == RUN, counted)
        .group_by(JobRow.tenant)
        .having(func.count() >= most_running)
    )


def _is_stream() -> ColumnElement[bool]:
    return JobRow.queue == Queue.STREAM.value


def _lock_claims(session: Session, tenant: str) -> None:
    # On SQLite, one transaction writes at a time anyway.
    if session.get_bind().dialect.name == "postgresql":
        statement = text("SELECT pg_advisory_xact_lock(:space, hashtext(:tenant))")
        session.execute(statement, {"space": _LOCK_SPACE, "tenant": tenant})
