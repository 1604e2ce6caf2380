"""Jobs that may be what kills the workers they run on, told by the attempts that they lost.

Whoever runs beside such a job loses an attempt with it, and would lose the last one with it too.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.spec.queues import Queue
from service.spec.status import AttemptStatus
from service.store.tables import AttemptRow, JobRow, StreamRow


def is_suspect() -> ColumnElement[bool]:
    """Whether a job has lost an attempt; a stream, whether it has since it last got on."""
    return _crashes() >= 1


def is_at_last_chance() -> ColumnElement[bool]:
    """Whether a suspect job is CRASHED with the next attempt that it loses. A continuous stream never is: it is STOPPED
    then, and may go on.
    """
    return (JobRow.queue != Queue.STREAM.value) & is_suspect() & (_crashes() >= JobRow.max_attempts - 1)


def holds_for(session: Session, job_id: str, condition: ColumnElement[bool]) -> bool:
    """Whether it holds for this job."""
    return session.execute(select(JobRow.id).where(JobRow.id == job_id, condition)).first() is not None


def _crashes() -> ColumnElement[int]:
    """As `crashed_attempts` counts them, of each job."""
    steady = select(StreamRow.steady_fence).where(StreamRow.job_id == JobRow.id).correlate(JobRow).scalar_subquery()
    return (
        select(func.count())
        .where(
            AttemptRow.job_id == JobRow.id,
            AttemptRow.status == AttemptStatus.CRASHED.value,
            AttemptRow.fence > func.coalesce(steady, 0),
        )
        .correlate(JobRow)
        .scalar_subquery()
    )
