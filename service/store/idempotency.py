"""Keys that make a repeated submission the same submission, for a while, within one tenant."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.store.session import NO_SYNC
from service.store.tables import IdempotencyKeyRow

KEPT_MS = 24 * 3600 * 1000
"""How long a key is remembered."""


def find_key(session: Session, *, tenant: str, key: str, now: int) -> IdempotencyKeyRow | None:
    """What was submitted under `key`; None for a key that has expired, whether or not its row is still stored."""
    row = session.get(IdempotencyKeyRow, (tenant, key))
    return row if row is not None and row.expires_at > now else None


def remember_key(session: Session, *, tenant: str, key: str, payload_sha256: str, job_id: str, now: int) -> None:
    """Stores a key for 24 hours, in place of the same key where that has expired. Workers remove all other expired
    keys: see `service.store.retention.remove_expired_keys`.

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
