"""Lists API keys, of every tenant or of one, page by page."""

from __future__ import annotations

from pydantic import Field

from service.jobs.cursors import decode_cursor, encode_cursor
from service.keys.views import ApiKey
from service.spec.model import Frozen
from service.store import api_keys
from service.store.session import Database

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
        found = api_keys.list_keys(session, tenant=tenant, after=after, limit=limit + 1)
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
