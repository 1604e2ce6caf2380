"""Reads jobs for many clients at once: lists, single jobs, long polling and events.

A query costs the database much more than its rows do, and thousands of clients poll. So `JobReader` batches concurrent
reads into one query, and `JobWatcher` polls once per process for all waiting requests. A waiting request is a future:
it holds no thread and no database session. The watcher sends no queries while no request waits nor, on SQLite, while
nothing is written.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import structlog
from pydantic import Field

from service.config.settings import Settings
from service.contract.errors import InvalidCursorError
from service.contract.model import Frozen
from service.jobs.known_jobs import JobKey, KnownJobs, KnownSummaries
from service.jobs.views import (
    Job,
    JobSummary,
    QueueListeners,
    decode_cursor,
    encode_cursor,
    is_job_id,
    no_job,
    require_job,
    timestamp,
)
from service.store import jobs
from service.store.events import events_after
from service.store.jobs import JobFilter, JobPosition, has_finished
from service.store.quick_reads import PostgresReads, QuickReads, open_quick_reads
from service.store.session import Database

_log = structlog.get_logger(__name__)
_READ_BATCH_SIZE = 50
"""Jobs read by one query. Their specs may be large."""
MAX_PAGE_SIZE = 200
"""A larger `page_size` is reduced to this."""
EVENTS_PAGE_SIZE = 200


_PAUSE_SHARE, _QUICK_PAUSE_SHARE = 0.1, 0.02
"""The pause between two polls, as a share of the time that the newest request has waited. The second is for SQLite,
which shows without a query whether anything was written.
"""

_LONGEST_WITHOUT_QUERY = 5.0
"""Seconds after which a poll sends a query in any case."""

_SHORTEST_PAUSE_SHARE = 0.1
"""The shortest pause, as a share of the longest one."""

_POLLING_SHARE = 0.1
"""The share of the time that polls may take. Thousands of waiting requests make a poll slow."""


@dataclass(frozen=True, eq=False)
class _Waiter:
    job_id: str
    known_version: int
    changed: asyncio.Future[None]
    since: float


class JobWatcher:
    """Polls the versions of jobs for waiting requests. Start it in the event loop in which the requests wait.

    It polls more often than every `interval_seconds` while a request has just begun to wait: a small job takes less.
    """

    def __init__(self, database: Database, interval_seconds: float) -> None:
        self._database = database
        self._interval = interval_seconds
        self._waiters: set[_Waiter] = set()
        self._polled: frozenset[_Waiter] = frozenset()
        """The waiters of the last query."""
        self._changes = -1
        """What `QuickReads.changes` returned before that query."""
        self._queried_at = 0.0
        self._arrived = asyncio.Event()
        self._open = ExitStack()
        self._quick: QuickReads | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts polling; the watcher is idle while no request waits."""
        self._quick = self._open.enter_context(open_quick_reads(self._database))
        self._task = asyncio.create_task(self._poll(), name="job-watcher")

    async def stop(self) -> None:
        """Stops polling, and wakes all waiting requests as if their jobs had changed."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._quick = None
        self._open.close()
        for waiter in self._waiters:
            _wake(waiter)

    async def wait_for_change(self, job_id: str, known_version: int, seconds: float) -> bool:
        """Waits until the job's version differs from `known_version` or the job is deleted. Returns False after a
        timeout.
        """
        waiter = _Waiter(job_id, known_version, asyncio.get_running_loop().create_future(), time.monotonic())
        self._waiters.add(waiter)
        self._arrived.set()
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
                self._arrived.clear()
                await self._arrived.wait()
            begun = time.monotonic()
            try:
                if self._may_have_changed():
                    wanted = {waiter.job_id for waiter in self._waiters}
                    versions = await asyncio.to_thread(self._read_versions, wanted)
                    self._wake_changed(versions, wanted)
            except Exception as error:  # noqa: BLE001 - logged below
                # The poller must survive any error, since all requests depend on it; the next round may succeed.
                # Waiting requests get the error themselves when they read the job.
                _log.warning("poll_failed", error=type(error).__name__)
                self._polled = frozenset()
            await self._pause(time.monotonic() - begun)

    def _may_have_changed(self) -> bool:
        """Whether a job may have changed since the last poll. SQLite says whether anything has been written."""
        if self._quick is None:
            return True
        try:
            changes = self._quick.changes()
        except sqlite3.Error:
            return True
        waiters, now = frozenset(self._waiters), time.monotonic()
        # A connection does not notice that the file was replaced by a backup.
        is_recent = now - self._queried_at < _LONGEST_WITHOUT_QUERY
        if is_recent and changes == self._changes and waiters <= self._polled:
            return False
        self._changes, self._polled, self._queried_at = changes, waiters, now
        return True

    async def _pause(self, seconds: float) -> None:
        """Waits before the next poll, after one that took `seconds`; not longer if another request begins to wait."""
        shortest = min(self._interval, max(_SHORTEST_PAUSE_SHARE * self._interval, seconds / _POLLING_SHARE))
        await asyncio.sleep(shortest)
        self._arrived.clear()
        now = time.monotonic()
        newest = min((now - waiter.since for waiter in self._waiters), default=0.0)
        share = _PAUSE_SHARE if self._quick is None else _QUICK_PAUSE_SHARE
        rest = min(self._interval, share * newest) - shortest
        if rest > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._arrived.wait()

    def _read_versions(self, job_ids: set[str]) -> Mapping[str, int]:
        with self._database.look() as session:
            return jobs.read_versions(session, job_ids)

    def _wake_changed(self, versions: Mapping[str, int], polled: set[str]) -> None:
        for waiter in self._waiters:
            # A request that arrived after the query began is handled in the next round.
            if waiter.job_id in polled and versions.get(waiter.job_id) != waiter.known_version:
                _wake(waiter)


def _wake(waiter: _Waiter) -> None:
    if not waiter.changed.done():
        waiter.changed.set_result(None)


@dataclass(frozen=True, eq=False)
class _PendingRead:
    key: JobKey
    answer: asyncio.Future[Job]


class JobReader:
    """Reads jobs with one query at a time; all reads that arrive during a query share the next one.

    A read is therefore never answered with data that is older than the request. Use it in one event loop.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._known = KnownJobs()
        self._open = ExitStack()
        self._quick = self._open.enter_context(open_quick_reads(database))
        self._postgres = PostgresReads(database) if self._quick is None else None
        self._pending: deque[_PendingRead] = deque()
        self._reading: asyncio.Task[None] | None = None

    async def read(self, key: JobKey) -> Job:
        """Returns the job's current state. Raises JobNotFoundError, also for an invalid id."""
        if self._quick is not None:
            unchanged = self._known.find_unchanged(self._quick, self._settings, key)
            if unchanged is not None:
                return unchanged
        pending = _PendingRead(key, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read_pending(), name="job-reader")
        return await pending.answer

    def close(self) -> None:
        """Closes the connection for quick reads. No read may be running."""
        self._quick = None
        self._open.close()
        if self._postgres is not None:
            self._postgres.close()

    async def _read_pending(self) -> None:
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(_READ_BATCH_SIZE, len(self._pending)))]
            keys = {pending.key for pending in batch}
            try:
                found = await asyncio.to_thread(self._known.read, self._database, self._settings, keys, self._postgres)
            except Exception as error:  # noqa: BLE001 - raised to each caller
                _answer(batch, {}, error)
            else:
                _answer(batch, found, None)


