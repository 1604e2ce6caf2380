"""Ends jobs that are CANCELLING and that no worker has any more, while no worker is there to sweep.

What the last worker had is shown as QUEUED once its lease has run out: another worker may take it. Of a job that is
CANCELLING nothing but its end is left to do, and the API can do that itself. It does not wait for workers that may
have missed the database, as sweepers do: one that lives after all, and comes too late, is refused by its lease. Files
of such a job are left to the next purge, which knows whose they are.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import structlog

from service.store.session import Database
from service.store.sweeping import end_cancelled, is_any_to_end

_log = structlog.get_logger(__name__)

_LOOK_SECONDS = 2.0


class CancelledJobs:
    """Looks for such jobs now and then. Start it in the event loop of a process; any number of processes may look."""

    def __init__(self, database: Database, look_seconds: float = _LOOK_SECONDS) -> None:
        self._database = database
        self._look_seconds = look_seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to look."""
        self._task = asyncio.create_task(self._look(), name="cancelled-jobs")

    async def stop(self) -> None:
        """Ends looking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def step(self) -> None:
        """Ends those that are there now. Raises what the database raises."""
        with self._database.read() as session:
            if not is_any_to_end(session, self._database.now(session)):
                return
        with self._database.write() as session:
            ended = end_cancelled(session, self._database.now(session))
        for job_id in ended:
            _log.warning("cancelled_job_ended", job_id=job_id)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._look_seconds)
            try:
                await asyncio.to_thread(self.step)
            except Exception as error:  # noqa: BLE001 - the next look may do
                _log.warning("cancelled_jobs_not_ended", error=type(error).__name__)
