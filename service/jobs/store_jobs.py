"""Stores accepted jobs: those that wait in this process at the same time in one transaction.

It stores each job with its first event, its outbox message and its idempotency key. A job is acknowledged after the
commit. One that cannot be stored changes nothing for the others: a full tenant, a repeated key and a changed stream are
found before anything of the job is written. After any other error, each job gets a transaction of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from service.config.settings import Settings
from service.contract.errors import QuotaError
from service.jobs.limits import Room
from service.jobs.views import QueueListeners, WaitingFor
from service.sql.types.data_types import Schema
from service.store import accounts, events, input_streams, jobs
from service.store.accounts import Counted
from service.store.jobs import EXPLAIN, RUN, NewJob, QueuedJob, SubmissionKey
from service.store.session import Database, fault_of


class KeyTakenError(Exception):
    """The idempotency key belongs to another job of the same transaction."""


class StreamChangedError(Exception):
    """A stream that the job reads has other columns than those that the job was checked with, or is deleted."""


@dataclass(frozen=True)
class CheckedSubmission:
    """A job to be stored; `key` is its idempotency key. `streams` has the columns of the streams of posted rows that
    the job was checked with.
    """

    job: NewJob
    key: SubmissionKey | None = None
    streams: Mapping[str, Schema] = field(default_factory=dict[str, Schema])


@dataclass(frozen=True)
class Stored:
    """A stored job, the time of its transaction in milliseconds, and what it waited for then."""

    row: QueuedJob
    at: int
    waits_for: WaitingFor

    def waiting_for(self, _tenant: str, _queue: str) -> WaitingFor:
        """Returns what the job waits for."""
        return self.waits_for


class JobWriter:
    """Stores jobs for concurrent requests. Safe to share between threads: all writers of a `Database` form one."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    def store(self, submission: CheckedSubmission) -> Stored:
        """Returns the job once it is durable. Jobs that wait at the same time share a transaction, except those that
        may have to wait for the lock of another transaction.

        Raises TooManyJobsError or TooManyExplanationsError, KeyTakenError, IntegrityError if another process has stored
        the key, StreamChangedError, and errors of the database.
        """
        if not submission.streams and submission.job.kind == RUN:
            return self._database.grouped.run(_write, (self, submission))
        (stored,) = self.write([submission])
        if isinstance(stored, Exception):
            raise stored
        return stored

    def write(self, submissions: Sequence[CheckedSubmission]) -> list[Stored | Exception]:
        """Stores jobs in one transaction. Returns the job or the error of each."""
        try:
            return self._write_together(submissions)
        except Exception as error:
            if len(submissions) == 1:
                return [error]
            if fault_of(error) is not None:
                raise  # not because of one of the jobs
            return [one for each in submissions for one in self.write([each])]

    def _write_together(self, submissions: Sequence[CheckedSubmission]) -> list[Stored | Exception]:
        with self._database.write() as session:
            now = self._database.now(session)
            refused = self._refused(session, submissions, now)
            accepted = [one for place, one in enumerate(submissions) if place not in refused]
            if not accepted:
                return [refused[place] for place in range(len(submissions))]
            rows = iter(jobs.insert_jobs(session, [one.job for one in accepted], now))
            events.add_messages(session, [(one.job.id, one.job.tenant) for one in accepted], now)
            keys = [one.key for one in accepted if one.key is not None]
            if keys:
                jobs.save_idempotency_keys(session, keys, now)
            listening = QueueListeners(session, self._settings, now)
            stored = [Stored(row, now, listening.waiting_for(row.tenant, row.queue)) for row in rows]
        following = iter(stored)
        return [refused[place] if place in refused else next(following) for place in range(len(submissions))]

    def _refused(self, session: Session, submissions: Sequence[CheckedSubmission], now: int) -> dict[int, Exception]:
        """Returns the errors of those that must not be stored, by their place."""
        refused: dict[int, Exception] = {}
        streams = _locked_streams(session, submissions)
        if self._settings.limits.explanations:
            # Counted under a lock: a client waits for each, so there are few.
            for tenant in sorted({one.job.tenant for one in submissions if one.job.kind == EXPLAIN}):
                accounts.lock_count(session, tenant, Counted.EXPLANATIONS)
        room = Room(session, self._settings, lambda: now)
        keys: set[tuple[str, str]] = set()
        for place, one in enumerate(submissions):
            try:
                _check_streams(one, streams)
                _check_key(one, keys)
                room.take(one.job.tenant, one.job.kind)
            except (StreamChangedError, KeyTakenError, QuotaError) as error:
                refused[place] = error
            else:
                keys.update((one.key.tenant, one.key.key) for one in [one] if one.key is not None)
        return refused


def _write(waiting: Sequence[tuple[JobWriter, CheckedSubmission]]) -> list[Stored | Exception]:
    # All requests of a process have the same settings.
    return waiting[0][0].write([submission for _, submission in waiting])


def _locked_streams(session: Session, submissions: Sequence[CheckedSubmission]) -> Mapping[str, Mapping[str, Schema]]:
    """Returns the current columns of the streams that the jobs read, by tenant. Nobody deletes them before this
    transaction ends.
    """
    names: dict[str, set[str]] = defaultdict(set)
    for one in submissions:
        if one.streams:
            names[one.job.tenant].update(one.streams)
    # The same order in every transaction prevents deadlocks.
    return {tenant: input_streams.find_schemas(session, tenant, names[tenant], lock=True) for tenant in sorted(names)}


def _check_streams(one: CheckedSubmission, current: Mapping[str, Mapping[str, Schema]]) -> None:
    found = current.get(one.job.tenant, {})
    if any(found.get(name) != schema for name, schema in one.streams.items()):
        raise StreamChangedError


def _check_key(one: CheckedSubmission, taken: set[tuple[str, str]]) -> None:
    if one.key is not None and (one.key.tenant, one.key.key) in taken:
        raise KeyTakenError
