"""Whose job a worker claims next: a tenant's of which the fewest jobs run, so that its long queue delays nobody else's.

Running are jobs and explanations on which workers have a lease. Streams do not count, since they occupy no slot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from service.contract.enums import JobStatus, Queue
from service.store import accounts, leases
from service.store.accounts import NO_QUOTA, Counted, Quota
from service.store.tables import JobRow
from service.store.transitions import LEASED_VALUES

_RUNS = (JobRow.status.in_(LEASED_VALUES), JobRow.queue != Queue.STREAM.value)
"""The conditions that a job is running, as above."""
_NOBODY: Mapping[str, int] = MappingProxyType({})


def next_waiting(
    session: Session,
    queues: Collection[str],
    quota: Quota = NO_QUOTA,
    excluded: ColumnElement[bool] | None = None,
    *,
    served: Mapping[str, int] = _NOBODY,
    only_idle: bool = False,
) -> str | None:
    """Returns the job in these queues to claim next in the same transaction; None if none waits.

    It is the oldest one of the tenant of which the fewest jobs run; among such tenants, of the one with the lowest
    number in `served`, which grows with every claim. `quota` and `excluded` are those of `leases.oldest_waiting`. With
    `only_idle`, leaves out tenants of which a job runs.
    """
    running = _running(session)
    waiting = leases.waiting_in(queues, quota, excluded)
    tenants = sorted(
        (running.get(tenant, 0), served.get(tenant, 0), submitted_at, tenant)
        for tenant, submitted_at in session.execute(_oldest_of_each(waiting))
    )
    for number, _, _, tenant in tenants:
        if only_idle and number:
            return None
        # None if other workers have just locked all of the tenant's jobs.
        job_id = leases.oldest_waiting(session, queues, quota, excluded, tenant=tenant)
        if job_id is not None and (not only_idle or is_of_idle_tenant(session, job_id)):
            return job_id
    return None


def is_idle_tenant_waiting(session: Session) -> bool:
    """Returns whether a job waits, in any queue, of a tenant of which nothing runs."""
    running = _running(session)
    waiting = leases.waiting_in([queue.value for queue in Queue], NO_QUOTA, None)
    return any(tenant not in running for tenant, _ in session.execute(_oldest_of_each(waiting)))


def is_of_idle_tenant(session: Session, job_id: str) -> bool:
    """Returns whether no job of the job's tenant runs. False if the job does not exist.

    Other workers that call this for the tenant wait until this transaction ends, so that one of them claims a job.
    """
    # Locks the job, then its tenant, as `accounts.has_room` does.
    tenant = session.scalar(select(JobRow.tenant).where(JobRow.id == job_id).with_for_update())
    if tenant is None:
        return False
    accounts.lock_count(session, tenant, Counted.CLAIMS)
    return session.execute(select(JobRow.id).where(JobRow.tenant == tenant, *_RUNS).limit(1)).first() is None


def _running(session: Session) -> dict[str, int]:
    """Returns the number of running jobs of each tenant that has any."""
    found = select(JobRow.tenant, func.count()).where(*_RUNS).group_by(JobRow.tenant)
    return {tenant: number for tenant, number in session.execute(found)}  # noqa: C416 - rows are no pairs for mypy


def _oldest_of_each(waiting: tuple[ColumnElement[bool], ...]) -> Select[str, int]:
    """Selects each tenant with a job that meets the conditions, and when the oldest of them was submitted.

    Finds a tenant after the other in the index, since a tenant may have thousands of waiting jobs.
    """
    queued = select(JobRow.tenant).where(JobRow.status == JobStatus.QUEUED.value).order_by(JobRow.tenant).limit(1)
    tenants = select(queued.scalar_subquery().label("tenant")).cte("tenants", recursive=True)
    following = queued.where(JobRow.tenant > tenants.c.tenant).correlate(tenants).scalar_subquery()
    tenants = tenants.union_all(select(following).where(tenants.c.tenant.is_not(None)))
    oldest = (
        select(JobRow.submitted_at)
        .where(JobRow.tenant == tenants.c.tenant, *waiting)
        .order_by(JobRow.submitted_at)
        .limit(1)
        .correlate(tenants)
        .scalar_subquery()
    )
    found = select(tenants.c.tenant, oldest.label("submitted_at")).where(tenants.c.tenant.is_not(None)).subquery()
    return select(found.c.tenant, found.c.submitted_at).where(found.c.submitted_at.is_not(None))
