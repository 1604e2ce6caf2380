"""Signs of life of worker processes."""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import select

from service.store import workers
from service.store.session import Database
from service.store.tables import WorkerRow


class Clock(Protocol):
    ms: int


def test_a_beat_adds_then_moves(database: Database, clock: Clock) -> None:
    begin = clock.ms
    for _ in range(2):
        with database.write() as session:
            workers.beat(session, "w1", clock.ms, "0.1.0")
        clock.ms += 5_000
    with database.read() as session:
        row = session.scalars(select(WorkerRow)).one()
    assert (row.started_at, row.heartbeat_at) == (begin, begin + 5_000)


def test_only_those_heard_of_lately_count(database: Database, clock: Clock) -> None:
    for name in ("old", "new"):
        with database.write() as session:
            workers.beat(session, name, clock.ms, "0.1.0")
        clock.ms += 60_000
    with database.write() as session:
        assert workers.count_alive(session, clock.ms - 60_000) == 1
        workers.purge(session, clock.ms - 60_000)
        assert workers.count_alive(session, 0) == 1
        workers.leave(session, "new")
        assert workers.count_alive(session, 0) == 0
