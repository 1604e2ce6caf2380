"""Reads one job."""

from __future__ import annotations

from service.jobs.find import require_job
from service.jobs.views import Job
from service.store.session import Database


def get_job(database: Database, tenant: str, job_id: str) -> Job:
    """The job as posted and as it stands. Raises JobNotFoundError."""
    with database.read() as session:
        return Job.of(require_job(session, tenant, job_id, with_spec=True), database.now(session))
