"""Asks for a job to be cancelled. A worker that runs it notices within moments; one that no worker has ends at once."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.errors import JobAlreadyFinishedError
from service.jobs.find import require_job, state_for_change
from service.jobs.views import Job
from service.jobs.waiting import Listening
from service.settings import Settings
from service.spec import ends
from service.spec.status import JobStatus
from service.store.attempts import end_abandoned_attempt
from service.store.jobs import move_locked_job
from service.store.leases import NO_LEASE
from service.store.session import Database
from service.store.tables import JobRow


def cancel_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """The job, CANCELLED or CANCELLING. Asking again while it is CANCELLING changes nothing.

    Raises JobNotFoundError, JobStateUnknownError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_job(session, tenant, job_id, for_change=True, with_spec=True)
        status = state_for_change(row, now)
        if status is None:
            raise JobAlreadyFinishedError(f"The job is {row.status}: there is nothing left to cancel.")
        if status in {JobStatus.QUEUED, JobStatus.STOPPED}:
            _end(session, row, now)
        elif status is not JobStatus.CANCELLING:
            move_locked_job(session, row, JobStatus.CANCELLING, now, {"cancel_requested_at": now})
        session.refresh(row)
        return Job.of(row, now, Listening(session, settings, now))


def _end(session: Session, row: JobRow, now: int) -> None:
    """No worker holds the job: there is nobody to wait for. One that lost its lease changes nothing any more."""
    end_abandoned_attempt(session, row, now)
    error = ends.cancelled().model_dump(mode="json")
    ended = {**NO_LEASE, "cancel_requested_at": now, "finished_at": now, "next_run_at": None, "error": error}
    move_locked_job(session, row, JobStatus.CANCELLED, now, ended)
