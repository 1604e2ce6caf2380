"""Elections: one leader at a time, replaced when its term is over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from service.store import leases
from service.store.session import Database
from tests.support.clocks import ManualClock

TERM = 10_000


def elect(database: Database, owner: str) -> bool:
    with database.write() as session:
        return leases.elect(session, "sweep", owner, database.now(session), TERM)


def test_the_first_one_leads_and_stays(database: Database, clock: ManualClock) -> None:
    assert elect(database, "a")
    assert not elect(database, "b")
    clock.ms += TERM - 1
    assert elect(database, "a")
    clock.ms += TERM - 1
    assert not elect(database, "b")


def test_a_leader_is_replaced_after_its_term(database: Database, clock: ManualClock) -> None:
    assert elect(database, "a")
    clock.ms += TERM
    assert elect(database, "b")
    assert not elect(database, "a")


def test_a_leader_may_resign(database: Database) -> None:
    assert elect(database, "a")
    with database.write() as session:
        leases.resign(session, "sweep", "b")
    assert not elect(database, "b")
    with database.write() as session:
        leases.resign(session, "sweep", "a")
    assert elect(database, "b")


def test_each_task_has_its_own_leader(database: Database, clock: ManualClock) -> None:
    def elect_for(task: str, owner: str) -> bool:
        with database.write() as session:
            return leases.elect(session, task, owner, clock.ms, TERM)

    assert elect_for("sweep", "a")
    assert elect_for("other", "b")
    clock.ms += TERM
    assert elect_for("other", "a"), "the time of b is over"
    assert elect_for("sweep", "b"), "the time of a was not extended by the other election"
    assert elect_for("third", "a")
    with database.write() as session:
        leases.resign(session, "other", "a")
    assert (elect_for("third", "b"), elect_for("other", "b")) == (False, True)


def test_a_term_longer_than_allowed_is_over(database: Database, clock: ManualClock) -> None:
    """It was stored before the clock was set back."""
    with database.write() as session:
        assert leases.elect(session, "sweep", "a", clock.ms, 3_600_000)
    assert not elect(database, "b")
    clock.ms -= 1
    assert elect(database, "b")


def test_exactly_one_of_many_is_elected(database: Database) -> None:
    together = threading.Barrier(8)

    def run(number: int) -> bool:
        together.wait(10)
        return elect(database, f"w{number}")

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(run, range(8))) == 1
