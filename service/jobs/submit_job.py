"""Accepts a job: checks it, has it stored, and has it announced.

`Submissions` runs submissions in threads of their own: each may take a second of CPU time, and must delay neither reads
nor the end of the process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from service.broker.dispatch import JobAnnouncer
from service.config.processes import DaemonPool
from service.config.settings import Settings
from service.contract.enums import Mode, Queue
from service.contract.errors import IdempotencyKeyReusedError, QuotaError
from service.contract.job import JobSpec, with_old_names
from service.contract.options import Isolation
from service.contract.problems import SpecError
from service.data.roots import issues_of_sink, roots_of
from service.jobs.check_job import CheckedJob, check_job, posted_schemas
from service.jobs.limits import Room, explain_ms
from service.jobs.reports import require_comparable
from service.jobs.store_jobs import CheckedSubmission, JobWriter, KeyTakenError, StreamChangedError
from service.jobs.views import Job, QueueListeners, require_job
from service.sql.types.data_types import Schema
from service.store import jobs
from service.store.jobs import NewJob, SubmissionKey
from service.store.session import Database

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 32
"""A typical submission mostly waits for files and the database; the number of concurrent compilations is limited
elsewhere.
"""


class Submissions:
    """Runs submissions in a thread pool."""

    def __init__(self) -> None:
        self._pool = DaemonPool(_THREADS, "submission")

    async def run(self, submit: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Returns what `submit` returns, and raises what it raises."""
        call = partial(copy_context().run, submit, *args, **kwargs)
        return await asyncio.wrap_future(self._pool.submit(call))

    def close(self) -> None:
        """Drops submissions that have not started. Does not wait for running ones, which may hang in a directory
        listing.
        """
        self._pool.close()


@dataclass(frozen=True)
class Submission:
    """A job that a client posted. `idempotency_key` is empty if the client sent none."""

    tenant: str
    spec: JobSpec
    idempotency_key: str
    request_id: str | None
    kind: str = jobs.RUN


@dataclass(frozen=True)
class Accepted:
    """The job, and whether it had been submitted before with the same idempotency key."""

    job: Job
    replayed: bool


def submit_job(database: Database, announcer: JobAnnouncer, settings: Settings, submission: Submission) -> Accepted:
    """Checks the job against the files of its tables, stores it and notifies the workers.

    Raises SpecError for a job that cannot run, IdempotencyKeyReusedError for a key that was used with another body, and
    TooManyJobsError or TooManyExplanationsError if the tenant's limit is reached.
    """
    payload = _payload_sha256(submission) if submission.idempotency_key else ""
    # First: a repeated submission succeeds even if its files have been removed since.
    earlier = _find_earlier(database, settings, submission, payload)
    if earlier is not None:
        return earlier
    # Before the table files are read, which costs much more. The jobs are counted again when they are stored.
    with database.look() as session:
        room = Room(session, settings, partial(database.now, session))
        room.take(submission.tenant, submission.kind)
        require_comparable(session, submission.tenant, submission.spec.compare_with)
    try:
        job, queue = _check_and_store(database, settings, submission, payload)
    except (IntegrityError, KeyTakenError, QuotaError) as error:
        # Another request stored the same key between our read and our insert, and perhaps took the last place.
        earlier = _find_earlier(database, settings, submission, payload)
        if earlier is not None:
            return earlier
        if isinstance(error, KeyTakenError):
            # The other job is already deleted, and its key with it.
            return submit_job(database, announcer, settings, submission)
        raise
    announcer.announce(job.id, queue)
    return Accepted(job, replayed=False)


def _check_and_store(database: Database, settings: Settings, submission: Submission, payload: str) -> tuple[Job, Queue]:
    """Stores the job and returns it with its queue. Checks it again if a stream that it reads has changed since the
    check.
    """
    writer = JobWriter(database, settings)
    while True:
        streams = posted_schemas(database, submission.tenant, submission.spec)
        checked = _check(settings, submission, streams)
        queue = _queue(submission, checked.table_bytes, settings.api.long_job_bytes)
        # With the inferred columns: every run of the job uses them.
        dumped = checked.spec.dumped()
        try:
            stored = writer.store(_prepared(settings, submission, checked, queue, payload, streams, dumped))
        except StreamChangedError:
            continue
        # Stored parameters have another form, in which clients read them.
        return Job.of(stored.row, stored.at, stored, None if checked.spec.parameters else dumped), queue


