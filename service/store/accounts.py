"""What is stored of tenants: their API keys, and how much of their quotas they use.

`service.keys` checks the keys. Streams are counted separately from jobs that end by themselves. So are explanations,
for which clients wait: they do not wait for jobs that take hours, and a tenant can have only a few at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from sqlalchemy import BigInteger, ColumnElement, Integer, Select, bindparam, func, or_, select, text, tuple_, update
from sqlalchemy.orm import Session

from service.contract.enums import LEASED, JobStatus, KeyScope, Queue
from service.store.jobs import EXPLAIN, RUN
from service.store.tables import ApiKeyRow, InputStreamRow, JobRow

_LEASED = tuple(sorted(status.value for status in LEASED))
_IS_STREAM = JobRow.queue == Queue.STREAM.value

# Built once: every submission uses them.
_WAITING = select(func.count()).select_from(
    select(JobRow.id)
    .where(JobRow.tenant == bindparam("tenant"), JobRow.status == JobStatus.QUEUED.value, JobRow.kind == RUN)
    .limit(bindparam("at_most", type_=Integer))
    .subquery()
)
_EXPLANATIONS = select(func.count()).where(
    JobRow.kind == EXPLAIN,
    JobRow.status.in_((JobStatus.QUEUED.value, *_LEASED)),
    # True for all explanations, and lets the database use an index.
    JobRow.queue == Queue.SHORT.value,
    JobRow.submitted_at > bindparam("since", type_=BigInteger),
    JobRow.tenant == bindparam("tenant"),
)


@dataclass(frozen=True)
class NewKey:
    """An API key to be stored. `expires_at` in milliseconds by the database's clock."""

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
    """Returns the scopes of the key, without those that only a newer version knows."""
    known = {scope.value: scope for scope in KeyScope}
    return frozenset(known[name] for name in row.scopes.split(",") if name in known)


def is_valid(row: ApiKeyRow, now: int) -> bool:
    """Returns whether the key is neither revoked nor expired at that time."""
    return row.revoked_at is None and (row.expires_at is None or row.expires_at > now)


def find_key(session: Session, key_id: str) -> ApiKeyRow | None:
    """Returns the key of this id, valid or not."""
    return session.get(ApiKeyRow, key_id)


def list_keys(
    session: Session, *, tenant: str | None, after: tuple[int, str] | None, limit: int
) -> Sequence[ApiKeyRow]:
    """Returns at most `limit` keys after the position `after` (created_at, id), oldest first: those of one tenant, or
    of all for None."""
    statement = select(ApiKeyRow)
    if tenant is not None:
        statement = statement.where(ApiKeyRow.tenant == tenant)
    if after is not None:
        statement = statement.where(tuple_(ApiKeyRow.created_at, ApiKeyRow.id) > after)
    return session.scalars(statement.order_by(ApiKeyRow.created_at, ApiKeyRow.id).limit(limit)).all()


def has_any_key(session: Session) -> bool:
    """Returns whether a key was ever created."""
    return session.execute(select(ApiKeyRow.id).limit(1)).first() is not None


def count_valid_admins(session: Session, now: int) -> int:
    """Returns the number of valid keys with the scope `admin`, which can create keys."""
    # Commas around the list, so that only a whole name matches.
    listed = "," + ApiKeyRow.scopes + ","
    statement = select(func.count()).where(
        listed.like(f"%,{KeyScope.ADMIN.value},%"),
        ApiKeyRow.revoked_at.is_(None),
        or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > now),
    )
    return session.execute(statement).scalar_one()


def revoke_key(session: Session, key_id: str, now: int) -> None:
    """Revokes a key for ever. A key that was revoked before keeps that time."""
    session.execute(
        update(ApiKeyRow).where(ApiKeyRow.id == key_id, ApiKeyRow.revoked_at.is_(None)).values(revoked_at=now)
    )


def record_use(session: Session, key_id: str, now: int) -> None:
    """Stores when the key was last used."""
    session.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(used_at=now))


class Counted(IntEnum):
    """What of a tenant is counted under an advisory lock. The numbers are those of the locks on PostgreSQL."""

    CLAIMS = 0x65766B
    EXPLANATIONS = 0x65766C
    STREAMS = 0x65766D
    POSTED_BYTES = 0x65766E


