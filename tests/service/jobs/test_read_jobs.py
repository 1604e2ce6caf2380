"""Reading jobs for all who ask at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from service.config.settings import Settings
from service.contract.enums import JobStatus
from service.contract.errors import JobNotFoundError
from service.jobs.read_jobs import JobKey, JobReader
from service.store.session import Database
from tests.support import lifecycle
from tests.support.lifecycle import TENANT


class Questions:
    """The statements about jobs that are sent; they are answered once they may be."""

    def __init__(self) -> None:
        self.sent: list[object] = []
        self.asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.failure: Exception | None = None

    def note(self, _connection: object, _cursor: object, statement: str, parameters: object, *_: object) -> None:
        """As the engine's listener."""
        if "FROM jobs" not in statement:
            return
        self.sent.append(parameters)
        self.asked.set()
        assert self.may_answer.wait(30)
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def questions(database: Database) -> Iterator[Questions]:
    with listening(database) as questions:
        yield questions


@contextmanager
def listening(database: Database) -> Iterator[Questions]:
    questions = Questions()
    event.listen(database.engine, "before_cursor_execute", questions.note)
    try:
        yield questions
    finally:
        event.remove(database.engine, "before_cursor_execute", questions.note)


def test_those_who_come_meanwhile_share_a_question(
    database: Database, settings: Settings, questions: Questions
) -> None:
    job_ids = [lifecycle.insert(database) for _ in range(5)]
    reader = JobReader(database, settings)

    async def scenario() -> list[str]:
        questions.may_answer.clear()
        first = asyncio.create_task(reader.read(JobKey(TENANT, job_ids[0])))
        await asyncio.to_thread(questions.asked.wait, 30)
        crowd = [asyncio.create_task(reader.read(JobKey(TENANT, job_ids[n % 5]))) for n in range(40)]
        await asyncio.sleep(0)
        questions.may_answer.set()
        return [job.id for job in await asyncio.gather(first, *crowd)]

    questions.sent.clear()
    assert asyncio.run(scenario()) == [job_ids[0], *(job_ids[n % 5] for n in range(40))]
    assert len(questions.sent) == 2


def test_no_answer_is_older_than_its_question(database: Database, settings: Settings, questions: Questions) -> None:
    job_id = lifecycle.insert(database)
    reader, key = JobReader(database, settings), JobKey(TENANT, job_id)

    async def scenario() -> tuple[str, str]:
        questions.may_answer.clear()
        before = asyncio.create_task(reader.read(key))
        await asyncio.to_thread(questions.asked.wait, 30)
        questions.may_answer.set()
        shown = (await before).status
        await asyncio.to_thread(lifecycle.claim, database, job_id)
        return shown, (await reader.read(key)).status

    assert asyncio.run(scenario()) == (JobStatus.QUEUED, JobStatus.PLANNING)


@pytest.mark.parametrize("job_id", ["no id", "0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a"])
def test_one_that_is_not_there_spoils_nothing(database: Database, settings: Settings, job_id: str) -> None:
    known = lifecycle.insert(database)
    reader = JobReader(database, settings)

    async def scenario() -> list[object]:
        keys = (JobKey(TENANT, job_id), JobKey(TENANT, known), JobKey("another", known))
        return list(await asyncio.gather(*(reader.read(key) for key in keys), return_exceptions=True))

    missing, found, of_another = asyncio.run(scenario())
    assert isinstance(missing, JobNotFoundError)
    assert getattr(found, "id", None) == known
    assert isinstance(of_another, JobNotFoundError)


def test_a_failure_is_told_to_all_and_the_next_question_is_asked(
    database: Database, settings: Settings, questions: Questions
) -> None:
    key = JobKey(TENANT, lifecycle.insert(database))
    reader = JobReader(database, settings)
    away = OperationalError("SELECT", None, Exception("the server closed the connection"))

    async def scenario() -> tuple[list[object], str]:
        questions.failure = away
        failed = await asyncio.gather(*(reader.read(key) for _ in range(3)), return_exceptions=True)
        questions.failure = None
        return list(failed), (await reader.read(key)).id

    failed, found = asyncio.run(scenario())
    assert failed == [away] * 3
    assert found == key.job_id


def test_whoever_leaves_takes_no_answer_from_others(
    database: Database, settings: Settings, questions: Questions
) -> None:
    key = JobKey(TENANT, lifecycle.insert(database))
    reader = JobReader(database, settings)

    async def scenario() -> str:
        questions.may_answer.clear()
        leaving, staying = (asyncio.create_task(reader.read(key)) for _ in range(2))
        await asyncio.to_thread(questions.asked.wait, 30)
        leaving.cancel()
        await asyncio.sleep(0)
        questions.may_answer.set()
        return (await staying).id

    assert asyncio.run(scenario()) == key.job_id
