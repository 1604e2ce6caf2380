"""The slots of a worker: those of all tenants, and the reserved ones."""

from __future__ import annotations

from contextlib import ExitStack

from service.store.accounts import NO_QUOTA
from service.store.session import Database
from tests.support import lifecycle
from workers.jobs.slots import IsolatedSlots, JobSlots


def choose(database: Database, slots: JobSlots) -> str | None:
    with database.write() as session:
        return slots.next_waiting(session, ["short"], NO_QUOTA, None)


def allowed(database: Database, slots: JobSlots, *job_ids: str) -> list[bool]:
    with database.read() as session:
        return [slots.allow(session, job_id) for job_id in job_ids]


def test_a_reserved_slot_is_for_other_tenants(sqlite_database: Database) -> None:
    for job_id in ("a1", "a2", "a3", "b1", "b2"):
        lifecycle.insert(sqlite_database, job_id, tenant=job_id[0])
    slots = JobSlots(2)
    assert slots.take(None) is None
    with ExitStack() as running:
        for job_id in ("a1", "a2"):
            assert allowed(sqlite_database, slots, job_id) == [True]
            slots.take(lifecycle.claim(sqlite_database, job_id))
            running.enter_context(slots.working())
        assert allowed(sqlite_database, slots, "a3", "b1") == [False, True]
        assert slots.may_claim(sqlite_database)
        assert choose(sqlite_database, slots) == "b1"
        slots.take(lifecycle.claim(sqlite_database, "b1"))
        with slots.working():
            assert not slots.may_claim(sqlite_database)
            assert allowed(sqlite_database, slots, "a3", "b2") == [False, False]
            assert choose(sqlite_database, slots) is None
    # The rows are unchanged, as if other workers ran these jobs.
    assert slots.may_claim(sqlite_database)
    assert allowed(sqlite_database, slots, "a3") == [True]
    assert choose(sqlite_database, slots) == "b2"


def test_tenants_take_turns(sqlite_database: Database) -> None:
    for number in range(3):
        for tenant in ("a", "b"):
            lifecycle.insert(sqlite_database, f"{tenant}{number}", tenant=tenant)
    slots = JobSlots(1)
    order = []
    while (job_id := choose(sqlite_database, slots)) is not None:
        claim = lifecycle.claim(sqlite_database, job_id)
        slots.take(claim)
        with slots.working():
            lifecycle.fail(sqlite_database, claim)
        order.append(claim.tenant)
    assert order == ["a", "b", "a", "b", "a", "b"]


def test_jobs_that_wait_for_a_driver_of_their_own_are_passed(database: Database) -> None:
    for number in range(3):
        lifecycle.insert(database, f"isolated-{number}", isolated=True)
    lifecycle.insert(database, "shared")
    slots = IsolatedSlots(1)

    def next_one() -> str | None:
        with database.write() as session:
            return JobSlots(9).next_waiting(session, ["short"], NO_QUOTA, slots.excluded_jobs())

    assert slots.take(None) is None
    assert next_one() == "isolated-0"
    first = lifecycle.claim(database, "isolated-0")
    assert (slots.take(first), first.isolated) == (first, True)
    with slots.working(first):
        assert next_one() == "shared"
        shared = lifecycle.claim(database, "shared")
        slots.take(shared)
        with slots.working(shared):
            assert next_one() is None
        # A job that ends on the shared driver frees none of the others.
        assert next_one() is None
    assert next_one() == "isolated-1"


def test_a_worker_without_such_drivers_takes_none_of_the_jobs(database: Database) -> None:
    lifecycle.insert(database, "isolated", isolated=True)
    with database.write() as session:
        assert JobSlots(1).next_waiting(session, ["short"], NO_QUOTA, IsolatedSlots(0).excluded_jobs()) is None
