"""Makes API keys."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field
from sqlalchemy.orm import Session

from service.jobs.tenants import DEFAULT_TENANT
from service.keys.secrets import make_secret
from service.keys.views import IssuedKey
from service.spec.model import Frozen
from service.spec.quantities import Bounds, Duration
from service.spec.scopes import ALL_SCOPES, KeyScope
from service.spec.tenants import TenantName
from service.store import api_keys, installation
from service.store.api_keys import NewKey
from service.store.session import Database

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
        if api_keys.has_any(session):
            return None
    with database.write() as session:
        installation.lock(session)
        if api_keys.has_any(session):
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
    return IssuedKey.made(api_keys.insert_key(session, new, now), now, secret.text)
