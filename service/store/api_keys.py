"""API keys: insert, find, list, revoke. What a caller shows is checked in `service.keys`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, or_, select, tuple_, update
from sqlalchemy.orm import Session

from service.spec.scopes import KeyScope
from service.store.session import NO_SYNC
from service.store.tables import ApiKeyRow


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


def has_any(session: Session) -> bool:
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
