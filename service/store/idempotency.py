"""Idempotency keys: for 24 hours, a submission that is repeated with the same key of a tenant creates no second job."""

from __future__ import annotations

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.orm import Session

from service.store.tables import IdempotencyKeyRow

KEPT_MS = 24 * 3600 * 1000
"""How long a key is stored."""


def find_idempotency_key(session: Session, *, tenant: str, key: str, now: int) -> IdempotencyKeyRow | None:
    """Returns what was submitted with `key`; None for a key that has expired, even if its row is still stored."""
    row = session.get(IdempotencyKeyRow, (tenant, key))
    return row if row is not None and row.expires_at > now else None


def save_idempotency_key(
    session: Session, *, tenant: str, key: str, payload_sha256: str, job_id: str, now: int
) -> None:
    """Stores a key. Replaces the same key if it has expired; the workers' retention removes all other expired keys.

    If another transaction has stored the key, this one raises IntegrityError at its end.
    """
    same = (IdempotencyKeyRow.tenant == tenant, IdempotencyKeyRow.key == key)
    session.execute(delete(IdempotencyKeyRow).where(*same, IdempotencyKeyRow.expires_at <= now))
    session.add(
        IdempotencyKeyRow(
            tenant=tenant, key=key, payload_sha256=payload_sha256, job_id=job_id, expires_at=now + KEPT_MS
        )
    )


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
