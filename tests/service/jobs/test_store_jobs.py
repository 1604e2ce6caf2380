"""Jobs that wait at the same time share a transaction; each has its own answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service.broker.dispatch import JobAnnouncer
from service.config.settings import Settings
from service.contract.errors import IdempotencyKeyReusedError, TooManyJobsError
from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.jobs.submit_job import Accepted, Submission, submit_job
from service.store import jobs
from service.store.jobs import NewJob, QueuedJob
from service.store.session import CommitUnknownError, Database
from service.store.tables import IdempotencyKeyRow, JobEventRow, JobRow, OutboxRow
from tests.support.databases import count_rows, lose_answer_of_commit
from tests.support.lifecycle import SPEC, TENANT
from tests.support.processes import start_python, wait_for

_TABLES = (JobRow, JobEventRow, OutboxRow, IdempotencyKeyRow)


def submission(key: str = "", tenant: str = TENANT, **changes: object) -> Submission:
    return Submission(tenant, JobSpec.model_validate({**SPEC, **changes}), key, None)


class Unannounced(JobAnnouncer):
    """Leaves all messages in the outbox."""

    def __init__(self) -> None:
        pass

    def announce(self, job_id: str, queue: object) -> None:
        pass


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the jobs of each transaction."""
    found: list[list[str]] = []
    insert_jobs = jobs.insert_jobs

    def insert(session: Session, new: Sequence[NewJob], now: int) -> list[QueuedJob]:
        found.append([one.name for one in new])
        return insert_jobs(session, new, now)

    monkeypatch.setattr(jobs, "insert_jobs", insert)
    return found


@pytest.fixture
def together(database: Database, settings: Settings) -> Callable[..., list[Future[Accepted]]]:
    """Submits while another write commits, so that all of these wait, in this order, and share the next transaction."""

    def submit(*submissions: Submission, settings: Settings = settings) -> list[Future[Accepted]]:
        reached, gate = threading.Event(), threading.Event()

        def hold(items: Sequence[None]) -> Sequence[None]:
            reached.set()
            assert gate.wait(60)
            return items

        futures: list[Future[Accepted]] = []

        def all_wait() -> bool:
            # Those that fail before do not wait.
            return len(database.grouped._waiting) + sum(future.done() for future in futures) == len(futures)

        with ThreadPoolExecutor(len(submissions) + 1) as pool:
            held = pool.submit(database.grouped.run, hold, None)
            assert reached.wait(60)
            try:
                for one in submissions:
                    futures.append(pool.submit(submit_job, database, Unannounced(), settings, one))
                    wait_for("the submission to wait or fail", all_wait)
            finally:
                gate.set()
            held.result()
        return futures

    return submit


Together = Callable[..., list[Future[Accepted]]]


def test_jobs_that_wait_share_a_transaction(database: Database, together: Together, groups: list[list[str]]) -> None:
    names = [f"job-{number}" for number in range(5)]
    accepted = [future.result() for future in together(*(submission(name=name) for name in names))]
    assert groups == [names]
    assert [one.job.name for one in accepted] == names
    assert len({one.job.id for one in accepted}) == len(names)
    with database.read() as session:
        stored = {row.id: row.name for row in session.execute(select(JobRow.id, JobRow.name))}
    assert stored == {one.job.id: one.job.name for one in accepted}
    assert [count_rows(database, table) for table in _TABLES] == [5, 5, 5, 0]


def test_a_refused_job_refuses_no_other(database: Database, together: Together) -> None:
    first, wrong, last = together(
        submission(name="a"), submission(name="b", sql="SELECT nope FROM orders"), submission(name="c")
    )
    with pytest.raises(SpecError):
        wrong.result()
    assert [first.result().job.name, last.result().job.name] == ["a", "c"]
    assert [count_rows(database, table) for table in _TABLES] == [2, 2, 2, 0]


