"""Waiting for jobs to change: one poller a process asks for all waiting requests at once.

A waiting request is a future: it holds no thread and no database session. While nobody waits, nothing is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from service.store import jobs
from service.store.session import Database

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, eq=False)
class _Waiter:
    job_id: str
    known_version: int
    changed: asyncio.Future[None]


class JobWatcher:
    """The poller. Start it in the event loop in which the requests wait."""

    def __init__(self, database: Database, interval_seconds: float) -> None:
        self._database = database
        self._interval = interval_seconds
        self._waiters: set[_Waiter] = set()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to poll, whenever somebody waits."""
        self._task = asyncio.create_task(self._poll(), name="job-watcher")

    async def stop(self) -> None:
        """Ends polling; whoever still waits is told that something may have changed."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        for waiter in self._waiters:
            _wake(waiter)

    async def wait_for_change(self, job_id: str, known_version: int, seconds: float) -> bool:
        """Waits until the job's version is not `known_version`, or the job is gone; False when the time is over."""
        waiter = _Waiter(job_id, known_version, asyncio.get_running_loop().create_future())
        self._waiters.add(waiter)
        self._wanted.set()
        try:
            async with asyncio.timeout(seconds):
                await waiter.changed
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
        return True

    async def _poll(self) -> None:
        while True:
            if not self._waiters:
                self._wanted.clear()
                await self._wanted.wait()
            wanted = {waiter.job_id for waiter in self._waiters}
            try:
                versions = await asyncio.to_thread(self._read_versions, wanted)
                self._wake_changed(versions, wanted)
            except Exception as error:  # noqa: BLE001 - told below
                # Whatever it was, the next round may do: without a poller, everybody would wait in vain. The waiting
                # requests notice by themselves, when they read the job.
                _log.warning("poll_failed", error=type(error).__name__)
            await asyncio.sleep(self._interval)

    def _read_versions(self, job_ids: set[str]) -> Mapping[str, int]:
        with self._database.look() as session:
            return jobs.read_versions(session, job_ids)

    def _wake_changed(self, versions: Mapping[str, int], asked: set[str]) -> None:
        for waiter in self._waiters:
            # Who came after the question was asked is answered by the next one.
            if waiter.job_id in asked and versions.get(waiter.job_id) != waiter.known_version:
                _wake(waiter)


def _wake(waiter: _Waiter) -> None:
    if not waiter.changed.done():
        waiter.changed.set_result(None)
