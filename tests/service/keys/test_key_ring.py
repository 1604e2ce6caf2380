"""Keys as they are shown: remembered for seconds, no longer."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from service.keys import key_ring
from service.keys.issue_key import KeyRequest, issue_key
from service.keys.key_ring import REMEMBERED_SECONDS, KeyRing
from service.keys.principal import ANYBODY, Principal
from service.keys.revoke_key import revoke_key
from service.keys.secrets import Secret, make_secret, read_secret
from service.keys.views import IssuedKey
from service.spec.scopes import KeyScope
from service.store import api_keys
from service.store.session import Database
from tests.support.clocks import ManualClock, ManualSeconds


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
    assert ring.recall(secret) == (False, None)
    principal = Principal("sales", frozenset({KeyScope.READ}), issued.id)
    assert ring.look_up(secret) == principal
    assert ring.recall(secret) == (True, principal)


def test_a_remembered_key_asks_the_database_nothing(
    ring: KeyRing, issued: IssuedKey, database: Database, seconds: ManualSeconds
) -> None:
    secret = shown(issued)
    ring.look_up(secret)
    asked: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: asked.append(given[2]))
    seconds.now = REMEMBERED_SECONDS
    assert ring.recall(secret)[0]
    assert ring.holds(Principal("sales", frozenset({KeyScope.READ}), issued.id))
    assert not asked


def test_the_secret_counts_also_for_a_key_that_is_remembered(ring: KeyRing, issued: IssuedKey) -> None:
    ring.look_up(shown(issued))
    guess = Secret(issued.id, make_secret().secret)
    assert ring.recall(guess) == (True, None)
    assert ring.look_up(guess) is None
    # And who tries does not lock its owner out.
    assert ring.recall(shown(issued))[1] is not None


def test_a_revoked_key_is_forgotten_within_seconds(
    ring: KeyRing, issued: IssuedKey, database: Database, seconds: ManualSeconds
) -> None:
    secret = shown(issued)
    principal = ring.look_up(secret)
    assert principal is not None
    revoke_key(database, issued.id)
    seconds.now = REMEMBERED_SECONDS + 0.1
    assert ring.recall(secret) == (False, None)
    assert not ring.holds(principal)
    assert ring.look_up(secret) is None


def test_an_expired_key_opens_nothing(ring: KeyRing, database: Database, clock: ManualClock) -> None:
    key = issue_key(database, KeyRequest(name="trial", expires_in="1s"), None)
    clock.ms += 1000
    assert ring.look_up(shown(key)) is None


def test_a_key_that_does_not_exist_is_remembered_within_bounds(ring: KeyRing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_ring, "_MOST_REMEMBERED", 3)
    tried = [make_secret() for _ in range(5)]
    for secret in tried:
        assert ring.look_up(secret) is None
    assert [ring.recall(secret)[0] for secret in tried] == [False, False, True, True, True]


def test_keys_that_do_not_exist_have_no_other_forgotten(
    ring: KeyRing, issued: IssuedKey, monkeypatch: pytest.MonkeyPatch, seconds: ManualSeconds, database: Database
) -> None:
    monkeypatch.setattr(key_ring, "_MOST_REMEMBERED", 3)
    assert not ring.has_held(shown(issued))
    ring.look_up(shown(issued))
    for _ in range(5):
        ring.look_up(make_secret())
    assert ring.recall(shown(issued))[1] is not None
    seconds.now = 10 * REMEMBERED_SECONDS
    assert ring.has_held(shown(issued))
    assert not ring.has_held(Secret(issued.id, make_secret().secret))
    revoke_key(database, issued.id)
    ring.look_up(shown(issued))
    assert not ring.has_held(shown(issued))


def test_use_is_noted_to_the_minute(
    ring: KeyRing, issued: IssuedKey, database: Database, seconds: ManualSeconds, clock: ManualClock
) -> None:
    def used() -> int | None:
        with database.read() as session:
            row = api_keys.find_key(session, issued.id)
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
