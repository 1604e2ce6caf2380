"""The poller: one question for all who wait, none while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event, text
from sqlalchemy.orm import Session

from service.config.settings import Settings
from service.jobs.read_jobs import JobWatcher
from service.store.session import Database
from tests.support import lifecycle

SOON = 10.0
"""Seconds: a deadline, never reached where all is well."""


@contextmanager
def questions(database: Database) -> Iterator[list[str]]:
    """The statements about versions that are sent meanwhile."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "jobs.version" in statement:
            sent.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(database.engine, "before_cursor_execute", note)


def watcher(database: Database) -> JobWatcher:
    return JobWatcher(database, interval_seconds=0.01)


def test_a_change_wakes_everyone_who_waits_for_it(database: Database) -> None:
    changing, quiet = lifecycle.insert(database), lifecycle.insert(database)

    async def scenario() -> tuple[list[bool], bool]:
        watching = watcher(database)
        watching.start()
        crowd = [asyncio.create_task(watching.wait_for_change(changing, 1, SOON)) for _ in range(200)]
        other = asyncio.create_task(watching.wait_for_change(quiet, 1, 0.5))
        await asyncio.sleep(0)
        await asyncio.to_thread(lifecycle.claim, database, changing)
        woken = await asyncio.gather(*crowd)
        still = await other
        await watching.stop()
        return list(woken), still

    woken, still = asyncio.run(scenario())
    assert set(woken) == {True}
    assert still is False


def test_a_version_that_is_old_already_wakes_at_once(database: Database) -> None:
    job_id = lifecycle.insert(database)

    async def scenario() -> bool:
        watching = watcher(database)
        watching.start()
        woken = await watching.wait_for_change(job_id, 0, SOON)
        await watching.stop()
        return woken

    assert asyncio.run(scenario()) is True


def test_a_job_that_is_gone_wakes(database: Database) -> None:
    async def scenario() -> bool:
        watching = watcher(database)
        watching.start()
        woken = await watching.wait_for_change("no such job", 1, SOON)
        await watching.stop()
        return woken

    assert asyncio.run(scenario()) is True


@pytest.mark.not_quick
def test_a_crowd_costs_one_question_a_round_and_nobody_none(database: Database) -> None:
    job_id = lifecycle.insert(database)

    async def scenario(sent: list[str]) -> tuple[int, int]:
        watching = JobWatcher(database, interval_seconds=0.1)
        watching.start()
        await asyncio.sleep(0.25)
        idle = len(sent)
        await asyncio.gather(*(watching.wait_for_change(job_id, 1, 0.35) for _ in range(300)))
        busy = len(sent)
        await watching.stop()
        return idle, busy

    with questions(database) as sent:
        idle, busy = asyncio.run(scenario(sent))
    assert idle == 0
    # At most ten in each interval, however many wait.
    assert 1 <= busy <= 45


def test_a_database_that_fails_for_a_while_is_outlived(database: Database) -> None:
    job_id = lifecycle.insert(database)

    def rename(source: str, target: str) -> None:
        with database.write() as session:
            if session.get_bind().dialect.name == "sqlite":
                session.execute(text("PRAGMA legacy_alter_table = ON"))
            session.execute(text(f"ALTER TABLE {source} RENAME TO {target}"))

    async def scenario() -> bool:
        watching = watcher(database)
        watching.start()
        await asyncio.to_thread(rename, "jobs", "jobs_away")
        waiting = asyncio.create_task(watching.wait_for_change(job_id, 1, SOON))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(rename, "jobs_away", "jobs")
        await asyncio.to_thread(lifecycle.claim, database, job_id)
        woken = await waiting
        await watching.stop()
        return woken

    assert asyncio.run(scenario()) is True


class Faulty(Database):
    """Fails with whatever is left in `faults`, one a question."""

    def __init__(self, url: str, faults: list[Exception]) -> None:
        super().__init__(url)
        self._faults = faults

    @contextmanager
    def look(self) -> Iterator[Session]:
        if self._faults:
            raise self._faults.pop()
        with super().look() as session:
            yield session


def test_no_fault_ends_the_poller(database: Database, settings: Settings) -> None:
    job_id = lifecycle.insert(database)
    faults: list[Exception] = []

    async def scenario() -> bool:
        watching = watcher(Faulty(settings.database_url, faults))
        watching.start()
        faults.extend([RuntimeError("once"), OSError("too many open files")])
        woken = await watching.wait_for_change(job_id, 0, SOON)
        await watching.stop()
        return woken

    assert asyncio.run(scenario()) is True
    assert faults == []


@pytest.mark.one_database("sqlite")
def test_sqlite_is_asked_only_after_a_write(database: Database) -> None:
    job_id, other = lifecycle.insert(database), lifecycle.insert(database)

    async def scenario() -> tuple[int, int, bool]:
        watching = watcher(database)
        watching.start()
        with questions(database) as sent:
            waiting = asyncio.create_task(watching.wait_for_change(job_id, 1, SOON))
            await asyncio.sleep(0.3)
            before = len(sent)
            await asyncio.to_thread(lifecycle.claim, database, other)
            await asyncio.sleep(0.3)
            after = len(sent)
            await asyncio.to_thread(lifecycle.claim, database, job_id)
            woken = await waiting
        await watching.stop()
        return before, after, woken

    before, after, woken = asyncio.run(scenario())
    assert before == 1
    assert before < after <= 3
    assert woken


def test_stopping_lets_nobody_hang(database: Database) -> None:
    job_id = lifecycle.insert(database)

    async def scenario() -> bool:
        watching = watcher(database)
        watching.start()
        waiting = asyncio.create_task(watching.wait_for_change(job_id, 1, SOON))
        await asyncio.sleep(0.05)
        await watching.stop()
        return await waiting

    assert asyncio.run(scenario()) is True
