"""Jobs are announced after the requests that stored them, which do not wait for the broker."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import closing

from sqlalchemy import event, select

from service.broker.dispatch import Dispatcher, JobAnnouncer
from service.config.settings import Settings
from service.contract.enums import Queue
from service.store import events
from service.store.session import Database
from service.store.tables import OutboxRow
from tests.support import lifecycle


class HeldDispatcher(Dispatcher):
    """Sends once `may_send` is set; the broker accepts `takes` jobs of each call."""

    def __init__(self, settings: Settings, takes: int = 1_000) -> None:
        super().__init__(settings)
        self.may_send = threading.Event()
        self.calls: list[tuple[str, list[str]]] = []
        self._takes = takes

    def announce(self, job_ids: Iterable[str], queue: str) -> tuple[str, ...]:
        """As the real one."""
        assert self.may_send.wait(30)
        asked = list(job_ids)
        self.calls.append((queue, asked))
        return super().announce(asked[: self._takes], queue)


def stored(database: Database, number: int) -> list[str]:
    """Stores so many jobs with their messages."""
    job_ids = [lifecycle.insert(database) for _ in range(number)]
    with database.write() as session:
        for job_id in job_ids:
            events.add_message(session, job_id=job_id, tenant=lifecycle.TENANT, now=1)
    return job_ids


def owed(database: Database) -> set[str]:
    with database.read() as session:
        return set(session.scalars(select(OutboxRow.job_id)))


def test_jobs_stored_meanwhile_are_announced_together(database: Database, settings: Settings) -> None:
    first, *others = stored(database, 7)
    dispatcher = HeldDispatcher(settings)
    with closing(JobAnnouncer(database, dispatcher)) as announcer:
        announcer.announce(first, Queue.SHORT)
        for number, job_id in enumerate(others):
            announcer.announce(job_id, Queue.LONG if number % 2 else Queue.SHORT)
        dispatcher.may_send.set()
    assert sorted(job_id for _, ids in dispatcher.calls for job_id in ids) == sorted([first, *others])
    assert len(dispatcher.calls) <= 3, "the first alone at the most, then those of each queue"
    assert owed(database) == set()


def test_what_the_broker_did_not_take_stays_owed(database: Database, settings: Settings) -> None:
    job_ids = stored(database, 3)
    dispatcher = HeldDispatcher(settings, takes=0)
    with closing(JobAnnouncer(database, dispatcher)) as announcer:
        for job_id in job_ids:
            announcer.announce(job_id, Queue.SHORT)
        dispatcher.may_send.set()
    assert owed(database) == set(job_ids)


def test_it_rings_on_after_the_database_failed_it(database: Database, settings: Settings) -> None:
    lost, kept = stored(database, 2)
    failures = [RuntimeError("the database is away")]
    settled = threading.Event()

    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM outbox"):
            settled.set()
            if failures:
                raise failures.pop()

    dispatcher = HeldDispatcher(settings)
    dispatcher.may_send.set()
    event.listen(database.engine, "before_cursor_execute", fail)
    with closing(JobAnnouncer(database, dispatcher)) as announcer:
        announcer.announce(lost, Queue.SHORT)
        assert settled.wait(30)
        announcer.announce(kept, Queue.SHORT)
    assert owed(database) == {lost}, "a sweeper announces it once more, which does no harm"


def test_messages_are_deleted_together_while_it_runs(database: Database, settings: Settings) -> None:
    job_ids = stored(database, 5)
    deleted = threading.Event()
    deletions: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM outbox"):
            deletions.append(statement)
            deleted.set()

    dispatcher = HeldDispatcher(settings)
    dispatcher.may_send.set()
    event.listen(database.engine, "before_cursor_execute", note)
    with closing(JobAnnouncer(database, dispatcher)) as announcer:
        for job_id in job_ids:
            announcer.announce(job_id, Queue.SHORT)
        assert deleted.wait(30), "without further jobs, and before it is closed"
    assert owed(database) == set()
    assert len(deletions) < len(job_ids)
