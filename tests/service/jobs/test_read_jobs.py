"""Reading jobs for all who ask at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import event, text, update
from sqlalchemy.exc import OperationalError

from service.config.settings import DatabaseSettings, Settings
from service.contract.enums import JobStatus
from service.contract.errors import JobNotFoundError
from service.jobs.known_jobs import JobKey, KnownJobs
from service.jobs.read_jobs import JobReader
from service.store import jobs, quick_reads
from service.store.quick_reads import PostgresReads, open_quick_reads
from service.store.session import Database
from service.store.tables import JobRow
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
    # One for the first job; then one for its state, since it is known, and one for the four others. On PostgreSQL, the
    # state is read by another connection.
    assert len(questions.sent) == (3 if database.engine.dialect.name == "sqlite" else 2)


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


@pytest.mark.both_databases
def test_an_unchanged_job_is_read_without_its_spec_and_serialised_once(database: Database, settings: Settings) -> None:
    known, key = KnownJobs(), JobKey(TENANT, lifecycle.insert(database))
    first = known.read(database, settings, {key})[key]
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        statements.append(statement)

    event.listen(database.engine, "before_cursor_execute", note)
    second = known.read(database, settings, {key})[key]
    event.remove(database.engine, "before_cursor_execute", note)
    assert second is first
    assert second.body is first.body
    of_jobs = [statement for statement in statements if "FROM jobs" in statement]
    assert len(of_jobs) == 1
    assert "spec" not in of_jobs[0]


@pytest.mark.both_databases
def test_every_reader_sees_each_change_at_once(database: Database, settings: Settings) -> None:
    """As several processes of the API do, while a worker changes the job."""
    readers, key = [KnownJobs() for _ in range(2)], JobKey(TENANT, lifecycle.insert(database))

    def seen() -> list[tuple[int, str]]:
        return [(job.version, job.status) for job in (one.read(database, settings, {key})[key] for one in readers)]

    assert seen() == [(1, "QUEUED")] * 2
    held = lifecycle.claim(database, key.job_id)
    assert seen() == [(2, "PLANNING")] * 2
    lifecycle.plan(database, held)
    lifecycle.run(database, held)
    running, other = seen()
    assert running == other
    assert running[0] > 2
    # Time changes what clients see although nobody changes the version.
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == key.job_id).values(lease_expires_at=1))
    assert seen() == [(running[0], "QUEUED")] * 2
    with database.write() as session:
        jobs.delete_job(session, key.job_id)
    assert [one.read(database, settings, {key}) for one in readers] == [{}, {}]


def test_a_known_job_is_not_shown_to_another_tenant(database: Database, settings: Settings) -> None:
    known, key = KnownJobs(), JobKey(TENANT, lifecycle.insert(database))
    other = JobKey("another", key.job_id)
    assert known.read(database, settings, {key}).keys() == {key}
    assert known.read(database, settings, {other}) == {}
    assert known.read(database, settings, {key, other}).keys() == {key}


def test_a_changed_job_is_read_again_by_every_process(database: Database, settings: Settings) -> None:
    """As `KnownJobs` alone, but with the reads of an event loop."""
    readers, key = [JobReader(database, settings) for _ in range(2)], JobKey(TENANT, lifecycle.insert(database))

    async def seen() -> list[object]:
        found = await asyncio.gather(*(one.read(key) for one in readers for _ in range(2)), return_exceptions=True)
        return [type(job) if isinstance(job, Exception) else getattr(job, "status", None) for job in found]

    async def scenario() -> None:
        assert await seen() == await seen() == ["QUEUED"] * 4
        lifecycle.claim(database, key.job_id)
        assert await seen() == await seen() == ["PLANNING"] * 4
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == key.job_id).values(lease_expires_at=1))
        assert await seen() == await seen() == ["QUEUED"] * 4
        with database.write() as session:
            jobs.delete_job(session, key.job_id)
        assert await seen() == await seen() == [JobNotFoundError] * 4

    asyncio.run(scenario())
    for one in readers:
        one.close()


@pytest.mark.one_database("sqlite")
def test_an_unchanged_job_is_read_without_a_thread(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, key = JobReader(database, settings), JobKey(TENANT, lifecycle.insert(database))

    async def scenario() -> None:
        first = await reader.read(key)
        with monkeypatch.context() as patch:
            patch.delattr(KnownJobs, "read")
            assert await reader.read(key) is first
        # Without its connection, the reader uses a thread.
        reader.close()
        assert (await reader.read(key)).status == first.status

    asyncio.run(scenario())


@pytest.mark.one_database("sqlite")
def test_quick_reads_return_what_other_reads_do_while_a_transaction_writes(
    database: Database, settings: Settings
) -> None:
    known, key = KnownJobs(), JobKey(TENANT, lifecycle.insert(database))
    other = JobKey("another", key.job_id)
    with open_quick_reads(database) as reads:
        assert reads is not None
        assert known.find_unchanged(reads, settings, key) is None
        job = known.read(database, settings, {key})[key]
        assert known.find_unchanged(reads, settings, key) is job
        assert known.find_unchanged(reads, settings, other) is None
        lifecycle.beat(database)
        assert known.find_unchanged(reads, settings, key) is None
        waiting = known.read(database, settings, {key})[key]
        assert waiting.waiting_for == "slot"
        with database.write() as session:
            jobs.delete_job(session, key.job_id)
            assert known.find_unchanged(reads, settings, key) is waiting
        assert known.find_unchanged(reads, settings, key) is None
    # A read that fails finds nothing.
    assert known.find_unchanged(reads, settings, key) is None


@pytest.mark.one_database("sqlite")
def test_quick_reads_take_no_connection_from_the_pool(database_url: str) -> None:
    small = DatabaseSettings(pool_size=1, pool_overflow=0)
    with (
        closing(Database(database_url, settings=small)) as database,
        open_quick_reads(database) as reads,
        database.look() as session,
    ):
        assert reads is not None
        assert abs(reads.now() - database.now(session)) < 60_000


@pytest.mark.one_database("postgresql")
def test_a_state_is_read_after_the_server_has_closed_all_connections(database: Database, settings: Settings) -> None:
    job_id = lifecycle.insert(database)
    end_all = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> {}"

    async def scenario() -> list[str]:
        shown = []
        with closing(JobReader(database, settings)) as reader:
            for change in (None, None, end_connections, None, claim, None):
                if change is not None:
                    await asyncio.to_thread(change)
                shown.append((await reader.read(JobKey(TENANT, job_id))).status)
        return shown

    def end_connections() -> None:
        with database.look() as session:
            session.execute(text(end_all.format("pg_backend_pid()")))

    def claim() -> None:
        lifecycle.claim(database, job_id)

    assert asyncio.run(scenario()) == [JobStatus.QUEUED] * 4 + [JobStatus.PLANNING] * 2


@pytest.mark.one_database("postgresql")
def test_states_of_a_standby_are_not_used(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = lifecycle.insert(database)
    reads = PostgresReads(database)
    with closing(reads):
        (state,), now = reads.job_states([job_id])
        assert (state.id, state.status) == (job_id, "QUEUED")
        with database.look() as session:
            assert abs(now - database.now(session)) < 60_000
        assert reads.job_states(["another"]) == ([], 0)
        monkeypatch.setattr(quick_reads, "_POSTGRES_STATES", _OfAStandby())
        assert reads.job_states([job_id]) == ([], 0)


class _OfAStandby:
    """Returns the state of any job as a server does that has become a standby."""

    def run(self, _connection: object, **_given: object) -> list[tuple[object, ...]]:
        return [("id", TENANT, 1, 1, "QUEUED", "short", None, None, 1, True)]