def _answer(batch: Collection[_PendingRead], found: Mapping[JobKey, Job], error: Exception | None) -> None:
    for pending in batch:
        if pending.answer.done():
            continue  # the caller no longer waits
        if pending.key in found:
            pending.answer.set_result(found[pending.key])
        else:
            pending.answer.set_exception(error or no_job(pending.key.job_id))


class JobPage(Frozen):
    """One page of a list of jobs."""

    jobs: tuple[JobSummary, ...]
    next_cursor: str = Field(description="The `cursor` of the next page; empty on the last page.")

    @cached_property
    def body(self) -> bytes:
        """The JSON of the page, made of that of its jobs, which several pages share."""
        return b'{"jobs":[%s],"next_cursor":%s}' % (
            b",".join(job.body for job in self.jobs),
            json.dumps(self.next_cursor).encode(),
        )


def list_jobs(
    database: Database,
    settings: Settings,
    tenant: str,
    wanted: JobFilter,
    cursor: str,
    page_size: int,
    known: KnownSummaries | None = None,
) -> JobPage:
    """Returns a page of at most `page_size` jobs, newest first, that follow `cursor`; an empty cursor starts at the
    newest. `known` has jobs of earlier pages, which are used as long as they are current.

    Jobs that are submitted later do not shift the following pages. Raises InvalidCursorError.
    """
    scope = _scope(wanted)
    limit = min(page_size, MAX_PAGE_SIZE)
    after = _position(cursor, scope) if cursor else None
    with database.look() as session:
        now = database.now(session)
        # One extra row shows whether there is a next page.
        rows = jobs.list_jobs(session, tenant=tenant, wanted=wanted, after=after, limit=limit + 1, now=now)
        page = rows[:limit]
        more = len(rows) > limit
        listening = QueueListeners(session, settings, now)
        summaries = KnownSummaries() if known is None else known
        # The summaries are valid: to validate them again would take as long as the query.
        return JobPage.model_construct(
            jobs=tuple(summaries.summary_of(row, now, listening) for row in page),
            next_cursor=encode_cursor([page[-1].submitted_at, page[-1].id], scope) if more else "",
        )


