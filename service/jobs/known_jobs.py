"""Jobs that were read recently, so that a poll of an unchanged job reads a few columns of its row and nothing else.

Every read queries the database. A job from the cache is returned only if its row still has the same version, and its
lease and the workers lead to the same state. So no answer is older than its request, whichever process changed the job.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from service.config.settings import Settings
from service.jobs.views import (
    Job,
    JobSummary,
    QueueListeners,
    StateColumns,
    SummaryColumns,
    Waiting,
    is_job_id,
    shown_state,
)
from service.store import jobs
from service.store.quick_reads import PostgresReads, QuickReads
from service.store.session import Database

_MAX_CACHED = 2048
_MAX_CACHED_BYTES = 16_384
"""A cache has at most this many jobs, without those whose JSON is longer: 32 MB of JSON at most."""

State = tuple[int, int, str, str | None]
"""The stored version of a job, the time of its last change, its effective status, and what it waits for.

A change of what clients see changes it.
"""


@dataclass(frozen=True)
class JobKey:
    """Identifies a job of a tenant."""

    tenant: str
    job_id: str


class _VersionColumns(StateColumns, Protocol):
    version: int
    updated_at: int


class KnownJobs:
    """A cache of jobs. Safe to share between threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[JobKey, tuple[State, Job]] = OrderedDict()
        self._lock = threading.Lock()

    def find_unchanged(self, reads: QuickReads, settings: Settings, key: JobKey) -> Job | None:
        """Returns a job that is in the cache and has not changed. None for all others, and if the read fails."""
        if key not in self._known:
            return None
        try:
            row, now = reads.job_state(key.job_id), reads.now()
            if row is None or row.tenant != key.tenant:
                return None
            return self._if_unchanged(
                key, _state(row, now, QueueListeners(reads.session, settings, now, reads.queues_listened_to))
            )
        except (sqlite3.Error, SQLAlchemyError):
            return None

    def read(
        self, database: Database, settings: Settings, keys: Collection[JobKey], reads: PostgresReads | None = None
    ) -> Mapping[JobKey, Job]:
        """Returns those of the jobs that exist, with spec and current state. Raises database errors."""
        valid = {key for key in keys if is_job_id(key.job_id)}
        unchanged = self._find_unchanged(reads, settings, valid) if reads is not None else {}
        others = valid.difference(unchanged)
        return {**unchanged, **self._read(database, settings, others)} if others else unchanged

    def _find_unchanged(self, reads: PostgresReads, settings: Settings, keys: Collection[JobKey]) -> dict[JobKey, Job]:
        """Does for several jobs on PostgreSQL what `find_unchanged` does on SQLite."""
        maybe = {key.job_id for key in keys if key in self._known}
        if not maybe or settings.limits.running_jobs:
            # The number of running jobs of a tenant is counted in a session.
            return {}
        try:
            rows, now = reads.job_states(maybe)
            listening = QueueListeners(None, settings, now, reads.queues_listened_to)
            shown = {JobKey(row.tenant, row.id): _state(row, now, listening) for row in rows}
        except (psycopg.Error, SQLAlchemyError):
            return {}
        found = {key: self._if_unchanged(key, shown[key]) for key in keys if key in shown}
        return {key: job for key, job in found.items() if job is not None}

    def _read(self, database: Database, settings: Settings, valid: set[JobKey]) -> Mapping[JobKey, Job]:
        with database.look() as session:
            now = database.now(session)
            listening = QueueListeners(session, settings, now)
            found: dict[JobKey, Job] = {}
            maybe = sorted({key.job_id for key in valid if key in self._known})
            for row in jobs.find_states(session, maybe) if maybe else ():
                key = JobKey(row.tenant, row.id)
                job = self._if_unchanged(key, _state(row, now, listening)) if key in valid else None
                if job is not None:
                    found[key] = job
            others = valid.difference(found)
            for stored in jobs.find_jobs(session, sorted({key.job_id for key in others})) if others else ():
                key = JobKey(stored.tenant, stored.id)
                if key in others:
                    found[key] = Job.of(stored, now, listening)
                    self._keep(key, _state(stored, now, listening), found[key])
            with self._lock:
                for key in valid.difference(found):
                    self._known.pop(key, None)
            return found

    def _if_unchanged(self, key: JobKey, state: State) -> Job | None:
        with self._lock:
            known = self._known.get(key)
            if known is None or known[0] != state:
                return None
            self._known.move_to_end(key)
            return known[1]

    def _keep(self, key: JobKey, state: State, job: Job) -> None:
        is_short = len(job.body) <= _MAX_CACHED_BYTES
        with self._lock:
            self._known.pop(key, None)
            if is_short:
                self._known[key] = (state, job)
            while len(self._known) > _MAX_CACHED:
                self._known.popitem(last=False)


class KnownSummaries:
    """A cache of the jobs of lists. Safe to share between threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[State, JobSummary]] = OrderedDict()
        self._lock = threading.Lock()

    def summary_of(self, row: SummaryColumns, now: int, listening: Waiting) -> JobSummary:
        """Returns the summary of a row that has just been read, in its effective state at `now` (milliseconds)."""
        state = _state(row, now, listening)
        with self._lock:
            known = self._known.get(row.id)
            if known is not None and known[0] == state:
                self._known.move_to_end(row.id)
                return known[1]
        summary = JobSummary.of(row, now, listening)
        if len(summary.body) <= _MAX_CACHED_BYTES:
            with self._lock:
                self._known[row.id] = (state, summary)
                self._known.move_to_end(row.id)
                while len(self._known) > _MAX_CACHED:
                    self._known.popitem(last=False)
        return summary


def _state(row: _VersionColumns, now: int, listening: Waiting) -> State:
    return row.version, row.updated_at, *shown_state(row, now, listening)
