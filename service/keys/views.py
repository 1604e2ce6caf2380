"""API keys as operators see them; the key itself is seen once."""

from __future__ import annotations

from datetime import datetime
from typing import Self

from pydantic import Field

from service.access_errors import KeyNotFoundError
from service.jobs.views import timestamp
from service.spec.model import Frozen
from service.spec.scopes import KeyScope
from service.store.api_keys import is_live, scopes_of
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
