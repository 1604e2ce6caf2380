"""Waiting for jobs to change: one poller a process asks for all waiting requests at once.

A waiting request is a future: it holds no thread and no database session. While nobody waits, nothing is asked.

Reads jobs for all who ask at once: thousands poll, and a question to the database costs much more than its rows.

Lists jobs, newest first, page by page.

Reads what happened to a job.

Reads a job once it has changed, or at the end of the caller's patience.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from pydantic import Field

from service.config.settings import Settings
from service.contract.errors import InvalidCursorError, JobNotFoundError
from service.contract.model import Frozen
from service.jobs.views import (
    Job,
    JobSummary,
    Listening,
    decode_cursor,
    encode_cursor,
    is_job_id,
    require_job,
    timestamp,
)
from service.store import jobs
from service.store.jobs import JobFilter, JobPosition, events_after, has_finished
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


MAX_PAGE_SIZE = 200
"""A larger `page_size` is read as this."""


class JobPage(Frozen):
    """One page of a list of jobs."""

    jobs: tuple[JobSummary, ...]
    next_cursor: str = Field(description="Give it as `cursor` for the next page; empty on the last one.")


def list_jobs(
    database: Database, settings: Settings, tenant: str, wanted: JobFilter, cursor: str, page_size: int
) -> JobPage:
    """A page of at most `page_size` jobs from behind `cursor` (empty: from the newest on).

    Jobs submitted meanwhile do not shift later pages. Raises InvalidCursorError.
    """
    scope = _scope(wanted)
    limit = min(page_size, MAX_PAGE_SIZE)
    after = _position(cursor, scope) if cursor else None
    with database.look() as session:
        now = database.now(session)
        # One row more than asked for tells whether there is a next page.
        rows = jobs.list_jobs(session, tenant=tenant, wanted=wanted, after=after, limit=limit + 1, now=now)
        page = rows[:limit]
        more = len(rows) > limit
        listening = Listening(session, settings, now)
        return JobPage(
            jobs=tuple(JobSummary.of(row, now, listening) for row in page),
            next_cursor=encode_cursor([page[-1].submitted_at, page[-1].id], scope) if more else "",
        )


def _position(cursor: str, scope: str) -> JobPosition:
    submitted_at, job_id = decode_cursor(cursor, scope, (int, str))
    if not is_job_id(str(job_id)):
        raise InvalidCursorError("The cursor is not one that this service gave. Start without a cursor.")
    return JobPosition(int(submitted_at), str(job_id))


def _scope(wanted: JobFilter) -> str:
    statuses = ",".join(sorted(status.value for status in wanted.statuses))
    queue = "" if wanted.queue is None else f"{wanted.queue}|"
    return f"jobs|{statuses}|{wanted.submitted_after}|{wanted.submitted_before}|{queue}{wanted.name_prefix}"


EVENTS_AT_ONCE = 200


class JobEvent(Frozen):
    """One thing that happened to a job."""

    id: int = Field(description="Grows with time; give it as `Last-Event-ID` to go on behind it.")
    at: datetime
    type: str = Field(description="`status`, `progress`, `attempt` or `plan`; more may come.", examples=["status"])
    data: dict[str, Any] = Field(examples=[{"status": "RUNNING"}])


class EventPage(Frozen):
    """Some events of a job, oldest first."""

    events: tuple[JobEvent, ...]
    last_event_id: int = Field(description="Give it as `Last-Event-ID` to go on; as given when there is nothing new.")
    complete: bool = Field(description="Whether the job has finished and these are its last events.")


@dataclass(frozen=True)
class EventRead:
    """A page of events and the version of the job that it shows."""

    page: EventPage
    version: int


def read_events(database: Database, tenant: str, job_id: str, after: int) -> EventRead:
    """Events whose id is greater than `after`, at most `EVENTS_AT_ONCE`. Raises JobNotFoundError."""
    with database.look() as session:
        row = require_job(session, tenant, job_id)
        rows = events_after(session, row.id, after, EVENTS_AT_ONCE)
        page = EventPage(
            events=tuple(
                JobEvent(id=event.id, at=timestamp(event.at), type=event.type, data=event.data) for event in rows
            ),
            last_event_id=rows[-1].id if rows else after,
            complete=has_finished(row) and len(rows) < EVENTS_AT_ONCE,
        )
        return EventRead(page, row.version)


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
