"""Deletes a job at rest with its plan, metrics, events, result files and state."""

from __future__ import annotations

from pathlib import Path

from service.errors import JobNotFinishedError
from service.jobs.find import require_job, state_for_change
from service.results.directories import remove_job_directory
from service.spec.status import JobStatus
from service.store import jobs
from service.store.session import Database


def delete_job(database: Database, results: Path, streams: Path, tenant: str, job_id: str) -> None:
    """Removes the job, then every file below `results` and `streams` that its attempts wrote.

    Raises JobNotFoundError, JobStateUnknownError and, while the job may still change, JobNotFinishedError.
    """
    with database.write() as session:
        row = require_job(session, tenant, job_id, for_change=True)
        if row.status != JobStatus.STOPPED.value and state_for_change(row, database.now(session)) is not None:
            raise JobNotFinishedError(f"The job is {row.status}: cancel it first, and delete it when it has ended.")
        jobs.delete_job(session, row.id)
    # After the commit: files without a job are garbage, a job without its files would be a broken promise.
    remove_job_directory(results, job_id)
    remove_job_directory(streams, job_id)
