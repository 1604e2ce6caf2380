"""The list of keys, in pages, of all tenants or of one."""

from __future__ import annotations

import pytest

from service.errors import InvalidCursorError
from service.keys.issue_key import KeyRequest, issue_key
from service.keys.list_keys import list_keys
from service.store.session import Database
from tests.support.clocks import ManualClock


@pytest.fixture
def names(database: Database, clock: ManualClock) -> list[str]:
    """Seven keys, of two tenants in turn, some made within the same millisecond."""
    made = []
    for number in range(7):
        made.append(f"key-{number}")
        issue_key(database, KeyRequest(name=made[-1], tenant=("a", "b")[number % 2]), None)
        clock.ms += number % 2
    return made


@pytest.mark.parametrize(("tenant", "step"), [(None, 1), ("a", 2)])
def test_every_key_once(database: Database, names: list[str], tenant: str | None, step: int) -> None:
    found, cursor = [], ""
    while True:
        page = list_keys(database, tenant, cursor, 2)
        assert len(page.keys) <= 2
        found += [key.name for key in page.keys]
        cursor = page.next_cursor
        if not cursor:
            break
    assert sorted(found) == names[::step]


def test_a_cursor_of_another_list_is_refused(database: Database, names: list[str]) -> None:
    cursor = list_keys(database, "a", "", 1).next_cursor
    with pytest.raises(InvalidCursorError):
        list_keys(database, "b", cursor, 1)
    with pytest.raises(InvalidCursorError):
        list_keys(database, None, cursor, 1)
