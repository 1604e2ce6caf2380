"""What happened to jobs, in order.

Messages owed to the broker. A row stays until the broker took its message.

Keys that make a repeated submission the same submission, for a while, within one tenant.

Jobs: insert, find, list, ask to cancel, delete. Claims and results are in `leases` and `publication`.

Attempts: one row for each try of a job, numbered by the fencing token of its claim.

Jobs that may be what kills the workers they run on, told by the attempts that they lost.

Whoever runs beside such a job loses an attempt with it, and would lose the last one with it too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, case, delete, func, insert, null, select, tuple_, update
from sqlalchemy.engine import CursorResult
from sqlalchemy.orm import Session, defer

from service.contract import problems
from service.contract.enums import AttemptStatus, JobStatus, Mode, Queue, known_status
from service.contract.job import SPEC_VERSION
from service.contract.problems import Problem
from service.store.session import NO_SYNC
from service.store.tables import AttemptRow, IdempotencyKeyRow, JobEventRow, JobRow, OutboxRow, StreamRow, table_of

# Nobody wants its id, which to ask for costs more than the row.
_INSERT_EVENT = insert(table_of(JobEventRow)).inline()


def append_event(session: Session, *, job_id: str, tenant: str, now: int, type: str, data: dict[str, Any]) -> None:  # noqa: A002
    """Adds an event. `type` is `status`, `progress`, `attempt` or `plan`; `now` in milliseconds."""
    session.execute(_INSERT_EVENT, {"job_id": job_id, "tenant": tenant, "at": now, "type": type, "data": data})


def events_after(session: Session, job_id: str, after: int, limit: int) -> Sequence[JobEventRow]:
    """At most `limit` events of a job whose id is greater than `after`, oldest first."""
    statement = (
        select(JobEventRow)
        .where(JobEventRow.job_id == job_id, JobEventRow.id > after)
        .order_by(JobEventRow.id)
        .limit(limit)
    )
    return session.scalars(statement).all()


_INSERT_MESSAGE = insert(table_of(OutboxRow)).inline()


def owe_message(session: Session, *, job_id: str, tenant: str, now: int) -> None:
    """Notes, with the job itself, that workers must be told of it."""
    session.execute(_INSERT_MESSAGE, {"job_id": job_id, "tenant": tenant, "created_at": now})


def settle_messages(session: Session, job_ids: Iterable[str]) -> None:
    """Forgets the messages that were sent."""
    session.execute(delete(OutboxRow).where(OutboxRow.job_id.in_(list(job_ids))))


KEPT_MS = 24 * 3600 * 1000
"""How long a key is remembered."""


def find_idempotency_key(session: Session, *, tenant: str, key: str, now: int) -> IdempotencyKeyRow | None:
    """What was submitted under `key`; None for a key that has expired, whether or not its row is still stored."""
    row = session.get(IdempotencyKeyRow, (tenant, key))
    return row if row is not None and row.expires_at > now else None


def remember_idempotency_key(
    session: Session, *, tenant: str, key: str, payload_sha256: str, job_id: str, now: int
) -> None:
    """Stores a key for 24 hours, in place of the same key where that has expired. Workers remove all other expired
    keys: see `service.store.maintenance.remove_expired_keys`.

    The transaction raises IntegrityError when it ends if another one has stored the key.
    """
    same = (IdempotencyKeyRow.tenant == tenant, IdempotencyKeyRow.key == key)
    session.execute(
        delete(IdempotencyKeyRow).where(*same, IdempotencyKeyRow.expires_at <= now).execution_options(**NO_SYNC)
    )
    session.add(
        IdempotencyKeyRow(
            tenant=tenant, key=key, payload_sha256=payload_sha256, job_id=job_id, expires_at=now + KEPT_MS
        )
    )


RUN = "run"
"""`jobs.kind` of what clients submit."""

EXPLAIN = "explain"
"""`jobs.kind` of what is planned only, never listed, and removed once answered."""

LONGEST_LEASE_MS = 3_600_000
"""No setting gives a longer one: what ends later was given before the database's clock went back, and holds no more."""

