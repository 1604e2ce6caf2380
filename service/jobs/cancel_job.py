"""Asks for a job to be cancelled. A worker that runs it notices within moments; a queued job ends at once."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.errors import JobAlreadyFinishedError
from service.jobs.find import require_job
from service.jobs.views import Job
from service.spec import ends
from service.spec.status import JobStatus
from service.store import jobs
from service.store.session import Database
from service.store.tables import JobRow


def cancel_job(database: Database, tenant: str, job_id: str) -> Job:
    """The job, CANCELLED or CANCELLING. Asking again while it is CANCELLING changes nothing.

    Raises JobNotFoundError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_job(session, tenant, job_id, for_change=True)
        status = JobStatus(row.status)
        if status.is_terminal:
            raise JobAlreadyFinishedError(f"The job is {status.value}: there is nothing left to cancel.")
        if status is not JobStatus.CANCELLING:
            _move(session, row, status, now)
            session.refresh(row)
        return Job.of(row, now)


def _move(session: Session, row: JobRow, status: JobStatus, now: int) -> None:
    values: dict[str, object] = {"cancel_requested_at": now}
    target = JobStatus.CANCELLING
    if status is JobStatus.QUEUED:
        # No worker holds it: there is nobody to wait for.
        target = JobStatus.CANCELLED
        values |= {"finished_at": now, "error": ends.cancelled().model_dump(mode="json")}
    jobs.move_job(session, job_id=row.id, tenant=row.tenant, target=target, sources={status}, now=now, values=values)
