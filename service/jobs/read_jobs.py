"""Reads jobs for all who ask at once: thousands poll, and a question to the database costs much more than its rows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from service.errors import JobNotFoundError
from service.jobs.find import is_job_id
from service.jobs.views import Job
from service.jobs.waiting import Listening
from service.settings import Settings
from service.store import jobs
from service.store.session import Database

_AT_ONCE = 50
"""Their specs may be large."""


@dataclass(frozen=True)
class JobKey:
    """A job as its tenant names it."""

    tenant: str
    job_id: str


def read_jobs(database: Database, settings: Settings, keys: Collection[JobKey]) -> Mapping[JobKey, Job]:
    """Those of the jobs that are there, as posted and as they stand."""
    ids = sorted({key.job_id for key in keys if is_job_id(key.job_id)})
    if not ids:
        return {}
    with database.look() as session:
        rows = {JobKey(row.tenant, row.id): row for row in jobs.find_jobs(session, ids)}
        now = database.now(session)
        listening = Listening(session, settings, now)
        return {key: Job.of(row, now, listening) for key, row in rows.items() if key in keys}


@dataclass(frozen=True, eq=False)
class _Asked:
    key: JobKey
    answer: asyncio.Future[Job]


class JobReader:
    """One question at a time; whoever comes meanwhile is answered by the next one, all of them together.

    So no answer is older than its question. For the one event loop in which it is used.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._asked: deque[_Asked] = deque()
        self._asking: asyncio.Task[None] | None = None

    async def read(self, key: JobKey) -> Job:
        """The job as it stands. Raises JobNotFoundError, also for an id that no job can have."""
        asked = _Asked(key, asyncio.get_running_loop().create_future())
        self._asked.append(asked)
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_on(), name="job-reader")
        return await asked.answer

    async def _ask_on(self) -> None:
        while self._asked:
            together = [self._asked.popleft() for _ in range(min(_AT_ONCE, len(self._asked)))]
            keys = {asked.key for asked in together}
            try:
                found = await asyncio.to_thread(read_jobs, self._database, self._settings, keys)
            except Exception as error:  # noqa: BLE001 - told to each who asked
                _answer(together, {}, error)
            else:
                _answer(together, found, None)


def _answer(together: Collection[_Asked], found: Mapping[JobKey, Job], error: Exception | None) -> None:
    for asked in together:
        if asked.answer.done():
            continue  # nobody waits for it any more
        if asked.key in found:
            asked.answer.set_result(found[asked.key])
        else:
            asked.answer.set_exception(error or JobNotFoundError("No job has this id; it may have been deleted."))
