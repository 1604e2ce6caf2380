"""API keys: insert, find, list, revoke. What a caller shows is checked in `service.keys`.

How much of the service a tenant takes, against how much it may.

Streams are counted apart from jobs that end by themselves. So are explanations: somebody waits for each, which is why
they are not held back behind jobs that take hours, and why a tenant may have a few of them only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, bindparam, func, or_, select, text, tuple_, update
from sqlalchemy.orm import Session

from service.contract.enums import LEASED, JobStatus, KeyScope, Queue
from service.store.jobs import EXPLAIN, RUN
from service.store.session import NO_SYNC
from service.store.tables import ApiKeyRow, InputStreamRow, JobRow


@dataclass(frozen=True)
class NewKey:
    """What is known of a key when it is made. Times in milliseconds by the database's clock."""

    id: str
    tenant: str
    name: str
    scopes: frozenset[KeyScope]
    secret_sha256: str
    created_by: str | None
    expires_at: int | None


def insert_key(session: Session, key: NewKey, now: int) -> ApiKeyRow:
    """Adds a key."""
    row = ApiKeyRow(
        id=key.id,
        tenant=key.tenant,
        name=key.name,
        scopes=",".join(sorted(key.scopes)),
        secret_sha256=key.secret_sha256,
        created_at=now,
        created_by=key.created_by,
        expires_at=key.expires_at,
    )
    session.add(row)
    session.flush()
    return row


def scopes_of(row: ApiKeyRow) -> frozenset[KeyScope]:
    """What the key allows; what only a newer version knows is left out."""
    known = {scope.value: scope for scope in KeyScope}
    return frozenset(known[name] for name in row.scopes.split(",") if name in known)


def is_live(row: ApiKeyRow, now: int) -> bool:
    """Whether the key opens anything at that time."""
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


def find_key(session: Session, key_id: str) -> ApiKeyRow | None:
    """The key of this id, live or not."""
    return session.get(ApiKeyRow, key_id)


def list_keys(
    session: Session, *, tenant: str | None, after: tuple[int, str] | None, limit: int
) -> Sequence[ApiKeyRow]:
    """At most `limit` keys, of one tenant or of all, oldest first, from behind `after` (created_at, id) on."""
    statement = select(ApiKeyRow)
    if tenant is not None:
        statement = statement.where(ApiKeyRow.tenant == tenant)
    if after is not None:
        statement = statement.where(tuple_(ApiKeyRow.created_at, ApiKeyRow.id) > after)
    return session.scalars(statement.order_by(ApiKeyRow.created_at, ApiKeyRow.id).limit(limit)).all()


def has_any_key(session: Session) -> bool:
    """Whether a key was ever made."""
    return session.execute(select(ApiKeyRow.id).limit(1)).first() is not None


def count_live_admins(session: Session, now: int) -> int:
    """How many keys there are with which keys can be made."""
    # As a whole word of the list.
    listed = "," + ApiKeyRow.scopes + ","
    statement = select(func.count()).where(
        listed.like(f"%,{KeyScope.ADMIN.value},%"),
        ApiKeyRow.revoked_at.is_(None),
        or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > now),
    )
    return session.execute(statement).scalar_one()


def revoke_key(session: Session, key_id: str, now: int) -> None:
    """Ends a key, now and for good; one that was revoked before stays so since then."""
    session.execute(
        update(ApiKeyRow)
        .where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None))
        .values(revoked_at=now)
        .execution_options(**NO_SYNC)
    )


def note_use(session: Session, key_id: str, now: int) -> None:
    """The key was shown."""
    session.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(used_at=now).execution_options(**NO_SYNC))


_LEASED = tuple(sorted(status.value for status in LEASED))


class Counted(IntEnum):
    """What of a tenant is counted under a lock: numbers that nobody else on the same database server takes."""

    CLAIMS = 0x65766B
    EXPLANATIONS = 0x65766C
    STREAMS = 0x65766D
    POSTED_BYTES = 0x65766E


@dataclass(frozen=True)
class Quota:
    """What holds jobs back from a worker: of a tenant, `running_jobs` and as many streams are with workers at once, any
    number where that is 0; and of those in `explained`, the worker begins no further explanation.
    """

    running_jobs: int = 0
    explained: frozenset[str] = frozenset()


NO_QUOTA = Quota()