_IDS_PER_QUERY = 500
_EXPLAIN_KEPT_MS = 10 * 60 * 1000  # longer than any caller may wait
_WITHOUT_SPEC = defer(JobRow.spec, raiseload=True)
# Built once: they are what clients poll with.
_ONE = select(JobRow).where(
    JobRow.id == bindparam("job_id"), JobRow.tenant == bindparam("tenant"), JobRow.kind == bindparam("kind")
)
_INSERT_JOB = insert(table_of(JobRow)).inline()
_ONE_WITHOUT_SPEC = _ONE.options(_WITHOUT_SPEC)
_SOME = select(JobRow).where(JobRow.id.in_(bindparam("job_ids", expanding=True)), JobRow.kind == RUN)
WITHOUT_LEASE = {
    JobStatus.PLANNING: JobStatus.QUEUED,
    JobStatus.RUNNING: JobStatus.QUEUED,
    JobStatus.STOPPING: JobStatus.STOPPED,
}
"""What these are in truth once their lease has run out."""


@dataclass(frozen=True)
class NewJob:
    """What is known of a job when it is accepted. `spec` is its canonical JSON, in words of `spec_version`.

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


@dataclass(frozen=True)
class JobFilter:
    """Which jobs a list holds. Times in milliseconds, both ends excluded; an empty part lets everything pass."""

    statuses: frozenset[JobStatus] = frozenset()
    name_prefix: str = ""
    submitted_after: int | None = None
    submitted_before: int | None = None
    queue: Queue | None = None


@dataclass(frozen=True)
class JobPosition:
    """Where a page of a list ended: the next one goes on with what was submitted before."""

    submitted_at: int
    id: str


def effective_status(row: JobRow, now: int) -> JobStatus | None:
    """The status that is true: without a live lease nothing runs. The job waits to be taken over; one that was to stop
    has. None for a status that only a newer version knows.
    """
    status = known_status(row.status)
    if status is None:
        return None
    is_live = row.lease_expires_at is not None and now < row.lease_expires_at <= now + LONGEST_LEASE_MS
    return status if is_live else WITHOUT_LEASE.get(status, status)


def has_finished(row: JobRow) -> bool:
    """Whether nothing will change the job any more. In a status that only a newer version knows, it has finished if the
    time of its end is stored, as every version does."""
    status = known_status(row.status)
    return row.finished_at is not None if status is None else status.is_terminal


def insert_job(session: Session, job: NewJob, now: int) -> JobRow:
    """Adds a QUEUED job and its first event; gives the row, of which the session knows nothing."""
    columns = {
        "id": job.id,
        "tenant": job.tenant,
        "kind": job.kind,
        "name": job.name,
        "spec": job.spec,
        "status": JobStatus.QUEUED.value,
        "version": 1,
        "request_id": job.request_id,
        "submitted_at": now,
        "updated_at": now,
        "rung_at": now,
        "fence": 0,
        "max_attempts": job.max_attempts,
        "timeout_ms": job.timeout_ms,
        "queue": job.queue.value,
        "spec_version": job.spec_version,
        "mode": job.mode.value,
    }
    session.execute(_INSERT_JOB, columns)
    status = JobStatus.QUEUED.value
    append_event(session, job_id=job.id, tenant=job.tenant, now=now, type="status", data={"status": status})
    return JobRow(**columns)


def find_job(
    session: Session, *, tenant: str, job_id: str, kind: str = RUN, lock: bool = False, with_spec: bool = False
) -> JobRow | None:
    """The tenant's job of this id and kind; with `lock`, nobody else changes it before the transaction ends.

    A spec may be large: `spec` of the row is read only `with_spec`, and raises otherwise.
    """
    statement = _ONE if with_spec else _ONE_WITHOUT_SPEC
    wanted = {"job_id": job_id, "tenant": tenant, "kind": kind}
    return session.scalars(statement.with_for_update() if lock else statement, wanted).one_or_none()


def find_jobs(session: Session, job_ids: Collection[str]) -> Sequence[JobRow]:
    """Those of these jobs that are there, of any tenant, with their specs."""
    return session.scalars(_SOME, {"job_ids": list(job_ids)}).all()


def list_jobs(
    session: Session, *, tenant: str, wanted: JobFilter, after: JobPosition | None, limit: int, now: int
) -> Sequence[JobRow]:
    """At most `limit` jobs without their specs, newest first, from behind `after` on."""
    statement = select(JobRow).options(_WITHOUT_SPEC).where(JobRow.tenant == tenant, JobRow.kind == RUN)
    statement = _restrict(statement, wanted, now)
    if after is not None:
        statement = statement.where(tuple_(JobRow.submitted_at, JobRow.id) < (after.submitted_at, after.id))
    return session.scalars(statement.order_by(JobRow.submitted_at.desc(), JobRow.id.desc()).limit(limit)).all()


def delete_job(session: Session, job_id: str) -> None:
    """Removes a job with everything that hangs on it."""
    session.execute(delete(JobRow).where(JobRow.id == job_id).execution_options(synchronize_session=False))


def delete_forgotten_explains(session: Session, now: int) -> int:
    """Removes explanations whose asker has gone; gives how many."""
    return _rows_changed(
        session, delete(JobRow).where(JobRow.kind == EXPLAIN, JobRow.submitted_at < now - _EXPLAIN_KEPT_MS)
    )


def read_versions(session: Session, job_ids: Collection[str]) -> dict[str, int]:
    """The current version of each of these jobs that exists."""
    ids = list(job_ids)
    versions: dict[str, int] = {}
    for start in range(0, len(ids), _IDS_PER_QUERY):
        chunk = ids[start : start + _IDS_PER_QUERY]
        found = session.execute(select(JobRow.id, JobRow.version).where(JobRow.id.in_(chunk)))
        versions.update((job_id, version) for job_id, version in found)
    return versions


def queues_of_waiting(session: Session, job_ids: Collection[str]) -> list[tuple[str, str]]:
    """Id and queue of those of these jobs that are QUEUED."""
    found = session.execute(
        select(JobRow.id, JobRow.queue).where(JobRow.id.in_(job_ids), JobRow.status == JobStatus.QUEUED.value)
    )
    return [(job_id, queue) for job_id, queue in found]


def queue_of(session: Session, job_id: str) -> str | None:
    """The queue of a job, whatever its status; it never changes. None where the job is gone."""
    return session.execute(select(JobRow.queue).where(JobRow.id == job_id)).scalar_one_or_none()


def _restrict(statement: Select[JobRow], wanted: JobFilter, now: int) -> Select[JobRow]:
    if wanted.statuses:
        statement = statement.where(_effective_status_column(now).in_([status.value for status in wanted.statuses]))
    if wanted.name_prefix:
        # Not LIKE: it ignores case on SQLite and has characters of its own.
        statement = statement.where(func.substr(JobRow.name, 1, len(wanted.name_prefix)) == wanted.name_prefix)
    if wanted.submitted_after is not None:
        statement = statement.where(JobRow.submitted_at > wanted.submitted_after)
    if wanted.submitted_before is not None:
        statement = statement.where(JobRow.submitted_at < wanted.submitted_before)
    if wanted.queue is not None:
        statement = statement.where(JobRow.queue == wanted.queue.value)
    return statement


def _effective_status_column(now: int) -> Any:
    ends = func.coalesce(JobRow.lease_expires_at, 0)
    lost = (ends <= now) | (ends > now + LONGEST_LEASE_MS)
    return case(
        *((lost & (JobRow.status == stored.value), true.value) for stored, true in WITHOUT_LEASE.items()),
        else_=JobRow.status,
    )


def _rows_changed(session: Session, statement: Any) -> int:
    result = session.execute(statement)
    assert isinstance(result, CursorResult)  # noqa: S101 - what every UPDATE and DELETE gives
    return result.rowcount


_OPEN = (AttemptStatus.PLANNING.value, AttemptStatus.RUNNING.value)


def attempts_of(session: Session, job_id: str) -> Sequence[AttemptRow]:
    """The attempts of a job, oldest first."""
    return session.scalars(select(AttemptRow).where(AttemptRow.job_id == job_id).order_by(AttemptRow.fence)).all()


def crashed_attempts(session: Session, job_id: str) -> int:
    """How many attempts lost their worker or Spark driver: what the job's `max_attempts` bounds.

    Of a stream, those since it last got on: one that runs for months loses a worker now and then.
    """
    steady = select(StreamRow.steady_fence).where(StreamRow.job_id == job_id).scalar_subquery()
    statement = select(func.count()).where(
        AttemptRow.job_id == job_id,
        AttemptRow.status == AttemptStatus.CRASHED.value,
        AttemptRow.fence > func.coalesce(steady, 0),
    )
    return session.execute(statement).scalar_one()


def start_attempt(session: Session, *, job_id: str, tenant: str, fence: int, worker: str, now: int) -> None:
    """Adds an attempt in PLANNING, with an event."""
    status = AttemptStatus.PLANNING.value
    session.add(AttemptRow(job_id=job_id, tenant=tenant, fence=fence, status=status, worker=worker, started_at=now))
    _tell(session, job_id=job_id, tenant=tenant, fence=fence, status=status, now=now)


def mark_attempt_running(session: Session, job_id: str, fence: int) -> None:
    """PLANNING -> RUNNING; the job's own event tells of it."""
    session.execute(
        update(AttemptRow)
        .where(
            AttemptRow.job_id == job_id,
            AttemptRow.fence == fence,
            AttemptRow.status == AttemptStatus.PLANNING.value,
        )
        .values(status=AttemptStatus.RUNNING.value)
        .execution_options(**NO_SYNC)
    )


