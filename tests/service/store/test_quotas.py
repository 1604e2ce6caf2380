"""Quotas of tenants: correct counts, and no excess by workers that claim at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import func, select, update

from service.contract.enums import LEASED, Queue
from service.store import accounts, input_streams, leases
from service.store.accounts import Quota
from service.store.input_streams import NewBatch
from service.store.jobs import EXPLAIN
from service.store.session import Database
from service.store.tables import JobRow
from tests.support.clocks import ManualClock
from tests.support.lifecycle import AddJob

LEASE = 30_000
QUEUES = ("short", "long", "stream")


def take(database: Database, job_id: str, most_running: int) -> bool:
    """Claims a job as a worker does."""
    with database.write() as session:
        if not accounts.has_room(session, job_id, Quota(most_running)):
            return False
        return leases.claim(session, job_id, "w", database.now(session), LEASE) is not None


def oldest(database: Database, most_running: int) -> str | None:
    with database.write() as session:
        return leases.oldest_waiting(session, QUEUES, Quota(most_running))


def test_waiting_jobs_are_counted_for_their_tenant(database: Database, add_job: AddJob) -> None:
    for number in range(5):
        add_job(f"a{number}", tenant="a")
    add_job("b0", tenant="b")
    add_job("explained", tenant="b", kind=EXPLAIN)
    take(database, "a0", 0)

    def count(tenant: str, at_most: int = 100) -> int:
        with database.read() as session:
            return accounts.count_waiting(session, tenant, at_most)

    assert [count("a"), count("b"), count("c")] == [4, 1, 0]
    assert count("a", at_most=2) == 2


def test_a_full_tenant_waits_and_others_do_not(database: Database, clock: ManualClock, add_job: AddJob) -> None:
    for job_id, tenant in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b")):
        add_job(job_id, tenant=tenant)
        clock.ms += 1
    assert take(database, "a1", 2)
    assert oldest(database, 2) == "a2"
    assert take(database, "a2", 2)
    assert not take(database, "a3", 2)
    assert oldest(database, 2) == "b1"
    assert oldest(database, 0) == "a3"
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "a1").values(status="SUCCEEDED"))
    assert take(database, "a3", 2)


def test_streams_and_explanations_are_counted_separately(database: Database, add_job: AddJob) -> None:
    add_job("stream-1", queue=Queue.STREAM)
    add_job("stream-2", queue=Queue.STREAM)
    add_job("batch", queue=Queue.LONG)
    add_job("explained", kind=EXPLAIN)
    assert take(database, "stream-1", 1)
    assert not take(database, "stream-2", 1)
    assert oldest(database, 1) == "batch"
    assert take(database, "batch", 1)
    assert oldest(database, 1) == "explained"
    assert take(database, "explained", 1)
    assert oldest(database, 1) is None


def test_at_the_limit_of_explanations_only_further_explanations_wait(
    database: Database, clock: ManualClock, add_job: AddJob
) -> None:
    for job_id, tenant, kind in (("a1", "a", EXPLAIN), ("a2", "a", EXPLAIN), ("b1", "b", EXPLAIN), ("a3", "a", "run")):
        add_job(job_id, tenant=tenant, kind=kind)
        clock.ms += 1
    full = Quota(explained=frozenset({"a"}))
    with database.write() as session:
        assert [accounts.has_room(session, job_id, full) for job_id in ("a1", "a2", "b1", "a3")] == [0, 0, 1, 1]
        assert leases.oldest_waiting(session, QUEUES) == "a1"
        assert leases.oldest_waiting(session, QUEUES, full) == "b1"
        assert leases.oldest_waiting(session, QUEUES, Quota(1, frozenset({"a", "b"}))) == "a3"


def test_explanations_of_waiting_clients_are_counted(database: Database, clock: ManualClock, add_job: AddJob) -> None:
    add_job("late", kind=EXPLAIN)
    since = clock.ms
    clock.ms += 1
    for job_id in ("waits", "at work", "ended"):
        add_job(job_id, kind=EXPLAIN)
    add_job("run")
    add_job("another's", kind=EXPLAIN, tenant="b")
    take(database, "at work", 0)
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "ended").values(status="SUCCEEDED"))
    with database.read() as session:
        assert accounts.count_explanations(session, "default", since) == 2
        assert accounts.count_explanations(session, "default", since - 1) == 3


def test_posted_bytes_are_summed_over_all_streams_of_a_tenant(database: Database) -> None:
    with database.write() as session:
        for tenant, name in (("a", "one"), ("a", "two"), ("b", "one")):
            input_streams.insert_stream(
                session, tenant=tenant, name=name, stream_id=f"{tenant}-{name}", ddl="uid INT", now=1
            )
            stream = input_streams.find_stream(session, tenant, name)
            assert stream is not None
            assert input_streams.insert_batch(
                session, stream, NewBatch("1", "0" * 64, f"{tenant}-{name}", 1, 1 << 40), 2
            )
    with database.read() as session:
        assert [accounts.posted_bytes(session, tenant) for tenant in ("a", "b", "c")] == [2 << 40, 1 << 40, 0]
        assert [accounts.count_streams(session, tenant) for tenant in ("a", "b", "c")] == [2, 1, 0]


def test_a_deleted_job_does_not_count(database: Database) -> None:
    with database.write() as session:
        assert accounts.has_room(session, "gone", Quota(1))


@pytest.mark.withstands(
    "a tenant floods the queue",
    how="8 threads claim 16 jobs of two tenants concurrently",
    times=1,
    guaranteed="a tenant never runs more jobs than its quota",
)
def test_workers_that_claim_at_once_do_not_exceed_the_quota(database: Database, add_job: AddJob) -> None:
    jobs = [add_job(f"{tenant}{number}", tenant=tenant) for number in range(8) for tenant in ("a", "b")]

    def claim_next(number: int) -> bool:
        if number % 2:
            return take(database, jobs[number // 2], 3)
        with database.write() as session:
            job_id = leases.oldest_waiting(session, QUEUES, Quota(3))
            if job_id is None or not accounts.has_room(session, job_id, Quota(3)):
                return False
            return leases.claim(session, job_id, "w", database.now(session), LEASE) is not None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(claim_next, range(32)))
    with database.read() as session:
        running = session.execute(
            select(JobRow.tenant, func.count())
            .where(JobRow.status.in_([status.value for status in LEASED]))
            .group_by(JobRow.tenant)
        )
        assert dict(running.all()) == {"a": 3, "b": 3}
