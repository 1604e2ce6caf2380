"""Reads one job."""

from __future__ import annotations

from service.jobs.find import require_job
from service.jobs.views import Job
from service.jobs.waiting import Listening
from service.settings import Settings
from service.store.session import Database


def get_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """The job as posted and as it stands. Raises JobNotFoundError."""
    with database.read() as session:
        row = require_job(session, tenant, job_id, with_spec=True)
        now = database.now(session)
        return Job.of(row, now, Listening(session, settings, now))
