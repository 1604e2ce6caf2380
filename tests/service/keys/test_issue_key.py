"""Making keys, the first one once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from service.keys.issue_key import KeyRequest, issue_first_key, issue_key
from service.keys.list_keys import list_keys
from service.keys.revoke_key import revoke_key
from service.keys.secrets import read_secret
from service.spec.scopes import KeyScope
from service.store.session import Database
from service.store.tables import ApiKeyRow
from tests.support.clocks import ManualClock


def test_a_key_is_stored_without_its_secret(database: Database) -> None:
    issued = issue_key(database, KeyRequest(name="loads", tenant="sales"), "maker")
    secret = read_secret(issued.key)
    assert secret is not None
    assert (issued.id, issued.tenant, issued.name, issued.created_by) == (secret.id, "sales", "loads", "maker")
    assert issued.scopes == ("read", "submit")
    assert issued.live
    with database.read() as session:
        row = session.scalars(select(ApiKeyRow)).one()
    assert row.secret_sha256 == secret.sha256
    assert secret.secret not in str({column.name: getattr(row, column.name) for column in row.__table__.columns})


def test_a_key_lives_until_it_expires(database: Database, clock: ManualClock) -> None:
    issued = issue_key(database, KeyRequest(name="trial", expires_in="1h"), None)
    assert issued.expires_at is not None
    assert issued.expires_at - issued.created_at == timedelta(hours=1)
    clock.ms += 3_599_999
    assert [key.live for key in list_keys(database, None, "", 10).keys] == [True]
    clock.ms += 1
    assert [key.live for key in list_keys(database, None, "", 10).keys] == [False]


@pytest.mark.parametrize(
    "given",
    [
        {"name": ""},
        {"name": "line\nbreak"},
        {"name": "x", "tenant": "../etc"},
        {"name": "x", "tenant": "Sales"},
        {"name": "x", "tenant": ""},
        {"name": "x", "tenant": "a" * 64},
        {"name": "x", "tenant": "a\n"},
        {"name": "x", "scopes": []},
        {"name": "x", "scopes": ["everything"]},
        {"name": "x", "expires_in": "0s"},
        {"name": "x", "expires_in": "1000000d"},
        {"name": "x", "secret": "mine"},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        KeyRequest.model_validate(given)


def test_the_first_key_may_do_everything_and_is_made_once(database: Database) -> None:
    first = issue_first_key(database)
    assert first is not None
    assert set(first.scopes) == {scope.value for scope in KeyScope}
    assert issue_first_key(database) is None
    revoke_key(database, first.id, even_the_last=True)
    # Who revokes it knows what they do: a restart is no way back in.
    assert issue_first_key(database) is None


def test_of_many_that_start_at_once_one_makes_the_first_key(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: issue_first_key(database), range(8)))
    assert sum(key is not None for key in made) == 1
    assert len(list_keys(database, None, "", 10).keys) == 1
