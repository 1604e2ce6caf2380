"""Jobs: insert, find, list, change the stored spec, delete; and the idempotency keys of their submissions.

For 24 hours, a submission that is repeated with the same key of a tenant creates no second job.

`transitions` changes the state of jobs, `leases` has the claims of workers, `publication` the results.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy import (
    BigInteger,
    Integer,
    Row,
    Select,
    String,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import Session, defer

from service.contract.enums import JobStatus, Mode, Queue, known_status
from service.contract.job import SPEC_VERSION
from service.store.events import add_first_events
from service.store.tables import IdempotencyKeyRow, JobRow, table_of

RUN = "run"
"""`jobs.kind` of the jobs that clients submit."""

EXPLAIN = "explain"
"""`jobs.kind` of an explanation: planned only, never listed, and removed once answered."""

LONGEST_LEASE_MS = 3_600_000
"""The longest lease that the settings allow. A lease that ends later was given before the database's clock was set
back, and counts as expired."""

WITHOUT_LEASE = {
    JobStatus.PLANNING: JobStatus.QUEUED,
    JobStatus.RUNNING: JobStatus.QUEUED,
    JobStatus.STOPPING: JobStatus.STOPPED,
}
"""Stored status -> effective status once the lease has expired."""

IDS_PER_QUERY = 500
_EXPLAIN_KEPT_MS = 10 * 60 * 1000  # longer than any client may wait
_WITHOUT_SPEC = defer(JobRow.spec, raiseload=True)
# Built once: clients poll with these statements.
_INSERT_JOB = insert(table_of(JobRow)).inline()
_ONE = select(JobRow).where(
    JobRow.id == bindparam("job_id"), JobRow.tenant == bindparam("tenant"), JobRow.kind == bindparam("kind")
)
_ONE_WITHOUT_SPEC = _ONE.options(_WITHOUT_SPEC)
STATES = select(
    JobRow.id,
    JobRow.tenant,
    JobRow.version,
    JobRow.updated_at,
    JobRow.status,
    JobRow.queue,
    JobRow.lease_expires_at,
    JobRow.next_run_at,
).where(JobRow.kind == RUN)
"""The columns of jobs, of any tenant, that decide whether a job has changed."""
_STATES_OF_SOME = STATES.where(JobRow.id.in_(bindparam("job_ids", expanding=True)))
STATE_OF_ONE = STATES.where(JobRow.id == bindparam("job_id"))
_SUMMARIES = select(
    JobRow.id,
    JobRow.tenant,
    JobRow.name,
    JobRow.mode,
    JobRow.status,
    JobRow.version,
    JobRow.queue,
    JobRow.fence,
    JobRow.submitted_at,
    JobRow.updated_at,
    JobRow.started_at,
    JobRow.finished_at,
    JobRow.stop_requested_at,
    JobRow.next_run_at,
    JobRow.lease_expires_at,
    JobRow.progress,
    JobRow.error,
    JobRow.result_rows,
    JobRow.result_bytes,
    JobRow.request_id,
)
# Lists without a filter use the same object again: another one would have its columns compared with the cached one's.
_PAGE = (
    _SUMMARIES.where(JobRow.tenant == bindparam("tenant"), JobRow.kind == RUN)
    .order_by(JobRow.submitted_at.desc(), JobRow.id.desc())
    .limit(bindparam("at_most", type_=Integer))
)
_NEXT_PAGE = _PAGE.where(
    tuple_(JobRow.submitted_at, JobRow.id)
    < tuple_(bindparam("submitted_at", type_=BigInteger), bindparam("after", type_=String))
)
_SOME = select(JobRow).where(JobRow.id.in_(bindparam("job_ids", expanding=True)), JobRow.kind == RUN)

_KEYS = table_of(IdempotencyKeyRow)
_INSERT_KEY = insert(_KEYS).inline()
_DELETE_EXPIRED_KEY = delete(_KEYS).where(
    _KEYS.c.tenant == bindparam("of"), _KEYS.c.key == bindparam("named"), _KEYS.c.expires_at <= bindparam("now")
)

KEY_KEPT_MS = 24 * 3600 * 1000
"""How long an idempotency key is stored."""


@dataclass(frozen=True)
class NewJob:
    """An accepted job. `spec` is its canonical JSON in the format `spec_version`.

    `timeout_ms` counts from the start; 0 for a job without a limit.
    """

    id: str
    tenant: str
    kind: str
    name: str
    spec: dict[str, Any]
    request_id: str | None
    max_attempts: int
    timeout_ms: int
    queue: Queue = Queue.SHORT
    spec_version: int = SPEC_VERSION
    mode: Mode = Mode.BATCH
    isolated: bool = False
    """Whether it runs in a Spark driver of its own."""


@dataclass(slots=True)
class QueuedJob:
    """The columns that clients see of a job that has just been stored."""

    id: str
    tenant: str
    name: str
    mode: str
    queue: str
    request_id: str | None
    spec: dict[str, Any]
    submitted_at: int
    updated_at: int
    status: str = JobStatus.QUEUED.value
    version: int = 1
    fence: int = 0
    started_at: int | None = None
    finished_at: int | None = None
    stop_requested_at: int | None = None
    next_run_at: int | None = None
    lease_expires_at: int | None = None
    progress: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    result_rows: int | None = None
    result_bytes: int | None = None


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a list contains. Times in milliseconds, both ends excluded; an empty field excludes nothing."""

    statuses: frozenset[JobStatus] = frozenset()
    name_prefix: str = ""
    id_prefix: str = ""
    submitted_after: int | None = None
    submitted_before: int | None = None
    queue: Queue | None = None


