"""Cancels, stops and deletes jobs.

A worker that runs a job notices a cancel or stop request within seconds; a job without a worker ends at once.

`CancelledJobs` ends jobs that are CANCELLING and whose worker's lease has expired, so that they end even if no worker
runs the sweeper. Unlike the sweeper, it does not wait for workers that may have lost the database: a worker that
returns too late is refused because of its lease. The next purge removes the files of such a job.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import structlog
from sqlalchemy.orm import Session

from service.config.settings import Settings
from service.contract import problems
from service.contract.enums import JobStatus, Mode
from service.contract.errors import (
    JobAlreadyFinishedError,
    JobNotFinishedError,
    NotAStreamError,
)
from service.jobs.views import Job, QueueListeners, require_job, state_for_change
from service.results.directories import remove_job_directory
from service.store import jobs, streaming_jobs
from service.store.attempts import end_abandoned_attempt
from service.store.maintenance import end_cancelled, has_cancelled_to_end
from service.store.session import Database
from service.store.tables import JobRow
from service.store.transitions import NO_LEASE, move_locked_job

_log = structlog.get_logger(__name__)
_CHECK_INTERVAL_SECONDS = 2.0


def require_streaming(
    session: Session, tenant: str, job_id: str, *, for_change: bool = False, with_spec: bool = False
) -> JobRow:
    """As `require_job`, for a streaming job. Also raises NotAStreamError."""
    row = require_job(session, tenant, job_id, for_change=for_change, with_spec=with_spec)
    if row.mode == Mode.BATCH.value:
        raise NotAStreamError("The job is a batch job: only streaming jobs can be stopped and resumed.")
    return row


def cancel_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """Cancels a job and returns it, CANCELLED or CANCELLING. A job that is already CANCELLING does not change.

    Raises JobNotFoundError, JobStateUnknownError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_job(session, tenant, job_id, for_change=True, with_spec=True)
        status = state_for_change(row, now)
        if status is None:
            raise JobAlreadyFinishedError(f"The job is {row.status} and cannot be cancelled.")
        if status in {JobStatus.QUEUED, JobStatus.STOPPED}:
            _cancel_unheld_job(session, row, now)
        elif status is not JobStatus.CANCELLING:
            move_locked_job(session, row, JobStatus.CANCELLING, now, {"cancel_requested_at": now})
        session.refresh(row)
        return Job.of(row, now, QueueListeners(session, settings, now))


def _cancel_unheld_job(session: Session, row: JobRow, now: int) -> None:
    """Cancels a job that no worker holds. A worker that lost its lease cannot change the job any more."""
    end_abandoned_attempt(session, row, now)
    error = problems.cancelled().model_dump(mode="json")
    ended = {**NO_LEASE, "cancel_requested_at": now, "finished_at": now, "next_run_at": None, "error": error}
    move_locked_job(session, row, JobStatus.CANCELLED, now, ended)


class CancelledJobs:
    """Periodically ends CANCELLING jobs without a worker. Start it in a process's event loop; several processes may run
    it.
    """

    def __init__(self, database: Database, check_interval_seconds: float = _CHECK_INTERVAL_SECONDS) -> None:
        self._database = database
        self._check_interval_seconds = check_interval_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts the periodic check."""
        self._task = asyncio.create_task(self._check_periodically(), name="cancelled-jobs")

    async def stop(self) -> None:
        """Stops the periodic check."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def step(self) -> None:
        """Ends the jobs that qualify now. Raises database errors."""
        with self._database.read() as session:
            if not has_cancelled_to_end(session, self._database.now(session)):
                return
        with self._database.write() as session:
            ended = end_cancelled(session, self._database.now(session))
        for job_id in ended:
            _log.warning("cancelled_job_ended", job_id=job_id)

    async def _check_periodically(self) -> None:
        while True:
            await asyncio.sleep(self._check_interval_seconds)
            try:
                await asyncio.to_thread(self.step)
            except Exception as error:  # noqa: BLE001 - the next check may succeed
                _log.warning("cancelled_jobs_not_ended", error=type(error).__name__)


def delete_job(database: Database, results: Path, streams: Path, tenant: str, job_id: str) -> None:
    """Deletes a finished or stopped job, then every file below `results` and `streams` that its attempts wrote.

    Raises JobNotFoundError, JobStateUnknownError and, while the job may still change, JobNotFinishedError.
    """
    with database.write() as session:
        row = require_job(session, tenant, job_id, for_change=True)
        if row.status != JobStatus.STOPPED.value and state_for_change(row, database.now(session)) is not None:
            raise JobNotFinishedError(f"The job is {row.status}: cancel it first, and delete it after it has ended.")
        jobs.delete_job(session, row.id)
    # After the commit: a purge removes files without a job, but a job without its files could not serve its result.
    remove_job_directory(results, job_id)
    remove_job_directory(streams, job_id)


def stop_job(database: Database, settings: Settings, tenant: str, job_id: str) -> Job:
    """Requests a stop and returns the job: STOPPING or STOPPED, or CANCELLING if a cancel was requested.

    The worker stops the job after the current mini-batch. A repeated request changes nothing. Raises JobNotFoundError,
    NotAStreamError, JobStateUnknownError and, for a finished job, JobAlreadyFinishedError.
    """
    with database.write() as session:
        now = database.now(session)
        row = require_streaming(session, tenant, job_id, for_change=True, with_spec=True)
        if state_for_change(row, now) is None:
            raise JobAlreadyFinishedError(f"The job is {row.status} and cannot be stopped.")
        streaming_jobs.request_stop(session, row, now)
        session.refresh(row)
        return Job.of(row, now, QueueListeners(session, settings, now))
