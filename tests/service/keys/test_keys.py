"""Keys: made, listed, revoked, and remembered by the API."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import event, select

from service.contract.enums import KeyScope
from service.contract.errors import InvalidCursorError, KeyNotFoundError, LastAdminKeyError
from service.keys import verification
from service.keys.administration import IssuedKey, KeyRequest, issue_first_key, issue_key, list_keys, revoke_key
from service.keys.verification import ANYBODY, CACHE_SECONDS, KeyRing, Principal, Secret, make_secret, read_secret
from service.store import accounts
from service.store.session import Database
from service.store.tables import ApiKeyRow
from tests.support.clocks import ManualClock, ManualSeconds


def test_a_key_is_read_as_it_was_made() -> None:
    made = make_secret()
    read = read_secret(made.text)
    assert read == made
    assert read.is_of(made.sha256)


def test_no_two_keys_are_alike() -> None:
    assert len({make_secret().text for _ in range(100)}) == 100


def test_what_is_stored_opens_nothing_else() -> None:
    one, other = make_secret(), make_secret()
    assert not Secret(one.id, other.secret).is_of(one.sha256)
    assert one.secret not in one.sha256


def test_a_secret_is_not_shown_by_accident() -> None:
    made = make_secret()
    assert made.secret not in f"{made!r} {made}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ek_",
        "ek_short_secret",
        f"EK_{'a' * 16}_{'b' * 43}",
        f"ek_{'a' * 16}_{'b' * 42}",
        f"ek_{'a' * 16}_{'b' * 44}",
        f"ek_{'A' * 16}_{'b' * 43}",
        f"ek_{'a' * 16}_{'b' * 42}é",
        f"ek_{'a' * 16}_{'b' * 43}\n",
        f" ek_{'a' * 16}_{'b' * 43}",
        "ek_" + "a" * 1_000_000,
    ],
)
def test_anything_else_is_no_key(text: str) -> None:
    assert read_secret(text) is None


def test_a_key_is_stored_without_its_secret(database: Database) -> None:
    issued = issue_key(database, KeyRequest(name="loads", tenant="sales"), "maker")
    secret = read_secret(issued.key)
    assert secret is not None
    assert (issued.id, issued.tenant, issued.name, issued.created_by) == (secret.id, "sales", "loads", "maker")
    assert issued.scopes == ("read", "submit")
    assert issued.active
    with database.read() as session:
        row = session.scalars(select(ApiKeyRow)).one()
    assert row.secret_sha256 == secret.sha256
    assert secret.secret not in str({column.name: getattr(row, column.name) for column in row.__table__.columns})


def test_a_key_lives_until_it_expires(database: Database, clock: ManualClock) -> None:
    issued = issue_key(database, KeyRequest(name="trial", expires_in="1h"), None)
    assert issued.expires_at is not None
    assert issued.expires_at - issued.created_at == timedelta(hours=1)
    clock.ms += 3_599_999
    assert [key.active for key in list_keys(database, None, "", 10).keys] == [True]
    clock.ms += 1
    assert [key.active for key in list_keys(database, None, "", 10).keys] == [False]


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
    revoke_key(database, first.id, allow_last_admin=True)
    # Who revokes it knows what they do: a restart is no way back in.
    assert issue_first_key(database) is None


def test_of_many_that_start_at_once_one_makes_the_first_key(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: issue_first_key(database), range(8)))
    assert sum(key is not None for key in made) == 1
    assert len(list_keys(database, None, "", 10).keys) == 1


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


ADMIN = KeyRequest(name="admin", scopes=(KeyScope.ADMIN,))


def test_a_revoked_key_stays_revoked_since_then(database: Database, clock: ManualClock) -> None:
    key = issue_key(database, KeyRequest(name="loads"), None)
    clock.ms += 1000
    revoked = revoke_key(database, key.id)
    assert not revoked.active
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
    assert revoke_key(database, last.id, allow_last_admin=True).revoked_at is not None


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
    assert sum(key.active for key in list_keys(database, None, "", 10).keys) == 1


@pytest.fixture
def seconds() -> ManualSeconds:
    return ManualSeconds()


@pytest.fixture
def ring(database: Database, seconds: ManualSeconds) -> KeyRing:
    return KeyRing(database, seconds)


@pytest.fixture
def issued(database: Database) -> IssuedKey:
    return issue_key(database, KeyRequest(name="loads", tenant="sales", scopes=(KeyScope.READ,)), None)


def shown(issued: IssuedKey) -> Secret:
    secret = read_secret(issued.key)
    assert secret is not None
    return secret


def test_a_key_tells_whose_it_is(ring: KeyRing, issued: IssuedKey) -> None:
    secret = shown(issued)
    assert ring.find_cached(secret) == (False, None)
    principal = Principal("sales", frozenset({KeyScope.READ}), issued.id)
    assert ring.look_up(secret) == principal
    assert ring.find_cached(secret) == (True, principal)


def test_a_remembered_key_asks_the_database_nothing(
    ring: KeyRing, issued: IssuedKey, database: Database, seconds: ManualSeconds
) -> None:
    secret = shown(issued)
    ring.look_up(secret)
    asked: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    seconds.now = CACHE_SECONDS
    assert ring.find_cached(secret)[0]
    assert ring.holds(Principal("sales", frozenset({KeyScope.READ}), issued.id))
    assert not asked


def test_the_secret_counts_also_for_a_key_that_is_remembered(ring: KeyRing, issued: IssuedKey) -> None:
    ring.look_up(shown(issued))
    guess = Secret(issued.id, make_secret().secret)
    assert ring.find_cached(guess) == (True, None)
    assert ring.look_up(guess) is None
    # And who tries does not lock its owner out.
    assert ring.find_cached(shown(issued))[1] is not None


def test_a_revoked_key_is_forgotten_within_seconds(
    ring: KeyRing, issued: IssuedKey, database: Database, seconds: ManualSeconds
) -> None:
    secret = shown(issued)
    principal = ring.look_up(secret)
    assert principal is not None
    revoke_key(database, issued.id)
    seconds.now = CACHE_SECONDS + 0.1
    assert ring.find_cached(secret) == (False, None)
    assert not ring.holds(principal)
    assert ring.look_up(secret) is None


def test_an_expired_key_opens_nothing(ring: KeyRing, database: Database, clock: ManualClock) -> None:
    key = issue_key(database, KeyRequest(name="trial", expires_in="1s"), None)
    clock.ms += 1000
    assert ring.look_up(shown(key)) is None


def test_a_key_that_does_not_exist_is_remembered_within_bounds(ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_MAX_CACHED", 3)
    tried = [make_secret() for _ in range(5)]
    for secret in tried:
        assert ring.look_up(secret) is None
    assert [ring.find_cached(secret)[0] for secret in tried] == [False, False, True, True, True]


def test_keys_that_do_not_exist_have_no_other_forgotten(
    ring: KeyRing, issued: IssuedKey, monkeypatch: pytest.MonkeyPatch, seconds: ManualSeconds, database: Database
) -> None:
    monkeypatch.setattr(verification, "_MAX_CACHED", 3)
    assert not ring.was_valid(shown(issued))
    ring.look_up(shown(issued))
    for _ in range(5):
        ring.look_up(make_secret())
    assert ring.find_cached(shown(issued))[1] is not None
    seconds.now = 10 * CACHE_SECONDS
    assert ring.was_valid(shown(issued))
    assert not ring.was_valid(Secret(issued.id, make_secret().secret))
    revoke_key(database, issued.id)
    ring.look_up(shown(issued))
    assert not ring.was_valid(shown(issued))


def test_use_is_noted_to_the_minute(
    ring: KeyRing, issued: IssuedKey, database: Database, seconds: ManualSeconds, clock: ManualClock
) -> None:
    def used() -> int | None:
        with database.read() as session:
            row = accounts.find_key(session, issued.id)
            assert row is not None
            return row.used_at

    ring.look_up(Secret(issued.id, make_secret().secret))
    assert used() is None
    first = clock.ms
    ring.look_up(shown(issued))
    clock.ms += 59_000
    ring.look_up(shown(issued))
    assert used() == first
    clock.ms += 1_000
    ring.look_up(shown(issued))
    assert used() == clock.ms


def test_where_nobody_is_authenticated_anybody_holds(ring: KeyRing) -> None:
    assert ring.holds(ANYBODY)
