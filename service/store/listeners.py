"""Which workers listen to which queue, and how many jobs they could start now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import BigInteger, BindParameter, ColumnElement, bindparam, func, or_, select
from sqlalchemy.orm import Session

from service.spec.queues import Queue
from service.spec.status import LEASED, JobStatus
from service.spec.workers import SparkState
from service.store.jobs import RUN
from service.store.quotas import of_full_tenants
from service.store.tables import AttemptRow, JobRow, WorkerRow


def queues_listened_to(session: Session, heard_since: int) -> frozenset[str]:
    """The queues of the workers that gave a sign of life at `heard_since` (milliseconds) or later and take jobs."""
    found = session.scalars(_LISTENED_TO, {"heard_since": heard_since})
    return frozenset(queue for queues in found for queue in _split(queues))


def free_slots(session: Session, heard_since: int, concurrency: int) -> dict[str, int]:
    """How many jobs of each queue could start now; of a worker with two queues, all its free slots count for both.

    Queues that nobody listens to are left out. `concurrency` is taken for that of a worker which does not say it.
    """
    held = (
        select(JobRow.lease_owner.label("owner"), func.count().label("jobs"))
        # Streams stay with their worker beside its slots.
        .where(JobRow.status.in_([status.value for status in LEASED]), JobRow.queue != Queue.STREAM.value)
        .group_by(JobRow.lease_owner)
        .subquery()
    )
    rows = session.execute(
        select(WorkerRow.queues, WorkerRow.concurrency, func.coalesce(held.c.jobs, 0))
        .outerjoin(held, held.c.owner == WorkerRow.id)
        .where(*_takes_jobs(heard_since))
    )
    free: Counter[str] = Counter()
    for queues, slots, jobs in rows:
        for queue in _split(queues):
            free[queue] += max(0, (concurrency if slots is None else slots) - jobs)
    return dict(free)


def deaf_workers(session: Session, version: str, heard_since: int, since: int, most_running: int = 0) -> Sequence[str]:
    """Workers of `version`, by id, that live, have their Spark and a free slot, and took nothing since `since`
    (milliseconds) although a job has waited in a queue of theirs all the time: no message reaches them.

    Jobs that wait for something else count for nothing: streams have places of their own, jobs that lost an attempt may
    be kept apart from others, workers of another version may not know what a job asks for, of a tenant no more than
    `most_running` jobs run, or any number where that is 0, and explanations wait while others of their tenant are at
    work.
    """
    waiting: tuple[ColumnElement[bool], ...] = (
        JobRow.status == JobStatus.QUEUED.value,
        JobRow.kind == RUN,
        JobRow.queue != Queue.STREAM.value,
        JobRow.updated_at <= since,
        JobRow.cancel_requested_at.is_(None),
        JobRow.fence == 0,
    )
    if most_running:
        waiting = (*waiting, ~of_full_tenants(most_running))
    unheard = set(session.scalars(select(JobRow.queue).where(*waiting).distinct()))
    if not unheard:
        return ()
    held = select(func.count()).where(JobRow.lease_owner == WorkerRow.id, JobRow.queue != Queue.STREAM.value)
    took = select(AttemptRow.id).where(AttemptRow.worker == WorkerRow.id, AttemptRow.started_at > since)
    rows = session.execute(
        select(WorkerRow.id, WorkerRow.queues)
        .where(
            *_takes_jobs(heard_since),
            WorkerRow.spark_state == SparkState.READY.value,
            WorkerRow.version == version,
            WorkerRow.started_at <= since,
            held.correlate(WorkerRow).scalar_subquery() < func.coalesce(WorkerRow.concurrency, 1),
            ~took.correlate(WorkerRow).exists(),
        )
        .order_by(WorkerRow.started_at, WorkerRow.id)
    )
    return [worker for worker, queues in rows if unheard & set(_split(queues))]


def _takes_jobs(heard_since: int | BindParameter[int]) -> tuple[ColumnElement[bool], ...]:
    unavailable = SparkState.UNAVAILABLE.value
    return (
        WorkerRow.heartbeat_at >= heard_since,
        WorkerRow.drain_requested_at.is_(None),
        or_(WorkerRow.spark_state.is_(None), WorkerRow.spark_state != unavailable),
    )


_LISTENED_TO = select(WorkerRow.queues).where(*_takes_jobs(bindparam("heard_since", type_=BigInteger))).distinct()


def _split(queues: str | None) -> list[str]:
    # The version before knew one queue and said nothing of it.
    return [Queue.SHORT.value] if queues is None else queues.split(",")