def _position(cursor: str, scope: str) -> JobPosition:
    submitted_at, job_id = decode_cursor(cursor, scope, (int, str))
    if not is_job_id(str(job_id)):
        raise InvalidCursorError("The cursor is invalid. Start without a cursor.")
    return JobPosition(int(submitted_at), str(job_id))


def _scope(wanted: JobFilter) -> str:
    statuses = ",".join(sorted(status.value for status in wanted.statuses))
    queue = "" if wanted.queue is None else f"{wanted.queue}|"
    id_prefix = f"{wanted.id_prefix}|" if wanted.id_prefix else ""
    return f"jobs|{statuses}|{wanted.submitted_after}|{wanted.submitted_before}|{queue}{id_prefix}{wanted.name_prefix}"


class JobEvent(Frozen):
    """One event of a job."""

    id: int = Field(description="Increases with time; pass it as `Last-Event-ID` to continue after this event.")
    at: datetime
    type: str = Field(
        description="`status`, `progress`, `attempt` or `plan`; later versions may add more.", examples=["status"]
    )
    data: dict[str, Any] = Field(examples=[{"status": "RUNNING"}])


class EventPage(Frozen):
    """Some events of a job, oldest first."""

    events: tuple[JobEvent, ...]
    last_event_id: int = Field(description="Pass it as `Last-Event-ID` to continue; unchanged if nothing is new.")
    complete: bool = Field(description="True if the job has finished and these are its last events.")


@dataclass(frozen=True)
class EventRead:
    """A page of events, and the job's version at the time of the read."""

    page: EventPage
    version: int


def read_events(database: Database, tenant: str, job_id: str, after: int) -> EventRead:
    """Returns at most `EVENTS_PAGE_SIZE` events whose id is greater than `after`. Raises JobNotFoundError."""
    with database.look() as session:
        row = require_job(session, tenant, job_id)
        rows = events_after(session, row.id, after, EVENTS_PAGE_SIZE)
        page = EventPage(
            events=tuple(
                JobEvent(id=event.id, at=timestamp(event.at), type=event.type, data=event.data) for event in rows
            ),
            last_event_id=rows[-1].id if rows else after,
            complete=has_finished(row) and len(rows) < EVENTS_PAGE_SIZE,
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
    """Returns the job once it has finished, is STOPPED, or `is_known` is False for it; otherwise its state after
    `seconds`.

    Raises JobNotFoundError, also if the job is deleted in the meantime.
    """
    if not seconds:
        # `is_known` would serialize the job, as the answer does.
        return await reader.read(key)
    deadline = time.monotonic() + seconds
    while True:
        job = await reader.read(key)
        done = job.is_at_rest or not is_known(job)
        remaining = deadline - time.monotonic()
        if done or remaining <= 0:
            return job
        await watcher.wait_for_change(key.job_id, job.version, remaining)
