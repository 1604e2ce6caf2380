"""Elections: one leader at a time, replaced when it falls silent."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from service.store import leaders
from service.store.session import Database
from tests.support.clocks import ManualClock

TERM = 10_000


def elect(database: Database, owner: str) -> bool:
    with database.write() as session:
        return leaders.elect(session, "sweep", owner, database.now(session), TERM)


def test_the_first_one_leads_and_stays(database: Database, clock: ManualClock) -> None:
    assert elect(database, "a")
    assert not elect(database, "b")
    clock.ms += TERM - 1
    assert elect(database, "a")
    clock.ms += TERM - 1
    assert not elect(database, "b")


def test_a_silent_leader_is_replaced(database: Database, clock: ManualClock) -> None:
    assert elect(database, "a")
    clock.ms += TERM
    assert elect(database, "b")
    assert not elect(database, "a")


def test_a_leader_may_resign(database: Database) -> None:
    assert elect(database, "a")
    with database.write() as session:
        leaders.resign(session, "sweep", "b")
    assert not elect(database, "b")
    with database.write() as session:
        leaders.resign(session, "sweep", "a")
    assert elect(database, "b")


def test_tasks_have_leaders_of_their_own(database: Database, clock: ManualClock) -> None:
    assert elect(database, "a")
    with database.write() as session:
        assert leaders.elect(session, "other", "b", clock.ms, TERM)


def test_exactly_one_of_many_is_elected(database: Database) -> None:
    together = threading.Barrier(8)

    def run(number: int) -> bool:
        together.wait(10)
        return elect(database, f"w{number}")

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(run, range(8))) == 1
