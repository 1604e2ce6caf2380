"""Ends cancelled jobs whose worker was lost, even if no worker runs the sweeper.

These are jobs that are CANCELLING and whose lease has expired. Unlike the sweeper, the API does not wait for workers
that may have lost the database: a worker that returns too late cannot change the job without its lease. The next purge
removes the files of the job.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from service.store.maintenance import end_cancelled, has_cancelled_to_end
from service.store.session import Database

_log = structlog.get_logger(__name__)
_CHECK_INTERVAL_SECONDS = 2.0


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