def _check(settings: Settings, submission: Submission, streams: Mapping[str, Schema]) -> CheckedJob:
    spec = submission.spec
    sink_issues = issues_of_sink(spec.sink, settings.sink_roots)
    try:
        checked = check_job(spec, roots_of(settings), streams)
    except SpecError as error:
        raise SpecError([*error.issues, *sink_issues]) from None
    if sink_issues:
        raise SpecError(sink_issues)
    return checked


def _queue(submission: Submission, table_bytes: int, long_from_bytes: int) -> Queue:
    # A client waits for an explanation, and planning reads only a sample.
    if submission.kind == jobs.EXPLAIN:
        return Queue.SHORT
    # A continuous job occupies its worker permanently, and must not take a slot from batch jobs.
    if submission.spec.mode is Mode.CONTINUOUS:
        return Queue.STREAM
    return submission.spec.queue.resolve(table_bytes, long_from_bytes)


def _find_earlier(database: Database, settings: Settings, submission: Submission, payload: str) -> Accepted | None:
    if not submission.idempotency_key:
        return None
    with database.look() as session:
        return _replay(session, settings, submission, payload, database.now(session))


def _replay(session: Session, settings: Settings, submission: Submission, payload: str, now: int) -> Accepted | None:
    known = jobs.find_idempotency_key(session, tenant=submission.tenant, key=submission.idempotency_key, now=now)
    if known is None:
        return None
    if known.payload_sha256 != payload:
        raise IdempotencyKeyReusedError(
            "This Idempotency-Key was used with another body within the last 24 hours. Use a new key for a new job."
        )
    row = require_job(session, submission.tenant, known.job_id, with_spec=True)
    return Accepted(Job.of(row, now, QueueListeners(session, settings, now)), replayed=True)


def _prepared(
    settings: Settings,
    submission: Submission,
    checked: CheckedJob,
    queue: Queue,
    payload: str,
    streams: Mapping[str, Schema],
    dumped: dict[str, Any],
) -> CheckedSubmission:
    new = NewJob(
        id=str(uuid.uuid4()),
        tenant=submission.tenant,
        kind=submission.kind,
        name=submission.spec.title,
        spec=checked.spec.stored(dumped),
        request_id=submission.request_id,
        max_attempts=submission.spec.limits.max_attempts,
        timeout_ms=_timeout_ms(settings, submission),
        queue=queue,
        spec_version=checked.needs_version,
        # An explanation of a streaming job ends, and has no state.
        mode=Mode.BATCH if submission.kind == jobs.EXPLAIN else submission.spec.mode,
        # Planning reads only a sample.
        isolated=submission.kind == jobs.RUN and submission.spec.settings.isolation is Isolation.DRIVER,
    )
    key = SubmissionKey(new.tenant, submission.idempotency_key, payload, new.id) if submission.idempotency_key else None
    return CheckedSubmission(new, key, streams)


def _timeout_ms(settings: Settings, submission: Submission) -> int:
    if submission.kind == jobs.EXPLAIN:
        # The client waits no longer than this. The timeout also ends it if the API process cannot delete it.
        return explain_ms(settings)
    return (submission.spec.limits.timeout or timedelta(0)) // timedelta(milliseconds=1)


def _payload_sha256(submission: Submission) -> str:
    # White space, the order of keys and the spelling of settings do not matter. Fields that were not posted are left
    # out, so that a default that an upgrade adds does not change the hash; nor do new names of fields.
    posted = with_old_names(submission.spec.model_dump(mode="json", by_alias=True, exclude_unset=True))
    return hashlib.sha256(json.dumps([submission.kind, _without_empty(posted)], sort_keys=True).encode()).hexdigest()


def _without_empty(posted: Any) -> Any:
    if not isinstance(posted, dict):
        return posted
    pruned = {key: _without_empty(value) for key, value in posted.items()}
    return {key: value for key, value in pruned.items() if value != {}}
