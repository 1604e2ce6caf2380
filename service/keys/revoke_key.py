"""Ends API keys."""

from __future__ import annotations

from service.access_errors import LastAdminKeyError
from service.keys.views import ApiKey, no_such_key
from service.spec.scopes import KeyScope
from service.store import api_keys, installation
from service.store.session import Database


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
        row = api_keys.find_key(session, key_id)
        if row is None:
            raise no_such_key(key_id)
        is_admin = KeyScope.ADMIN in api_keys.scopes_of(row) and api_keys.is_live(row, now)
        if is_admin and not even_the_last and api_keys.count_live_admins(session, now) == 1:
            raise LastAdminKeyError(
                "Without this key, nobody could make another over HTTP. Make another with the scope 'admin' first, or "
                "revoke it on the command line: `evenkeel keys revoke`."
            )
        api_keys.revoke_key(session, key_id, now)
        session.refresh(row)
        return ApiKey.of(row, now)
