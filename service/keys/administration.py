"""Creates, lists and revokes API keys. The full key is returned only when it is created."""

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
from service.store.accounts import NewKey, is_valid, scopes_of
from service.store.session import Database
from service.store.tables import ApiKeyRow

FIRST_NAME = "first"
"""Name of the key that is created when a service starts for the first time."""
MAX_PAGE_SIZE = 200
"""A larger `page_size` is reduced to this."""


class ApiKey(Frozen):
    """A key without its secret."""

    id: str = Field(description="Public part of the key.", examples=["mfrggzdfmztwq2lk"])
    tenant: str = Field(description="The tenant whose jobs and streams it gives access to.", examples=["default"])
    name: str = Field(examples=["nightly loads"])
    scopes: tuple[str, ...] = Field(description="What it permits.", examples=[["read", "submit"]])
    active: bool = Field(description="True if it is valid now: neither revoked nor expired.")
    created_at: datetime
    created_by: str | None = Field(description="Id of the key that created it; null if created on the command line.")
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None = Field(description="When it was last used, to the minute.")

    @classmethod
    def of(cls, row: ApiKeyRow, now: int) -> Self:
        """Returns the key as it is stored in the database, at time `now` (milliseconds)."""
        return cls(**_fields(row, now))


class IssuedKey(ApiKey):
    """A key that was just created: the only response that contains the full key."""

    key: str = Field(
        description="Store it safely: it is not returned again, and cannot be recovered from the database.",
        examples=["ek_mfrggzdfmztwq2lk_3q2-7wAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"],
    )

    @classmethod
    def made(cls, row: ApiKeyRow, now: int, key: str) -> Self:
        """Returns the key together with its full text."""
        return cls(**_fields(row, now), key=key)


def no_such_key(key_id: str) -> KeyNotFoundError:
    """Returns the error for an unknown key id."""
    return KeyNotFoundError(f"No API key has the id '{key_id}'.")


def _fields(row: ApiKeyRow, now: int) -> dict[str, object]:
    return {
        "id": row.id,
        "tenant": row.tenant,
        "name": row.name,
        "scopes": tuple(scope.value for scope in KeyScope if scope in scopes_of(row)),
        "active": is_valid(row, now),
        "created_at": timestamp(row.created_at),
        "created_by": row.created_by,
        "expires_at": _moment(row.expires_at),
        "revoked_at": _moment(row.revoked_at),
        "used_at": _moment(row.used_at),
    }


def _moment(at: int | None) -> datetime | None:
    return None if at is None else timestamp(at)


class KeyRequest(Frozen):
    """The properties of a new key."""

    name: str = Field(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="A label, such as the user or the purpose of the key.",
        examples=["nightly loads"],
    )
    tenant: TenantName = DEFAULT_TENANT
    scopes: tuple[KeyScope, ...] = Field(
        default=(KeyScope.READ, KeyScope.SUBMIT),
        min_length=1,
        max_length=len(KeyScope),
        description="`read`: read jobs, results and streams. `submit`: submit, change, cancel and delete them, and "
        "post rows. `metrics`: scrape /metrics. `admin`: create and revoke keys of any tenant, and drain workers.",
    )
    expires_in: Annotated[Duration, Bounds(timedelta(seconds=1), timedelta(days=36_500))] | None = Field(
        default=None, description="Lifetime; by default the key never expires.", examples=["90d"]
    )


def issue_key(database: Database, asked: KeyRequest, made_by: str | None) -> IssuedKey:
    """Creates a key. `made_by` is the id of the caller's key; None for the command line."""
    with database.write() as session:
        return _issue(session, asked, made_by, database.now(session))


def issue_first_key(database: Database) -> IssuedKey | None:
    """Creates the first key of a new service, with every scope; returns None if any key was ever created.

    If several processes start at once, one of them creates it.
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


class KeyPage(Frozen):
    """One page of the list of keys."""

    keys: tuple[ApiKey, ...]
    next_cursor: str = Field(description="The `cursor` of the next page; empty on the last page.")


def list_keys(database: Database, tenant: str | None, cursor: str, page_size: int) -> KeyPage:
    """Returns a page of at most `page_size` keys, oldest first, valid or not, that follow `cursor`; an empty cursor
    starts at the oldest.

    Raises InvalidCursorError.
    """
    scope = f"keys {tenant or '*'}"
    after = _position(cursor, scope)
    limit = min(page_size, MAX_PAGE_SIZE)
    with database.read() as session:
        now = database.now(session)
        # One extra row shows whether there is a next page.
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


def revoke_key(database: Database, key_id: str, *, allow_last_admin: bool = False) -> ApiKey:
    """Revokes a key permanently; a key that is already invalid does not change. Processes that have cached it accept it
    for a few more seconds.

    Raises KeyNotFoundError, and LastAdminKeyError for the last valid key with the scope `admin`, unless
    `allow_last_admin`, which the command line uses because it can create another key.
    """
    with database.write() as session:
        now = database.now(session)
        # Two admins who revoke each other's keys concurrently would leave no admin key.
        installation.lock(session)
        row = accounts.find_key(session, key_id)
        if row is None:
            raise no_such_key(key_id)
        is_admin = KeyScope.ADMIN in accounts.scopes_of(row) and accounts.is_valid(row, now)
        if is_admin and not allow_last_admin and accounts.count_valid_admins(session, now) == 1:
            raise LastAdminKeyError(
                "This is the last key with the scope 'admin': without it, no key could be created over HTTP. Create "
                "another one first, or revoke this one on the command line: `evenkeel keys revoke`."
            )
        accounts.revoke_key(session, key_id, now)
        session.refresh(row)
        return ApiKey.of(row, now)
