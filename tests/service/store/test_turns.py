"""The order in which tenants get slots."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update

from service.contract.enums import Queue
from service.store import turns
from service.store.accounts import Quota
from service.store.attempts import is_on_last_attempt
from service.store.jobs import EXPLAIN
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import AddJob

QUEUES = ("short", "long", "stream")


@pytest.fixture
def waiting(database: Database, clock: ManualClock, add_job: AddJob) -> None:
    """Four jobs of tenant a, then two of b, then one of c."""
    for job_id in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        add_job(job_id, tenant=job_id[0])
        clock.ms += 1


def choose(
    database: Database, served: Mapping[str, int] | None = None, *, only_idle: bool = False, quota: Quota | None = None
) -> str | None:
    with database.write() as session:
        return turns.next_waiting(session, QUEUES, quota or Quota(), served=served or {}, only_idle=only_idle)


def run(database: Database, number: int) -> list[str | None]:
    """Claims jobs one after the other, as the threads of a worker do, and returns their ids."""
    served: dict[str, int] = {}
    claimed = []
    for turn in range(1, number + 1):
        job_id = choose(database, served)
        claimed.append(job_id)
        if job_id is not None:
            lifecycle.claim(database, job_id)
            served[job_id[0]] = turn
    return claimed


def end(database: Database, job_id: str) -> None:
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == job_id).values(status="SUCCEEDED"))


@pytest.mark.usefixtures("waiting")
def test_the_tenant_of_which_fewest_jobs_run_is_next(database: Database) -> None:
    assert run(database, 8) == ["a1", "b1", "c1", "a2", "b2", "a3", "a4", None]


@pytest.mark.usefixtures("waiting")
def test_a_single_slot_alternates_between_tenants(database: Database) -> None:
    served: dict[str, int] = {}
    order = []
    for turn in range(1, 8):
        job_id = choose(database, served)
        assert job_id is not None
        lifecycle.claim(database, job_id)
        end(database, job_id)
        served[job_id[0]] = turn
        order.append(job_id)
    assert order == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


@pytest.mark.usefixtures("waiting")
def test_two_workers_do_not_reserve_slots_for_one_tenant(database: Database) -> None:
    """The second one begins while the first one has not committed its claim."""
    for job_id in ("a1", "c1"):
        lifecycle.claim(database, job_id)
    with ThreadPoolExecutor(1) as other:
        with database.write() as session:
            first = turns.next_waiting(session, QUEUES, only_idle=True)
            second = other.submit(choose, database, only_idle=True)
            session.execute(update(JobRow).where(JobRow.id == first).values(status="RUNNING"))
            session.flush()
        assert (first, second.result(60)) == ("b1", None)


@pytest.mark.usefixtures("waiting")
def test_a_reserved_slot_is_for_tenants_of_which_nothing_runs(database: Database) -> None:
    for job_id in ("a1", "c1"):
        lifecycle.claim(database, job_id)
    assert choose(database, only_idle=True) == "b1"
    lifecycle.claim(database, "b1")
    assert choose(database, only_idle=True) is None
    with database.read() as session:
        assert not turns.is_idle_tenant_waiting(session)
    assert choose(database) is not None
    end(database, "b1")
    assert choose(database, only_idle=True) == "b2"


def test_streams_occupy_no_slot(database: Database, clock: ManualClock, add_job: AddJob) -> None:
    add_job("stream", tenant="a", queue=Queue.STREAM)
    lifecycle.claim(database, "stream")
    add_job("a1", tenant="a")
    clock.ms += 1
    add_job("explained", tenant="b", kind=EXPLAIN)
    assert choose(database, only_idle=True) == "a1"
    lifecycle.claim(database, "explained")
    add_job("b1", tenant="b")
    assert choose(database, only_idle=True) == "a1"
    with database.read() as session:
        assert turns.is_idle_tenant_waiting(session)
        assert [turns.is_of_idle_tenant(session, job_id) for job_id in ("a1", "b1", "gone")] == [True, False, False]


@pytest.mark.usefixtures("waiting")
def test_quotas_and_conditions_hold(database: Database) -> None:
    lifecycle.claim(database, "c1")
    lifecycle.claim(database, "a1")
    assert choose(database, quota=Quota(1)) == "b1"
    lifecycle.claim(database, "b1")
    assert choose(database, quota=Quota(1)) is None
    with database.write() as session:
        assert turns.next_waiting(session, ["long"]) is None
        assert turns.next_waiting(session, QUEUES, excluded=JobRow.tenant == "a") == "b2"
        assert turns.next_waiting(session, QUEUES, Quota(2), is_on_last_attempt()) == "a2"


def test_jobs_that_another_worker_locks_are_left_to_it(postgres_database: Database) -> None:
    for job_id in ("a1", "b1", "b2"):
        lifecycle.insert(postgres_database, job_id, tenant=job_id[0])
    with postgres_database.write() as other:
        other.execute(select(JobRow.id).where(JobRow.id == "a1").with_for_update())
        with postgres_database.write() as session:
            assert turns.next_waiting(session, QUEUES) == "b1"
