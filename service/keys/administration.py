"""API keys as operators see them; the key itself is seen once.

Makes API keys.

Lists API keys, of every tenant or of one, page by page.

Ends API keys.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Self

from pydantic import Field
from sqlalchemy.orm import Session

from service.contract.enums import ALL_SCOPES, DEFAULT_TENANT, KeyScope, TenantName
from service.contract.errors import KeyNotFoundError, LastAdminKeyError
from service.contract.model import Bounds, Duration, Frozen
from service.jobs.views import decode_cursor, encode_cursor, timestamp
from service.keys.verification import make_secret
from service.store import accounts, installation
from service.store.accounts import NewKey, is_live, scopes_of
from service.store.session import Database
from service.store.tables import ApiKeyRow


class ApiKey(Frozen):
    """A key without its secret."""

    id: str = Field(description="Part of the key, and no secret.", examples=["mfrggzdfmztwq2lk"])
    tenant: str = Field(description="Whose jobs and streams it opens.", examples=["default"])
    name: str = Field(examples=["nightly loads"])
    scopes: tuple[str, ...] = Field(description="What it is for.", examples=[["read", "submit"]])
    live: bool = Field(description="Whether it opens anything now: neither revoked nor expired.")
    created_at: datetime
    created_by: str | None = Field(description="Id of the key it was made with; null for the command line.")
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None = Field(description="When it was last shown, to the minute.")

    @classmethod
    def of(cls, row: ApiKeyRow, now: int) -> Self:
        """As the database has it at that time."""
        return cls(**_fields(row, now))


class IssuedKey(ApiKey):
    """A key that was just made: the only time that it is shown whole."""

    key: str = Field(
        description="Keep it: it is not shown again, and cannot be found out from what is stored.",
        examples=["ek_mfrggzdfmztwq2lk_3q2-7wAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
    )

    @classmethod
    def made(cls, row: ApiKeyRow, now: int, key: str) -> Self:
        """With the key as its bearer shows it."""
        return cls(**_fields(row, now), key=key)


def no_such_key(key_id: str) -> KeyNotFoundError:
    """The refusal for an id that no key has."""
    return KeyNotFoundError(f"No API key has the id '{key_id}'.")


def _fields(row: ApiKeyRow, now: int) -> dict[str, object]:
    return {
        "id": row.id,
        "tenant": row.tenant,
        "name": row.name,
        "scopes": tuple(scope.value for scope in KeyScope if scope in scopes_of(row)),
        "live": is_live(row, now),
        "created_at": timestamp(row.created_at),
        "created_by": row.created_by,
        "expires_at": _moment(row.expires_at),
        "revoked_at": _moment(row.revoked_at),
        "used_at": _moment(row.used_at),
    }


def _moment(at: int | None) -> datetime | None:
    return None if at is None else timestamp(at)


FIRST_NAME = "first"
"""Name of the key that a service makes when it starts for the first time."""


class KeyRequest(Frozen):
    """What a key is to be for."""

    name: str = Field(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="For people: who shows it, or what for.",
        examples=["nightly loads"],
    )
    tenant: TenantName = DEFAULT_TENANT
    scopes: tuple[KeyScope, ...] = Field(
        default=(KeyScope.READ, KeyScope.SUBMIT),
        min_length=1,
        max_length=len(KeyScope),
        description="`read`: look at jobs, results and streams. `submit`: submit, change and end them, and post rows. "
        "`metrics`: scrape /metrics. `admin`: make and end keys of any tenant, and drain workers.",
    )
    expires_in: Annotated[Duration, Bounds(timedelta(seconds=1), timedelta(days=36_500))] | None = Field(
        default=None, description="How long it holds; for good by default.", examples=["90d"]
    )


def issue_key(database: Database, asked: KeyRequest, made_by: str | None) -> IssuedKey:
    """A new key. `made_by` is the id of the caller's key; None for the command line."""
    with database.write() as session:
        return _issue(session, asked, made_by, database.now(session))


def issue_first_key(database: Database) -> IssuedKey | None:
    """The key with every scope that a new service begins with; None where a key was made before, ever.

    Of several processes that start at once, one makes it.
    """
    with database.read() as session:
        if accounts.has_any_key(session):
            return None
    with database.write() as session:
        installation.lock(session)
        if accounts.has_any_key(session):
            return None
        asked = KeyRequest(name=FIRST_NAME, scopes=tuple(sorted(ALL_SCOPES)))
        return _issue(session, asked, None, database.now(session))


def _issue(session: Session, asked: KeyRequest, made_by: str | None, now: int) -> IssuedKey:
    secret = make_secret()
    new = NewKey(
        id=secret.id,
        tenant=asked.tenant,
        name=asked.name,
        scopes=frozenset(asked.scopes),
        secret_sha256=secret.sha256,
        created_by=made_by or None,
        expires_at=None if asked.expires_in is None else now + asked.expires_in // timedelta(milliseconds=1),
    )
    return IssuedKey.made(accounts.insert_key(session, new, now), now, secret.text)


MAX_PAGE_SIZE = 200
"""A larger `page_size` is read as this."""


class KeyPage(Frozen):
    """One page of the list of keys."""

    keys: tuple[ApiKey, ...]
    next_cursor: str = Field(description="Give it as `cursor` for the next page; empty on the last one.")


def list_keys(database: Database, tenant: str | None, cursor: str, page_size: int) -> KeyPage:
    """A page of at most `page_size` keys from behind `cursor` (empty: from the oldest on), live or not.

    Raises InvalidCursorError.
    """
    scope = f"keys {tenant or '*'}"
    after = _position(cursor, scope)
    limit = min(page_size, MAX_PAGE_SIZE)
    with database.read() as session:
        now = database.now(session)
        # One more than asked for tells whether there is a next page.
        found = accounts.list_keys(session, tenant=tenant, after=after, limit=limit + 1)
        page = found[:limit]
        return KeyPage(
            keys=tuple(ApiKey.of(row, now) for row in page),
            next_cursor=encode_cursor([page[-1].created_at, page[-1].id], scope) if len(found) > limit else "",
        )


def _position(cursor: str, scope: str) -> tuple[int, str] | None:
    if not cursor:
        return None
    created_at, key_id = decode_cursor(cursor, scope, (int, str))
    return int(created_at), str(key_id)


def revoke_key(database: Database, key_id: str, *, even_the_last: bool = False) -> ApiKey:
    """Ends a key for good; one that has ended stays as it is. Processes that have just seen it take it for a few
    seconds more.

    Raises KeyNotFoundError; and LastAdminKeyError for the last one with which keys can be made, unless
    `even_the_last`: whoever is at the command line can make another.
    """
    with database.write() as session:
        now = database.now(session)
        # Two admins that revoke each other's key at once would leave none.
        installation.lock(session)
        row = accounts.find_key(session, key_id)
        if row is None:
            raise no_such_key(key_id)
        is_admin = KeyScope.ADMIN in accounts.scopes_of(row) and accounts.is_live(row, now)
        if is_admin and not even_the_last and accounts.count_live_admins(session, now) == 1:
            raise LastAdminKeyError(
                "Without this key, nobody could make another over HTTP. Make another with the scope 'admin' first, or "
                "revoke it on the command line: `evenkeel keys revoke`."
            )
        accounts.revoke_key(session, key_id, now)
        session.refresh(row)
        return ApiKey.of(row, now)
