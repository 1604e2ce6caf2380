"""Ending keys, and the last one that can make others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from service.access_errors import KeyNotFoundError, LastAdminKeyError
from service.keys.issue_key import KeyRequest, issue_key
from service.keys.list_keys import list_keys
from service.keys.revoke_key import revoke_key
from service.spec.scopes import KeyScope
from service.store.session import Database
from tests.support.clocks import ManualClock

ADMIN = KeyRequest(name="admin", scopes=(KeyScope.ADMIN,))


def test_a_revoked_key_stays_revoked_since_then(database: Database, clock: ManualClock) -> None:
    key = issue_key(database, KeyRequest(name="loads"), None)
    clock.ms += 1000
    revoked = revoke_key(database, key.id)
    assert not revoked.live
    clock.ms += 1000
    assert revoke_key(database, key.id) == revoked


def test_a_key_that_is_not_there_is_told(database: Database) -> None:
    with pytest.raises(KeyNotFoundError, match="aaaaaaaaaaaaaaaa"):
        revoke_key(database, "a" * 16)


def test_the_last_admin_stays_unless_that_is_meant(database: Database, clock: ManualClock) -> None:
    last = issue_key(database, ADMIN, None)
    issue_key(database, KeyRequest(name="others"), None)
    issue_key(database, ADMIN.model_copy(update={"expires_in": KeyRequest(name="x", expires_in="1s").expires_in}), None)
    clock.ms += 1000
    with pytest.raises(LastAdminKeyError):
        revoke_key(database, last.id)
    assert revoke_key(database, last.id, even_the_last=True).revoked_at is not None


def test_admins_that_revoke_each_other_leave_one(database: Database) -> None:
    keys = [issue_key(database, ADMIN, None).id for _ in range(4)]

    def revoke(key_id: str) -> bool:
        try:
            revoke_key(database, key_id)
        except LastAdminKeyError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(revoke, keys)) == 3
    assert sum(key.live for key in list_keys(database, None, "", 10).keys) == 1