@dataclass(frozen=True)
class Quota:
    """What keeps jobs from a worker. It claims at most `running_jobs` jobs of a tenant at once, and as many streams; 0
    for no limit. It claims no explanation of a tenant in `explained`.
    """

    running_jobs: int = 0
    explained: frozenset[str] = frozenset()


NO_QUOTA = Quota()


def count_waiting(session: Session, tenant: str, at_most: int) -> int:
    """Returns the number of the tenant's jobs that wait for a worker, and no more than `at_most`."""
    return session.connection().execute(_WAITING, {"tenant": tenant, "at_most": at_most}).scalar_one()


def count_explanations(session: Session, tenant: str, since: int) -> int:
    """Returns the number of the tenant's unanswered explanations that were requested after `since`, in milliseconds."""
    return session.execute(_EXPLANATIONS, {"tenant": tenant, "since": since}).scalar_one()


def count_streams(session: Session, tenant: str) -> int:
    """Returns the number of the tenant's input streams."""
    return session.execute(select(func.count()).where(InputStreamRow.tenant == tenant)).scalar_one()


def posted_bytes(session: Session, tenant: str) -> int:
    """Returns the size of the files of all rows that the tenant has posted, the sum over its streams."""
    total = session.execute(select(func.sum(InputStreamRow.bytes)).where(InputStreamRow.tenant == tenant)).scalar_one()
    return int(total or 0)


def lock_count(session: Session, tenant: str, counted: Counted) -> None:
    """Keeps what is counted unchanged until this transaction, which writes, ends: others that call this wait."""
    # On SQLite, only one transaction at a time writes.
    if session.get_bind().dialect.name == "postgresql":
        statement = text("SELECT pg_advisory_xact_lock(:counted, hashtext(:tenant))")
        session.execute(statement, {"counted": int(counted), "tenant": tenant})


def is_full(session: Session, tenant: str, queue: str, most_running: int) -> bool:
    """Returns whether workers run `most_running` jobs of the tenant: streams if `queue` is that of streams, else jobs
    that are no streams."""
    return session.execute(_full(most_running, queue).where(JobRow.tenant == tenant)).first() is not None


def has_room(session: Session, job_id: str, quota: Quota) -> bool:
    """Returns whether `quota` allows the worker to claim the job. No other job of the tenant that is counted is claimed
    until this transaction ends.
    """
    if quota == NO_QUOTA:
        return True
    # Locks the job, then its tenant. Another order could deadlock two workers.
    statement = select(JobRow.tenant, JobRow.queue, JobRow.kind).where(JobRow.id == job_id)
    found = session.execute(statement.with_for_update()).one_or_none()
    if found is None:
        return True
    if found.kind != RUN:
        return found.tenant not in quota.explained
    if not quota.running_jobs:
        return True
    lock_count(session, found.tenant, Counted.CLAIMS)
    return not is_full(session, found.tenant, found.queue, quota.running_jobs)


def excluded_by(quota: Quota) -> ColumnElement[bool] | None:
    """Condition: `quota` keeps the job from the worker. None if it keeps none."""
    conditions = []
    if quota.running_jobs:
        conditions.append(exceeds_running_jobs(quota.running_jobs))
    if quota.explained:
        conditions.append((JobRow.kind == EXPLAIN) & JobRow.tenant.in_(sorted(quota.explained)))
    return or_(*conditions) if conditions else None


def exceeds_running_jobs(most_running: int) -> ColumnElement[bool]:
    """Condition: the job, which is no explanation, must wait until another one of its tenant ends."""
    streams, others = (
        JobRow.tenant.in_(_full(most_running, queue)) for queue in (Queue.STREAM.value, Queue.SHORT.value)
    )
    return (JobRow.kind == RUN) & ((_IS_STREAM & streams) | (~_IS_STREAM & others))


def _full(most_running: int, queue: str) -> Select[str]:
    counted = _IS_STREAM if queue == Queue.STREAM.value else ~_IS_STREAM
    return (
        select(JobRow.tenant)
        .where(JobRow.status.in_(_LEASED), JobRow.kind == RUN, counted)
        .group_by(JobRow.tenant)
        .having(func.count() >= most_running)
    )