# Built once: every submission asks.
_WAITING = select(func.count()).select_from(
    select(JobRow.id)
    .where(JobRow.tenant == bindparam("tenant"), JobRow.status == JobStatus.QUEUED.value, JobRow.kind == RUN)
    .limit(bindparam("at_most", type_=Integer))
    .subquery()
)
_EXPLAINED = select(func.count()).where(
    JobRow.kind == EXPLAIN,
    JobRow.status.in_((JobStatus.QUEUED.value, *_LEASED)),
    # Where all of them are, which an index knows.
    JobRow.queue == Queue.SHORT.value,
    JobRow.submitted_at > bindparam("since", type_=BigInteger),
    JobRow.tenant == bindparam("tenant"),
)


def count_waiting(session: Session, tenant: str, at_most: int) -> int:
    """How many jobs of the tenant wait for a worker; counted no further than `at_most`."""
    return session.execute(_WAITING, {"tenant": tenant, "at_most": at_most}).scalar_one()


def count_explanations(session: Session, tenant: str, since: int) -> int:
    """How many explanations the tenant waits for that were asked for after `since`, in milliseconds."""
    return session.execute(_EXPLAINED, {"tenant": tenant, "since": since}).scalar_one()


def count_streams(session: Session, tenant: str) -> int:
    """How many streams of posted rows the tenant has."""
    return session.execute(select(func.count()).where(InputStreamRow.tenant == tenant)).scalar_one()


def posted_bytes(session: Session, tenant: str) -> int:
    """How large the files are of all rows that the tenant has posted, by what each of its streams has counted up."""
    total = session.execute(select(func.sum(InputStreamRow.bytes)).where(InputStreamRow.tenant == tenant)).scalar_one()
    return int(total or 0)


def count_alone(session: Session, tenant: str, counted: Counted) -> None:
    """Lets nobody else who asks for the same go on until this transaction ends, which writes: what is counted stays."""
    # On SQLite, one transaction writes at a time anyway.
    if session.get_bind().dialect.name == "postgresql":
        statement = text("SELECT pg_advisory_xact_lock(:counted, hashtext(:tenant))")
        session.execute(statement, {"counted": int(counted), "tenant": tenant})


def is_full(session: Session, tenant: str, queue: str, most_running: int) -> bool:
    """Whether as many jobs of the tenant are with workers as may be, of those that `queue` counts among."""
    return session.execute(_full(most_running, queue).where(JobRow.tenant == tenant)).first() is not None


def has_room(session: Session, job_id: str, quota: Quota) -> bool:
    """Whether the job's tenant may have one more with the worker. Nobody else claims one of the tenant's that is
    counted until this transaction ends.
    """
    if quota == NO_QUOTA:
        return True
    # The job first, then its tenant: two that claim would else wait for each other.
    looked_at = select(JobRow.tenant, JobRow.queue, JobRow.kind).where(JobRow.id == job_id)
    found = session.execute(looked_at.with_for_update()).one_or_none()
    if found is None:
        return True
    if found.kind != RUN:
        return found.tenant not in quota.explained
    if not quota.running_jobs:
        return True
    count_alone(session, found.tenant, Counted.CLAIMS)
    return not is_full(session, found.tenant, found.queue, quota.running_jobs)


def held_back(quota: Quota) -> ColumnElement[bool] | None:
    """Whether a job is one that must wait for another of its tenant to end; None where none must."""
    conditions = []
    if quota.running_jobs:
        conditions.append(of_full_tenants(quota.running_jobs))
    if quota.explained:
        conditions.append((JobRow.kind == EXPLAIN) & JobRow.tenant.in_(sorted(quota.explained)))
    return or_(*conditions) if conditions else None


def of_full_tenants(most_running: int) -> ColumnElement[bool]:
    """Whether a job, which is no explanation, must wait for another of its tenant to end."""
    streams, others = (
        JobRow.tenant.in_(_full(most_running, queue)) for queue in (Queue.STREAM.value, Queue.SHORT.value)
    )
    return (JobRow.kind == RUN) & ((_is_stream() & streams) | (~_is_stream() & others))


def _full(most_running: int, queue: str) -> Select[str]:
    counted = _is_stream() if queue == Queue.STREAM.value else ~_is_stream()
    return (
        select(JobRow.tenant)
        .where(JobRow.status.in_(_LEASED), JobRow.kind == RUN, counted)
        .group_by(JobRow.tenant)
        .having(func.count() >= most_running)
    )


def _is_stream() -> ColumnElement[bool]:
    return JobRow.queue == Queue.STREAM.value