_REFUSING = {
    "sqlite": (
        "CREATE TRIGGER t BEFORE INSERT ON job_events WHEN (SELECT name FROM jobs WHERE id = NEW.job_id) = 'bad' "
        "BEGIN SELECT RAISE(ABORT, 'no'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF (SELECT name FROM jobs WHERE id = NEW.job_id) = 'bad' THEN RAISE EXCEPTION 'no'; END IF; "
        "RETURN NEW; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON job_events FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
}
"""What makes the database refuse a job of this name after its row was written."""


def test_a_job_that_the_database_refuses_fails_alone(database: Database, together: Together) -> None:
    with database.write() as session:
        for statement in _REFUSING[session.get_bind().dialect.name]:
            session.execute(text(statement))
    first, bad, last = together(*(submission(f"k-{name}", name=name) for name in ("a", "bad", "c")))
    with pytest.raises(DBAPIError):
        bad.result()
    assert [first.result().job.name, last.result().job.name] == ["a", "c"]
    assert [count_rows(database, table) for table in _TABLES] == [2, 2, 2, 2]


def test_the_same_key_twice_in_a_transaction_is_one_job(
    database: Database, together: Together, groups: list[list[str]]
) -> None:
    one, same, other = together(submission("k"), submission("k"), submission("k", name="another"))
    assert [one.result().replayed, same.result().replayed] == [False, True]
    assert one.result().job.id == same.result().job.id
    with pytest.raises(IdempotencyKeyReusedError):
        other.result()
    assert len(groups) == 1
    assert [count_rows(database, table) for table in _TABLES] == [1, 1, 1, 1]


def test_the_same_key_of_two_tenants_is_two_jobs(together: Together) -> None:
    one, two = together(submission("k", tenant="a"), submission("k", tenant="b"))
    assert one.result().job.id != two.result().job.id


def test_a_key_that_another_process_has_stored_meanwhile(
    database: Database, settings: Settings, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its job is the answer, and the other jobs of the transaction are stored."""
    others = Database(settings.database_url)
    found: list[Accepted] = []
    calls = {"k": "not yet"}
    find_earlier = jobs.find_idempotency_key

    def find(session: Session, **wanted: Any) -> IdempotencyKeyRow | None:
        earlier = find_earlier(session, **wanted)
        if calls.pop(wanted["key"], ""):
            found.append(submit_job(others, Unannounced(), settings, submission("k")))
        return earlier

    monkeypatch.setattr(jobs, "find_idempotency_key", find)
    first, same, last = together(submission("a", name="a"), submission("k"), submission("c", name="c"))
    assert same.result().replayed
    assert same.result().job.id == found[0].job.id
    assert [first.result().job.name, last.result().job.name] == ["a", "c"]
    assert [count_rows(database, table) for table in _TABLES] == [3, 3, 3, 3]
    others.close()


def test_the_limit_counts_the_jobs_of_the_transaction(
    database: Database, together: Together, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENKEEL_LIMITS_QUEUED_JOBS", "3")
    limited = Settings()
    together(submission(name="before"), settings=limited)[0].result()
    mine = [submission(name=f"job-{number}") for number in range(4)]
    *futures, other = together(*mine, submission(tenant="other"), settings=limited)
    assert [future.result().job.name for future in futures[:2]] == ["job-0", "job-1"]
    for future in futures[2:]:
        with pytest.raises(TooManyJobsError):
            future.result()
    assert other.result().job.name == SPEC["name"]
    assert count_rows(database, JobRow) == 4


@pytest.mark.one_database("postgresql")
@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_of_the_commit_acknowledges_no_job(database: Database, together: Together, *, done: bool) -> None:
    lose_answer_of_commit(database, done=done)
    for future in together(*(submission(f"k-{number}") for number in range(3))):
        with pytest.raises(CommitUnknownError):
            future.result()
    assert count_rows(database, JobRow) == (3 if done else 0)
    again = [future.result() for future in together(*(submission(f"k-{number}") for number in range(3)))]
    assert [one.replayed for one in again] == [done] * 3
    assert count_rows(database, JobRow) == 3


def test_a_repeated_key_is_the_same_job_for_many_at_once(
    database: Database, announcer: JobAnnouncer, settings: Settings
) -> None:
    keys = [f"k-{number % 8}" for number in range(64)]
    with ThreadPoolExecutor(32) as pool:
        accepted = list(pool.map(lambda key: submit_job(database, announcer, settings, submission(key)), keys))
    assert len({one.job.id for one in accepted}) == 8
    assert [one.replayed for one in accepted].count(False) == 8
    assert {(key, one.job.id) for key, one in zip(keys, accepted, strict=True)} == {
        (key, accepted[place].job.id) for place, key in enumerate(keys[:8])
    }
    assert count_rows(database, JobRow) == 8


SUBMITTING = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from service.config.processes import die_with_parent
from service.config.settings import Settings
from service.store.session import Database
from tests.service.jobs.test_store_jobs import Unannounced, submission
from service.jobs.submit_job import submit_job

die_with_parent()
settings = Settings()
database = Database(settings.database_url)

def submit(number):
    key = f"k-{number}"
    job = submit_job(database, Unannounced(), settings, submission(key)).job
    sys.stdout.write(f"{key} {job.id}\\n")
    sys.stdout.flush()

with ThreadPoolExecutor(8) as pool:
    list(pool.map(submit, range(100_000)))
"""


@pytest.mark.not_quick
def test_a_killed_process_has_stored_all_that_it_acknowledged(
    database: Database, settings: Settings, tmp_path: Path
) -> None:
    """Each stored job is complete, and a repetition of its request finds it."""
    log = tmp_path / "acknowledged"
    source = str(Path(__file__).parents[3])
    environment = {"EVENKEEL_DATABASE_URL": settings.database_url, "PYTHONPATH": source}
    process = start_python(["-c", SUBMITTING], environment=environment, log=log, cwd=tmp_path)
    try:
        wait_for("some jobs", lambda: process.poll() is not None or log.read_text().count("\n") > 40, 60)
    finally:
        process.kill()
        process.wait()
    acknowledged = dict(line.split(" ") for line in log.read_text().splitlines() if line.count("-") == 5)
    assert len(acknowledged) > 40, log.read_text()
    with database.read() as session:
        stored = {
            row.key: row.job_id for row in session.execute(select(IdempotencyKeyRow.key, IdempotencyKeyRow.job_id))
        }
        parts = [set(session.scalars(select(column))) for column in (JobRow.id, JobEventRow.job_id, OutboxRow.job_id)]
    assert acknowledged.items() <= stored.items()
    assert parts == [set(stored.values())] * 3
    for key in list(stored)[-8:]:
        assert submit_job(database, Unannounced(), settings, submission(key)).job.id == stored[key]