@dataclass(frozen=True)
class JobPosition:
    """The last job of a page. The next page begins with the job that was submitted before it."""

    submitted_at: int
    id: str


class LeaseColumns(Protocol):
    """The columns of a job that decide its effective status."""

    status: str
    lease_expires_at: int | None


def effective_status(row: LeaseColumns, now: int) -> JobStatus | None:
    """Returns the status that clients see: without a valid lease, a job in progress waits for another worker, and a job
    that was to stop is STOPPED. None for a status that only a newer version knows.
    """
    status = known_status(row.status)
    if status is None:
        return None
    is_leased = row.lease_expires_at is not None and now < row.lease_expires_at <= now + LONGEST_LEASE_MS
    return status if is_leased else WITHOUT_LEASE.get(status, status)


class EndColumns(Protocol):
    """The columns of a job that decide whether it has finished."""

    status: str
    finished_at: int | None


def has_finished(row: EndColumns) -> bool:
    """Returns whether nothing can change the job any more. A job in a status that only a newer version knows has
    finished if its `finished_at` is set, as in every version."""
    status = known_status(row.status)
    return row.finished_at is not None if status is None else status.is_terminal


def insert_jobs(session: Session, new_jobs: Sequence[NewJob], now: int) -> list[QueuedJob]:
    """Adds QUEUED jobs, at least one, each with its first event."""
    same = {
        "status": JobStatus.QUEUED.value,
        "version": 1,
        "submitted_at": now,
        "updated_at": now,
        "announced_at": now,
        "fence": 0,
    }
    values = [
        {
            "id": job.id,
            "tenant": job.tenant,
            "kind": job.kind,
            "name": job.name,
            "spec": job.spec,
            "request_id": job.request_id,
            "max_attempts": job.max_attempts,
            "timeout_ms": job.timeout_ms,
            "queue": job.queue.value,
            "spec_version": job.spec_version,
            "mode": job.mode.value,
            "isolated": job.isolated,
            **same,
        }
        for job in new_jobs
    ]
    session.connection().execute(_INSERT_JOB, values)
    add_first_events(session, [(job.id, job.tenant) for job in new_jobs], now, JobStatus.QUEUED.value)
    return [
        QueuedJob(job.id, job.tenant, job.name, job.mode.value, job.queue.value, job.request_id, job.spec, now, now)
        for job in new_jobs
    ]


