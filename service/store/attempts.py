"""Attempts: one row for each try of a job, numbered by the fencing token of its claim."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, null, select, update
from sqlalchemy.orm import Session

from service.spec import ends
from service.spec.problem import Problem
from service.spec.status import AttemptStatus
from service.store.events import append_event
from service.store.session import NO_SYNC
from service.store.tables import AttemptRow, JobRow, StreamRow

_OPEN = (AttemptStatus.PLANNING.value, AttemptStatus.RUNNING.value)


def attempts_of(session: Session, job_id: str) -> Sequence[AttemptRow]:
    """The attempts of a job, oldest first."""
    return session.scalars(select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.fence)).all()


def crashed_attempts(session: Session, job_id: str) -> int:
    """How many attempts lost their worker or Spark driver: what the job's `max_attempts` bounds.

    Of a stream, those since it last got on: one that runs for months loses a worker now and then.
    """
    steady = select(StreamRow.steady_fence).where(StreamRow.job_id == job_id).scalar_subquery()
    statement = select(func.count()).where(
        AttemptRow.job_id == job_id,
        AttemptRow.status == AttemptStatus.CRASHED.value,
        AttemptRow.fence > func.coalesce(steady, 0),
    )
    return session.execute(statement).scalar_one()


def start_attempt(session: Session, *, job_id: str, tenant: str, fence: int, worker: str, now: int) -> None:
    """Adds an attempt in PLANNING, with an event."""
    status = AttemptStatus.PLANNING.value
    session.add(AttemptRow(job_id=job_id, tenant=tenant, fence=fence, status=status, worker=worker, started_at=now))
    _tell(session, job_id=job_id, tenant=tenant, fence=fence, status=status, now=now)


def mark_attempt_running(session: Session, job_id: str, fence: int) -> None:
    """PLANNING -> RUNNING; the job's own event tells of it."""
    session.execute(
        update(AttemptRow)
        .where(
            AttemptRow.job_id == job_id,
            AttemptRow.fence == fence,
            AttemptRow.status == AttemptStatus.PLANNING.value,
        )
        .values(status=AttemptStatus.RUNNING.value)
        .execution_options(**NO_SYNC)
    )


def end_attempt(
    session: Session,
    *,
    job_id: str,
    tenant: str,
    fence: int,
    status: AttemptStatus,
    error: Problem | None,
    now: int,
) -> None:
    """Ends an attempt that has not ended, with an event; one that has ended stays as it is."""
    ended = session.execute(
        update(AttemptRow)
        .where(AttemptRow.job_id == job_id, AttemptRow.fence == fence, AttemptRow.status.in_(_OPEN))
        .values(status=status.value, finished_at=now, error=null() if error is None else error.model_dump(mode="json"))
        .returning(AttemptRow.id)
        .execution_options(**NO_SYNC)
    ).scalar_one_or_none()
    if ended is not None:
        _tell(session, job_id=job_id, tenant=tenant, fence=fence, status=status.value, now=now)


def end_abandoned_attempt(session: Session, row: JobRow, now: int) -> None:
    """Ends the attempt of a job whose lease has run out, as that of a worker that gave no sign of life; does nothing
    where no worker had the job.
    """
    if row.lease_owner is None:
        return
    end_attempt(
        session,
        job_id=row.id,
        tenant=row.tenant,
        fence=row.fence,
        status=AttemptStatus.CRASHED,
        error=ends.lease_lost(row.lease_owner),
        now=now,
    )


def _tell(session: Session, *, job_id: str, tenant: str, fence: int, status: str, now: int) -> None:
    append_event(
        session, job_id=job_id, tenant=tenant, now=now, type="attempt", data={"attempt": fence, "status": status}
    )
