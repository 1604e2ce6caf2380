"""Reads a job once it has changed, or at the end of the caller's patience."""

from __future__ import annotations

import time
from collections.abc import Callable

from service.jobs.read_jobs import JobKey, JobReader
from service.jobs.views import Job
from service.jobs.watch import JobWatcher


async def wait_for_job(
    reader: JobReader,
    watcher: JobWatcher,
    key: JobKey,
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
        job = await reader.read(key)
        done = job.is_at_rest or not is_known(job)
        remaining = deadline - time.monotonic()
        if done or remaining <= 0:
            return job
        await watcher.wait_for_change(key.job_id, job.version, remaining)
