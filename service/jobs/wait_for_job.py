"""Reads a job once it has changed, or at the end of the caller's patience."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from service.jobs.get_job import get_job
from service.jobs.views import Job
from service.jobs.watch import JobWatcher
from service.settings import Settings
from service.store.session import Database


async def wait_for_job(
    database: Database,
    settings: Settings,
    watcher: JobWatcher,
    tenant: str,
    job_id: str,
    *,
    is_known: Callable[[Job], bool],
    seconds: float,
) -> Job:
    """The job once it has finished, is at rest or is no longer as the caller knows it, else as it stands after
    `seconds`.

    Raises JobNotFoundError, also when the job is deleted meanwhile.
    """
    deadline = time.monotonic() + seconds
    while True:
        job = await asyncio.to_thread(get_job, database, settings, tenant, job_id)
        done = job.status.is_at_rest or not is_known(job)
        remaining = deadline - time.monotonic()
        if done or remaining <= 0:
            return job
        await watcher.wait_for_change(job_id, job.version, remaining)