def find_job(
    session: Session, *, tenant: str, job_id: str, kind: str = RUN, lock: bool = False, with_spec: bool = False
) -> JobRow | None:
    """Returns the tenant's job of this id and kind. With `lock`, nobody else changes it before the transaction ends.

    Only `with_spec` reads the spec, which may be large; without it, `spec` of the row raises.
    """
    statement = _ONE if with_spec else _ONE_WITHOUT_SPEC
    wanted = {"job_id": job_id, "tenant": tenant, "kind": kind}
    return session.scalars(statement.with_for_update() if lock else statement, wanted).one_or_none()


def find_jobs(session: Session, job_ids: Collection[str]) -> Sequence[JobRow]:
    """Returns those of these jobs that exist, of any tenant, with their specs."""
    return session.scalars(_SOME, {"job_ids": list(job_ids)}).all()


def find_states(session: Session, job_ids: Collection[str]) -> Sequence[Row[*tuple[Any, ...]]]:
    """Returns the columns of those of these jobs that exist, of any tenant, that decide whether a job has changed."""
    return session.connection().execute(_STATES_OF_SOME, {"job_ids": list(job_ids)}).all()


def list_jobs(
    session: Session, *, tenant: str, wanted: JobFilter, after: JobPosition | None, limit: int, now: int
) -> Sequence[Row[*tuple[Any, ...]]]:
    """Returns the columns that summaries show of at most `limit` jobs after the position `after`, newest first."""
    values: dict[str, int | str] = {"tenant": tenant, "at_most": limit}
    statement = _PAGE
    if after is not None:
        statement = _NEXT_PAGE
        values |= {"submitted_at": after.submitted_at, "after": after.id}
    # Without the objects of the session, a page takes a third of the time.
    return session.connection().execute(_restrict(statement, wanted, now), values).all()


def save_spec(session: Session, row: JobRow, spec: dict[str, Any], needs_version: int, now: int) -> None:
    """Replaces the stored spec, which workers of a lower SPEC_VERSION than `needs_version` leave to others. `row` must
    be locked; it is not refreshed.
    """
    version = max(row.spec_version, needs_version)
    changed = {"spec": spec, "spec_version": version, "version": JobRow.version + 1, "updated_at": now}
    session.execute(update(JobRow).where(JobRow.id == row.id).values(changed))


def delete_job(session: Session, job_id: str) -> None:
    """Deletes a job with all rows that refer to it."""
    session.execute(delete(JobRow).where(JobRow.id == job_id))


def delete_old_explanations(session: Session, now: int) -> None:
    """Deletes explanations whose clients no longer wait."""
    session.execute(delete(JobRow).where(JobRow.kind == EXPLAIN, JobRow.submitted_at < now - _EXPLAIN_KEPT_MS))


def read_versions(session: Session, job_ids: Collection[str]) -> dict[str, int]:
    """Returns the current version of each of these jobs that exists."""
    versions: dict[str, int] = {}
    for chunk in chunks(job_ids):
        found = session.execute(select(JobRow.id, JobRow.version).where(JobRow.id.in_(chunk)))
        versions.update((job_id, version) for job_id, version in found)
    return versions


def chunks(job_ids: Collection[str]) -> Iterator[list[str]]:
    """Splits ids into lists that are short enough for one statement."""
    ids = list(job_ids)
    return (ids[start : start + IDS_PER_QUERY] for start in range(0, len(ids), IDS_PER_QUERY))


def queues_of_waiting(session: Session, job_ids: Collection[str]) -> list[tuple[str, str]]:
    """Returns the ids and queues of those of these jobs that are QUEUED."""
    found = session.execute(
        select(JobRow.id, JobRow.queue).where(JobRow.id.in_(job_ids), JobRow.status == JobStatus.QUEUED.value)
    )
    return [(job_id, queue) for job_id, queue in found]


