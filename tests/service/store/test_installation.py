"""A database has one id, even if several processes create it at once."""

from __future__ import annotations

import threading

from service.store import installation
from service.store.session import Database


def test_two_processes_that_create_the_id_at_once_get_the_same(database: Database) -> None:
    told: list[str] = []

    def ask() -> None:
        with database.write() as session:
            told.append(installation.ensure_id(session))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(told) == 4
    assert len(set(told)) == 1
    with database.read() as session:
        assert installation.find_id(session) == told[0]


def test_the_id_can_be_replaced(database: Database) -> None:
    with database.write() as session:
        first = installation.ensure_id(session)
        installation.set_id(session, None)
        assert installation.find_id(session) is None
        assert installation.ensure_id(session) != first
        installation.set_id(session, "known")
    with database.write() as session:
        assert installation.ensure_id(session) == "known"
