"""Keys that make a repeated submission the same submission, for a while, within one tenant."""

from __future__ import annotations

from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.store.tables import IdempotencyKeyRow

KEPT_MS = 24 * 3600 * 1000
"""How long a key is remembered."""


def find_key(session: Session, *, tenant: str, key: str, now: int) -> IdempotencyKeyRow | None:
    """What was submitted under `key`, unless that is too long ago."""
    row = session.get(IdempotencyKeyRow, (tenant, key))
    return row if row is not None and row.expires_at > now else None


def remember_key(session: Session, *, tenant: str, key: str, payload_sha256: str, job_id: str, now: int) -> None:
    """Keeps a key for 24 hours; forgets every key whose time is over, this one's predecessor included."""
    session.execute(delete(IdempotencyKeyRow).where(IdempotencyKeyRow.expires_at <= now))
    session.flush()
    session.add(
        IdempotencyKeyRow(
            tenant=tenant, key=key, payload_sha256=payload_sha256, job_id=job_id, expires_at=now + KEPT_MS
        )
    )