def queue_of(session: Session, job_id: str) -> str | None:
    """Returns the queue of a job in any status. It never changes. None if the job does not exist."""
    return session.execute(select(JobRow.queue).where(JobRow.id == job_id)).scalar_one_or_none()


def _restrict(statement: Select[*tuple[Any, ...]], wanted: JobFilter, now: int) -> Select[*tuple[Any, ...]]:
    if wanted.statuses:
        statement = statement.where(_effective_status_column(now).in_([status.value for status in wanted.statuses]))
    if wanted.name_prefix:
        # Not LIKE, which ignores case on SQLite and has wildcards.
        statement = statement.where(func.substr(JobRow.name, 1, len(wanted.name_prefix)) == wanted.name_prefix)
    if wanted.id_prefix:
        statement = statement.where(func.substr(JobRow.id, 1, len(wanted.id_prefix)) == wanted.id_prefix)
    if wanted.submitted_after is not None:
        statement = statement.where(JobRow.submitted_at > wanted.submitted_after)
    if wanted.submitted_before is not None:
        statement = statement.where(JobRow.submitted_at < wanted.submitted_before)
    if wanted.queue is not None:
        statement = statement.where(JobRow.queue == wanted.queue.value)
    return statement


def _effective_status_column(now: int) -> Any:
    ends = func.coalesce(JobRow.lease_expires_at, 0)
    has_expired = (ends <= now) | (ends > now + LONGEST_LEASE_MS)
    return case(
        *((has_expired & (JobRow.status == stored.value), shown.value) for stored, shown in WITHOUT_LEASE.items()),
        else_=JobRow.status,
    )


def find_idempotency_key(session: Session, *, tenant: str, key: str, now: int) -> IdempotencyKeyRow | None:
    """Returns what was submitted with `key`; None for a key that has expired, even if its row is still stored."""
    row = session.get(IdempotencyKeyRow, (tenant, key))
    return row if row is not None and row.expires_at > now else None


@dataclass(frozen=True)
class SubmissionKey:
    """An idempotency key to be stored: whose it is, and the hash of what was submitted with it."""

    tenant: str
    key: str
    payload_sha256: str
    job_id: str


def save_idempotency_keys(session: Session, keys: Collection[SubmissionKey], now: int) -> None:
    """Stores keys, at least one. Replaces the same keys if they have expired; the workers' retention removes all other
    expired keys.

    Raises IntegrityError if another transaction has stored one of the keys.
    """
    # The same order in every transaction prevents deadlocks.
    ordered = sorted(keys, key=lambda one: (one.tenant, one.key))
    connection = session.connection()
    connection.execute(_DELETE_EXPIRED_KEY, [{"of": one.tenant, "named": one.key, "now": now} for one in ordered])
    connection.execute(_INSERT_KEY, [{**vars(one), "expires_at": now + KEY_KEPT_MS} for one in ordered])


def count_expired_keys(session: Session, now: int) -> int:
    """Returns how many keys `remove_expired_keys` would remove without a limit."""
    expired = select(func.count()).select_from(IdempotencyKeyRow).where(IdempotencyKeyRow.expires_at <= now)
    return session.execute(expired).scalar_one()


def remove_expired_keys(session: Session, now: int, limit: int) -> int:
    """Removes at most `limit` expired keys and returns their number."""
    expired = (
        select(IdempotencyKeyRow.tenant, IdempotencyKeyRow.key)
        .where(IdempotencyKeyRow.expires_at <= now)
        .limit(limit)
        .with_for_update(skip_locked=True)
        .cte("expired")
    )
    primary_key = tuple_(IdempotencyKeyRow.tenant, IdempotencyKeyRow.key)
    removed = session.execute(
        delete(IdempotencyKeyRow)
        .where(primary_key.in_(select(expired.c.tenant, expired.c.key)), IdempotencyKeyRow.expires_at <= now)
        .returning(IdempotencyKeyRow.key)
    )
    return len(removed.all())
