"""Retention removes old jobs and results, a few at a time, and nothing that may still change."""

from __future__ import annotations

import pytest
from sqlalchemy import event, select, update

from service.contract.enums import LEASED, TERMINAL, JobStatus
from service.store import jobs, maintenance
from service.store.events import append_event
from service.store.jobs import SubmissionKey, save_idempotency_keys
from service.store.session import Database
from service.store.tables import IdempotencyKeyRow, JobEventRow, JobRow, OutboxRow
from tests.support.clocks import ManualClock
from tests.support.databases import count_rows
from tests.support.lifecycle import AddJob

EVERY_MS = 3_600_000


def end(database: Database, job_id: str, at: int, status: JobStatus = JobStatus.SUCCEEDED) -> None:
    """Ends a job as `publish` does, with a result of 100 bytes if it SUCCEEDED."""
    result = {"result_path": f"{job_id}/attempt-1", "result_rows": 1, "result_bytes": 100}
    with database.write() as session:
        session.execute(
            update(JobRow)
            .where(JobRow.id == job_id)
            .values(status=status.value, finished_at=at, **(result if status is JobStatus.SUCCEEDED else {}))
        )


def ids(database: Database) -> set[str]:
    with database.read() as session:
        return set(session.scalars(select(JobRow.id)))


def test_the_oldest_jobs_are_removed_first_with_their_rows(database: Database, add_job: AddJob) -> None:
    for number in range(5):
        end(database, add_job(f"job-{number}"), at=100 + number)
    with database.write() as session:
        append_event(session, job_id="job-0", tenant="default", now=1, type="plan", data={})
        session.add(OutboxRow(job_id="job-0", tenant="default", created_at=1))
        save_idempotency_keys(session, [SubmissionKey("default", "k", "", "job-0")], now=1)
    with database.write() as session:
        gone = maintenance.remove_jobs(session, before=104, since=0, limit=3)
    assert {(job.job_id, job.finished_at, job.had_result, job.bytes) for job in gone} == {
        (f"job-{number}", 100 + number, True, 100) for number in range(3)
    }
    assert ids(database) == {"job-3", "job-4"}
    assert [count_rows(database, table) for table in (JobEventRow, OutboxRow, IdempotencyKeyRow)] == [2, 0, 0]
    with database.write() as session:
        assert [job.job_id for job in maintenance.remove_jobs(session, before=104, since=102, limit=3)] == ["job-3"]
        assert maintenance.remove_jobs(session, before=104, since=0, limit=3) == []


@pytest.mark.parametrize("status", sorted(LEASED | {JobStatus.QUEUED}))
def test_a_job_that_has_not_ended_is_never_removed(database: Database, add_job: AddJob, status: JobStatus) -> None:
    # Not even one with a time of its end that it should not have.
    end(database, add_job("job"), at=100, status=status)
    with database.write() as session:
        session.execute(update(JobRow).values(result_path="job/attempt-1"))
    with database.write() as session:
        assert maintenance.remove_jobs(session, before=1_000, since=0, limit=10) == []
        assert maintenance.remove_results(session, before=1_000, since=0, limit=10) == []
        assert maintenance.count_expired(session, 1_000, 1_000) == maintenance.Expired(0, 0, 0)


def test_every_end_counts(database: Database, add_job: AddJob) -> None:
    for status in TERMINAL:
        end(database, add_job(status.value), at=100, status=status)
    with database.write() as session:
        assert maintenance.count_expired(session, 1_000, None) == maintenance.Expired(len(TERMINAL), 1, 100)
        gone = maintenance.remove_jobs(session, before=1_000, since=0, limit=10)
    assert sorted((job.had_result, job.bytes) for job in gone) == [(False, 0)] * 4 + [(True, 100)]


def test_a_result_is_removed_once_and_the_job_stays(database: Database, add_job: AddJob) -> None:
    for number in range(3):
        end(database, add_job(f"job-{number}"), at=100 + number)
    end(database, add_job("failed"), at=100, status=JobStatus.FAILED)
    with database.write() as session:
        assert maintenance.count_expired(session, None, 102) == maintenance.Expired(0, 2, 200)
        gone = maintenance.remove_results(session, before=102, since=0, limit=10)
        assert sorted(job.job_id for job in gone) == ["job-0", "job-1"]
        assert maintenance.remove_results(session, before=102, since=0, limit=10) == []
        assert maintenance.count_expired(session, None, 102) == maintenance.Expired(0, 0, 0)
    with database.read() as session:
        lost = {row.id for row in session.scalars(select(JobRow)) if maintenance.has_lost_result(row)}
    assert lost == {"job-0", "job-1"}
    with database.write() as session:
        without = maintenance.remove_jobs(session, before=101, since=0, limit=10)
    assert sorted((job.job_id, job.had_result, job.bytes) for job in without) == [
        ("failed", False, 0),
        ("job-0", False, 0),
    ]


def test_expired_keys_are_removed(database: Database, add_job: AddJob) -> None:
    add_job("job")
    with database.write() as session:
        for number in range(5):
            row = IdempotencyKeyRow(
                tenant="default", key=f"k{number}", payload_sha256="", job_id="job", expires_at=100 + number
            )
            session.add(row)
    with database.write() as session:
        assert [jobs.remove_expired_keys(session, 103, limit=3) for _ in range(3)] == [3, 1, 0]
        assert list(session.scalars(select(IdempotencyKeyRow.key))) == ["k4"]


def test_retention_is_due_for_one_process_and_not_at_first(database: Database, clock: ManualClock) -> None:
    def told(worker: str) -> bool:
        with database.write() as session:
            return maintenance.is_due(session, worker, clock.ms, EVERY_MS)

    assert [told("w1"), told("w2")] == [False, False]
    clock.ms += EVERY_MS - 1
    assert not told("w1")
    clock.ms += 1
    assert [told("w2"), told("w2"), told("w1")] == [True, False, False]
    clock.ms += EVERY_MS
    assert [told("w1"), told("w2")] == [True, False]


def test_the_oldest_are_found_by_the_index_on_their_ends(sqlite_database: Database) -> None:
    # On SQLite, whose plans depend on the tables alone.
    seen: list[str] = []

    def listen(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    event.listen(sqlite_database.engine, "before_cursor_execute", listen)
    with sqlite_database.write() as session:
        maintenance.remove_jobs(session, before=1, since=0, limit=10)
        maintenance.remove_results(session, before=1, since=0, limit=10)
    changes = [statement for statement in seen if "DELETE" in statement or "UPDATE" in statement]
    assert len(changes) == 2
    with sqlite_database.read() as session:
        for statement in changes:
            values = tuple(0 for _ in range(statement.count("?")))
            explained = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            plan = [str(row[-1]) for row in explained if " jobs " in str(row[-1])]
            assert plan[0].startswith("SEARCH jobs USING INDEX sqlite_autoindex_jobs_1 (id=?)")
            assert plan[1].startswith("SEARCH jobs USING INDEX ix_jobs_finished_at (finished_at>? AND finished_at<?)")
            assert len(plan) == 2
