"""Asks a streaming job to stop. Its worker ends it after the mini-batch at hand; one without a worker stops at once."""

from __future__ import annotations

from service.errors import JobAlreadyFinishedError
from service.jobs.find import state_for_change
from service.jobs.streaming import require_streaming
from service.jobs.views import Job
from service.jobs.waiting import Listening
from service.settings import Settings
from service.store import stream_orders
from service.store.session import Database


def stop_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """The job, STOPPING or STOPPED; CANCELLING where that was asked for. Asking again changes nothing.

    Raises JobNotFoundError, NotAStreamError, JobStateUnknownError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_streaming(session, tenant, job_id, for_change=True, with_spec=True)
        if state_for_change(row, now) is None:
            raise JobAlreadyFinishedError(f"The job is {row.status}: there is nothing left to stop.")
        stream_orders.request_stop(session, row, now)
        session.refresh(row)
        return Job.of(row, now, Listening(session, settings, now))