def end_attempt(
    session: Session,
    *,
    job_id: str,
    tenant: str,
    fence: int,
    status: AttemptStatus,
    error: Problem | None,
    now: int,
) -> None:
    """Ends an attempt that has not ended, with an event; one that has ended stays as it is."""
    ended = session.execute(
        update(AttemptRow)
        .where(AttemptRow.job_id == job_id, AttemptRow.fence == fence, AttemptRow.status.in_(_OPEN))
        .values(status=status.value, finished_at=now, error=null() if error is None else error.model_dump(mode="json"))
        .returning(AttemptRow.id)
        .execution_options(**NO_SYNC)
    ).scalar_one_or_none()
    if ended is not None:
        _tell(session, job_id=job_id, tenant=tenant, fence=fence, status=status.value, now=now)


def end_abandoned_attempt(session: Session, row: JobRow, now: int) -> None:
    """Ends the attempt of a job whose lease has run out, as that of a worker that gave no sign of life; does nothing
    where no worker had the job.
    """
    if row.lease_owner is None:
        return
    end_attempt(
        session,
        job_id=row.id,
        tenant=row.tenant,
        fence=row.fence,
        status=AttemptStatus.CRASHED,
        error=problems.lease_lost(row.lease_owner),
        now=now,
    )


def _tell(session: Session, *, job_id: str, tenant: str, fence: int, status: str, now: int) -> None:
    append_event(
        session, job_id=job_id, tenant=tenant, now=now, type="attempt", data={"attempt": fence, "status": status}
    )


def is_suspect() -> ColumnElement[bool]:
    """Whether a job has lost an attempt; a stream, whether it has since it last got on."""
    return _crashes() >= 1


def is_at_last_chance() -> ColumnElement[bool]:
    """Whether a suspect job is CRASHED with the next attempt that it loses. A continuous stream never is: it is STOPPED
    then, and may go on.
    """
    return (JobRow.queue != Queue.STREAM.value) & is_suspect() & (_crashes() >= JobRow.max_attempts - 1)


def holds_for(session: Session, job_id: str, condition: ColumnElement[bool]) -> bool:
    """Whether it holds for this job."""
    return session.execute(select(JobRow.id).where(JobRow.id == job_id, condition)).first() is not None


def _crashes() -> ColumnElement[int]:
    """As `crashed_attempts` counts them, of each job."""
    steady = select(StreamRow.steady_fence).where(StreamRow.job_id == JobRow.id).correlate(JobRow).scalar_subquery()
    return (
        select(func.count())
        .where(
            AttemptRow.job_id == JobRow.id,
            AttemptRow.status == AttemptStatus.CRASHED.value,
            AttemptRow.fence > func.coalesce(steady, 0),
        )
        .correlate(JobRow)
        .scalar_subquery()
    )
