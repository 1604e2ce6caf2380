"""Jobs in the store: what is true of them, their order, and moves that are conditional."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import select, update

from service.spec.status import JobStatus
from service.store import jobs, leases
from service.store.jobs import JobFilter, JobPosition, NewJob
from service.store.session import Database
from service.store.tables import JobEventRow, JobRow


def row_status(database: Database, job_id: str) -> JobStatus | None:
    with database.read() as session:
        row = jobs.find_job(session, tenant="default", job_id=job_id)
        assert row is not None
        return jobs.effective_status(row, database.now(session))


def test_a_live_lease_is_what_makes_a_job_planning(database: Database, job_id: str) -> None:
    with database.write() as session:
        assert leases.claim(session, job_id, "w", database.now(session), 1000)
    assert row_status(database, job_id) is JobStatus.PLANNING
    with database.read() as session:
        later = database.now(session) + 1000
        row = jobs.find_job(session, tenant="default", job_id=job_id)
        assert row is not None
        assert jobs.effective_status(row, later) is JobStatus.QUEUED


def test_without_a_lease_a_stopping_job_has_stopped(database: Database, job_id: str) -> None:
    with database.write() as session:
        now = database.now(session)
        assert leases.claim(session, job_id, "w", now, 1000)
        session.execute(update(JobRow).values(status="STOPPING"))

    def found(at: int, *statuses: JobStatus) -> int:
        with database.read() as session:
            wanted = JobFilter(frozenset(statuses))
            return len(jobs.list_jobs(session, tenant="default", wanted=wanted, after=None, limit=5, now=at))

    assert row_status(database, job_id) is JobStatus.STOPPING
    assert [found(now + 999, JobStatus.STOPPING), found(now + 1000, JobStatus.STOPPING)] == [1, 0]
    assert [found(now + 999, JobStatus.STOPPED), found(now + 1000, JobStatus.STOPPED)] == [0, 1]
    assert found(now + 1000, JobStatus.QUEUED) == 0


def test_jobs_of_one_moment_have_an_order(database: Database, add_job: Callable[..., str]) -> None:
    for name in "dacb":
        add_job(name)
    found: list[str] = []
    after = None
    with database.read() as session:
        while True:
            page = jobs.list_jobs(session, tenant="default", wanted=JobFilter(), after=after, limit=1, now=0)
            if not page:
                break
            found.append(page[0].id)
            after = JobPosition(page[0].submitted_at, page[0].id)
    assert found == ["d", "c", "b", "a"]


def test_a_move_happens_once(database: Database, job_id: str) -> None:
    def cancel() -> bool:
        with database.write() as session:
            return jobs.move_job(
                session,
                job_id=job_id,
                tenant="default",
                target=JobStatus.CANCELLED,
                sources={JobStatus.QUEUED},
                now=database.now(session),
                values={},
            )

    assert cancel() is True
    assert cancel() is False
    with database.read() as session:
        told = [event.data["status"] for event in session.scalars(select(JobEventRow).order_by(JobEventRow.id))]
        assert told == ["QUEUED", "CANCELLED"]
        assert jobs.read_versions(session, [job_id, "other"]) == {job_id: 2}


def test_a_move_that_the_table_has_not_is_a_bug(database: Database, job_id: str) -> None:
    with database.write() as session, pytest.raises(ValueError, match="no move"):
        jobs.move_job(
            session,
            job_id=job_id,
            tenant="default",
            target=JobStatus.RUNNING,
            sources={JobStatus.QUEUED},
            now=0,
            values={},
        )


def test_versions_of_very_many_jobs(database: Database) -> None:
    with database.write() as session:
        for index in range(1200):
            new = NewJob(f"job-{index}", "default", jobs.RUN, "n", {}, None, 1, 1000)
            jobs.insert_job(session, new, 1)
    with database.read() as session:
        assert len(jobs.read_versions(session, [f"job-{index}" for index in range(1200)])) == 1200


def test_another_tenants_job_is_not_found(database: Database, job_id: str) -> None:
    with database.read() as session:
        assert jobs.find_job(session, tenant="someone else", job_id=job_id) is None
        assert jobs.find_job(session, tenant="default", job_id=job_id, kind=jobs.EXPLAIN) is None
