"""Submission: all of it in one transaction, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.broker.dispatch import JobAnnouncer
from service.config.settings import Settings
from service.contract.errors import IdempotencyKeyReusedError, StreamInUseError
from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.jobs.check_job import CheckedJob, check_job
from service.jobs.known_jobs import JobKey, KnownJobs
from service.jobs.submit_job import Submission, submit_job
from service.store import jobs
from service.store.jobs import NewJob, QueuedJob
from service.store.session import Database
from service.store.tables import IdempotencyKeyRow, JobEventRow, JobRow, OutboxRow
from service.streams.append_rows import PostedRows, append_rows
from service.streams.manage_streams import declare_stream, delete_stream
from tests.support.databases import count_rows
from tests.support.lifecycle import SPEC, STREAM_TABLES, TENANT


def submission(key: str = "", tenant: str = TENANT, **changes: object) -> Submission:
    return Submission(tenant, JobSpec.model_validate({**SPEC, **changes}), key, "request-1")


def test_stores_job_event_and_key_and_settles_the_message(
    database: Database, announcer: JobAnnouncer, settings: Settings
) -> None:
    accepted = submit_job(database, announcer, settings, submission("k"))
    assert not accepted.replayed
    announcer.close()
    assert [count_rows(database, table) for table in (JobRow, JobEventRow, IdempotencyKeyRow, OutboxRow)] == [
        1,
        1,
        1,
        0,
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"queue": "long", "limits": {"failure_retries": 2}, "settings": {"agg_phase": "ONE_PHASE"}},
        {"sql": "SELECT uid FROM orders WHERE uid > :x", "parameters": {"x": 1.0}},
    ],
)
def test_the_answer_has_the_job_as_it_is_read_later(
    database: Database, announcer: JobAnnouncer, settings: Settings, changes: dict[str, Any]
) -> None:
    job = submit_job(database, announcer, settings, submission(**changes)).job
    key = JobKey(TENANT, job.id)
    assert KnownJobs().read(database, settings, [key])[key] == job


_REFUSING = {
    "sqlite": ("CREATE TRIGGER t BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END",),
    "postgresql": (
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
        "CREATE TRIGGER t BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
}
"""What makes a table take no row."""


@pytest.mark.parametrize("table", ["job_events", "outbox", "idempotency_keys"])
def test_a_failure_half_way_leaves_nothing(
    database: Database, announcer: JobAnnouncer, settings: Settings, table: str
) -> None:
    with database.write() as session:
        for statement in _REFUSING[session.get_bind().dialect.name]:
            session.execute(text(statement.format(table=table)))
    with pytest.raises(SQLAlchemyError):
        submit_job(database, announcer, settings, submission("k"))
    assert [count_rows(database, item) for item in (JobRow, JobEventRow, OutboxRow, IdempotencyKeyRow)] == [0, 0, 0, 0]
    assert list((settings.broker_dir / "messages").iterdir()) == []


def test_a_refused_job_leaves_nothing(database: Database, announcer: JobAnnouncer, settings: Settings) -> None:
    with pytest.raises(SpecError):
        submit_job(database, announcer, settings, submission("k", sql="SELECT nope FROM orders"))
    assert count_rows(database, JobRow) == count_rows(database, IdempotencyKeyRow) == 0


def test_a_replay_needs_no_files(database: Database, announcer: JobAnnouncer, settings: Settings) -> None:
    first = submit_job(database, announcer, settings, submission("k"))
    (settings.data_roots[0] / "orders.parquet").unlink()
    again = submit_job(database, announcer, settings, submission("k"))
    assert again.replayed
    assert again.job == first.job


def test_submissions_at_once_with_an_expired_key_are_one_job(
    database: Database, announcer: JobAnnouncer, settings: Settings
) -> None:
    expired = submit_job(database, announcer, settings, submission("k")).job.id
    with database.write() as session:
        session.execute(update(IdempotencyKeyRow).values(expires_at=1))
    with ThreadPoolExecutor(4) as pool:
        accepted = list(pool.map(lambda _: submit_job(database, announcer, settings, submission("k")), range(4)))
    assert [one.replayed for one in accepted].count(False) == 1
    assert {one.job.id for one in accepted}.isdisjoint({expired})
    assert len({one.job.id for one in accepted}) == 1
    assert count_rows(database, JobRow) == 2


def test_a_key_belongs_to_its_tenant(database: Database, announcer: JobAnnouncer, settings: Settings) -> None:
    one = submit_job(database, announcer, settings, submission("k", tenant="a"))
    two = submit_job(database, announcer, settings, submission("k", tenant="b", name="other"))
    assert one.job.id != two.job.id


class NextVersion(JobSpec):
    """As an upgrade may leave it: with one more field, and another default."""

    name: str = "nameless"
    priority: int = 5


def test_what_was_not_posted_makes_no_other_job(
    database: Database, announcer: JobAnnouncer, settings: Settings
) -> None:
    posted = {key: value for key, value in SPEC.items() if key != "name"}
    first = submit_job(database, announcer, settings, Submission(TENANT, JobSpec.model_validate(posted), "k", None))
    for body in (posted, {**posted, "settings": {}, "limits": {}}):
        again = Submission(TENANT, NextVersion.model_validate(body), "k", None)
        assert submit_job(database, announcer, settings, again).job.id == first.job.id
    other = Submission(TENANT, NextVersion.model_validate({**posted, "priority": 6}), "k", None)
    with pytest.raises(IdempotencyKeyReusedError):
        submit_job(database, announcer, settings, other)


def test_the_spelling_of_a_setting_makes_no_other_job(
    database: Database, announcer: JobAnnouncer, settings: Settings
) -> None:
    submit_job(database, announcer, settings, submission("k", settings={"agg_phase": "TWO_PHASE"}))
    flink = {"table.optimizer.agg-phase-strategy": "two_phase"}
    assert submit_job(database, announcer, settings, submission("k", settings=flink)).replayed
    with pytest.raises(IdempotencyKeyReusedError):
        submit_job(database, announcer, settings, submission("k", settings={"agg_phase": "ONE_PHASE"}))


def test_a_sink_outside_its_roots_is_refused(
    database: Database, announcer: JobAnnouncer, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(path: str, settings: Settings, sql: str = str(SPEC["sql"])) -> None:
        sink = {"kind": "delta", "path": path}
        further = submission(mode="incremental", tables=STREAM_TABLES, sink=sink, sql=sql)
        submit_job(database, announcer, settings, further)

    # Workers may have roots that the API does not know of.
    submit("../out", settings)
    monkeypatch.setenv("EVENKEEL_DATA_SINK_ROOTS", str(tmp_path / "sinks"))
    with pytest.raises(SpecError, match="is not inside"):
        submit("../out", Settings())
    with pytest.raises(SpecError) as caught:
        submit("../out", Settings(), sql="SELECT nope FROM orders")
    assert [issue.code for issue in caught.value.issues] == ["unknown_column", "path_outside_sink_roots"]
    submit("out", Settings())
    assert count_rows(database, JobRow) == 2


class TestPostedRows:
    """Jobs over a stream of posted rows that somebody deletes while they are submitted."""

    def submission(self) -> Submission:
        tables = {"c": {"format": "stream", "stream": "clicks"}}
        return submission(mode="incremental", tables=tables, sql="SELECT c.page, COUNT(*) AS n FROM c GROUP BY c.page")

    def declare(self, database: Database, settings: Settings, columns: str = "uid BIGINT, page STRING") -> None:
        declare_stream(database, settings.streams_dir, settings.limits, TENANT, "clicks", columns)

    def delete(self, database: Database, settings: Settings) -> None:
        delete_stream(database, settings.streams_dir, TENANT, "clicks")

    @pytest.fixture
    def before_storing(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
        """Has something happen once, after the job was checked and before it is stored."""

        def once(happen: Callable[[], None]) -> None:
            acts = [happen]

            def checked(*given: Any, **more: Any) -> CheckedJob:
                found = check_job(*given, **more)
                while acts:
                    acts.pop()()
                return found

            monkeypatch.setattr("service.jobs.submit_job.check_job", checked)

        return once

    def test_a_deleted_stream_gets_no_job(
        self,
        database: Database,
        announcer: JobAnnouncer,
        settings: Settings,
        before_storing: Callable[[Callable[[], None]], None],
    ) -> None:
        self.declare(database, settings)
        before_storing(lambda: self.delete(database, settings))
        with pytest.raises(SpecError) as caught:
            submit_job(database, announcer, settings, self.submission())
        assert caught.value.code == "stream_unknown"
        assert count_rows(database, JobRow) == 0

    def test_a_stream_declared_with_other_columns_is_checked_again(
        self,
        database: Database,
        announcer: JobAnnouncer,
        settings: Settings,
        before_storing: Callable[[Callable[[], None]], None],
    ) -> None:
        self.declare(database, settings)

        def change() -> None:
            self.delete(database, settings)
            self.declare(database, settings, "uid BIGINT")

        before_storing(change)
        with pytest.raises(SpecError) as caught:
            submit_job(database, announcer, settings, self.submission())
        assert caught.value.code == "unknown_column"
        assert count_rows(database, JobRow) == 0

    @pytest.mark.not_quick
    def test_a_deletion_waits_for_a_job_that_is_being_stored(
        self, database: Database, announcer: JobAnnouncer, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.declare(database, settings)
        insert_jobs = jobs.insert_jobs
        with ThreadPoolExecutor(1) as pool:
            deletions: list[Future[None]] = []

            def insert(session: Session, new: Sequence[NewJob], now: int) -> list[QueuedJob]:
                deletions.append(pool.submit(self.delete, database, settings))
                # As long as the deletion needs where nothing holds it.
                wait([*deletions], timeout=1)
                return insert_jobs(session, new, now)

            monkeypatch.setattr(jobs, "insert_jobs", insert)
            accepted = submit_job(database, announcer, settings, self.submission())
            with pytest.raises(StreamInUseError, match=accepted.job.id):
                deletions[0].result(60)

    @pytest.mark.one_database("postgresql")
    def test_posts_do_not_wait_for_a_job_that_is_being_stored(
        self, database: Database, announcer: JobAnnouncer, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.declare(database, settings)
        insert_jobs = jobs.insert_jobs
        posted = PostedRows(TENANT, "clicks", "b", "application/x-ndjson", b'{"uid": 1}')

        def insert(session: Session, new: Sequence[NewJob], now: int) -> list[QueuedJob]:
            assert not append_rows(database, settings.streams_dir, settings.limits, posted).replayed
            return insert_jobs(session, new, now)

        monkeypatch.setattr(jobs, "insert_jobs", insert)
        assert not submit_job(database, announcer, settings, self.submission()).replayed
