"""Jobs in the store: effective states, order of lists, and conditional moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import update

from service.contract.enums import JobStatus
from service.store import jobs, leases, transitions
from service.store.events import events_after
from service.store.jobs import JobFilter, JobPosition, NewJob
from service.store.session import Database
from service.store.tables import JobRow
from tests.support.clocks import ManualClock


def row_status(database: Database, job_id: str) -> JobStatus | None:
    with database.read() as session:
        row = jobs.find_job(session, tenant="default", job_id=job_id)
        assert row is not None
        return jobs.effective_status(row, database.now(session))


def test_without_a_lease_a_job_is_queued(database: Database, job_id: str) -> None:
    with database.write() as session:
        assert leases.claim(session, job_id, "w", database.now(session), 1000)
    assert row_status(database, job_id) is JobStatus.PLANNING
    with database.read() as session:
        later = database.now(session) + 1000
        row = jobs.find_job(session, tenant="default", job_id=job_id)
        assert row is not None
        assert jobs.effective_status(row, later) is JobStatus.QUEUED


def test_a_list_is_filtered_by_the_states_that_jobs_have_without_a_lease(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    """A lease holds until its end, and not where that is further off than any lease is given for."""
    without_lease = {"PLANNING": "QUEUED", "RUNNING": "QUEUED", "STOPPING": "STOPPED"}
    leases_left = {None: False, 0: False, 1: True, jobs.LONGEST_LEASE_MS: True, jobs.LONGEST_LEASE_MS + 1: False}
    expected: dict[str, str] = {}
    for status in JobStatus:
        for left, is_live in leases_left.items():
            job_id = add_job(f"{status}-{left}")
            expected[job_id] = status if is_live else without_lease.get(status, status)
            ends_at = None if left is None else clock.ms + left
            with database.write() as session:
                session.execute(
                    update(JobRow).where(JobRow.id == job_id).values(status=status, lease_expires_at=ends_at)
                )
    shown = {job_id: row_status(database, job_id) for job_id in expected}
    listed: dict[str, str] = {}
    with database.read() as session:
        for status in JobStatus:
            wanted = JobFilter(frozenset({status}))
            rows = jobs.list_jobs(session, tenant="default", wanted=wanted, after=None, limit=99, now=clock.ms)
            listed |= {row.id: status for row in rows}
    assert shown == expected
    assert listed == expected


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
            assert len(page) == 1
            found.append(page[0].id)
            after = JobPosition(page[0].submitted_at, page[0].id)
    assert found == ["d", "c", "b", "a"]


def test_a_list_is_filtered_by_times_and_by_prefixes_of_names(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    for name in ("a", "b", "c"):
        add_job(name)
        with database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == name).values(name=f"{name}%_"))
        clock.ms += 1

    def found(wanted: JobFilter) -> list[str]:
        with database.read() as session:
            rows = jobs.list_jobs(session, tenant="default", wanted=wanted, after=None, limit=9, now=clock.ms)
        return [row.id for row in rows]

    first = clock.ms - 3
    assert found(JobFilter()) == ["c", "b", "a"]
    assert found(JobFilter(submitted_after=first)) == ["c", "b"]
    assert found(JobFilter(submitted_before=first + 2)) == ["b", "a"]
    assert found(JobFilter(name_prefix="b%")) == ["b"]
    assert found(JobFilter(name_prefix="%")) == found(JobFilter(name_prefix="B")) == []


def test_a_move_happens_once(database: Database, clock: ManualClock, add_job: Callable[..., str]) -> None:
    job_id, bystander = add_job("a"), add_job("b")
    clock.ms += 5

    def cancel() -> bool:
        with database.write() as session:
            return transitions.move_job(
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
        told = [event.data["status"] for event in events_after(session, job_id, 0, 9)]
        assert told == ["QUEUED", "CANCELLED"]
        assert jobs.read_versions(session, [job_id, "other"]) == {job_id: 2}
        assert jobs.queues_of_waiting(session, [job_id, bystander]) == [(bystander, "short")]
        assert session.get_one(JobRow, job_id).updated_at == clock.ms


def test_a_job_is_deleted_alone(database: Database, add_job: Callable[..., str]) -> None:
    for job_id in ("a", "b"):
        add_job(job_id)
    with database.write() as session:
        jobs.delete_job(session, "a")
        assert jobs.read_versions(session, ["a", "b"]) == {"b": 1}


def test_a_move_that_is_not_in_the_table_raises(database: Database, job_id: str) -> None:
    with database.write() as session, pytest.raises(ValueError, match="no move"):
        transitions.move_job(
            session,
            job_id=job_id,
            tenant="default",
            target=JobStatus.RUNNING,
            sources={JobStatus.QUEUED},
            now=0,
            values={},
        )


def test_versions_of_many_jobs(database: Database) -> None:
    with database.write() as session:
        for index in range(1200):
            new = NewJob(f"job-{index}", "default", jobs.RUN, "n", {}, None, 1, 1000)
            jobs.insert_jobs(session, [new], 1)
    with database.read() as session:
        assert len(jobs.read_versions(session, [f"job-{index}" for index in range(1200)])) == 1200


def test_another_tenants_job_is_not_found(database: Database, job_id: str) -> None:
    with database.read() as session:
        assert jobs.find_job(session, tenant="someone else", job_id=job_id) is None
        assert jobs.find_job(session, tenant="default", job_id=job_id, kind=jobs.EXPLAIN) is None
