"""Queues with listening workers, free slots, and workers that no message reaches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import update

from service.store import leases, workers
from service.store.session import Database
from service.store.tables import JobRow, WorkerRow
from service.store.workers import WorkerFacts, free_slots, queues_listened_to, unresponsive_workers
from tests.support.clocks import ManualClock


def beat(
    database: Database, worker: str, queues: str | None, concurrency: int | None, spark: str | None = None
) -> None:
    facts = WorkerFacts(queues=queues, concurrency=concurrency, spark_state=spark)
    with database.write() as session:
        workers.record_heartbeat(session, worker, database.now(session), "1", facts)


def listened(database: Database, since: int) -> frozenset[str]:
    with database.read() as session:
        return queues_listened_to(session, since)


def free(database: Database, since: int) -> dict[str, int]:
    with database.read() as session:
        return free_slots(session, since, 4)


def test_without_workers(database: Database, clock: ManualClock) -> None:
    assert (listened(database, 0), free(database, 0)) == (frozenset(), {})


def test_each_queue_has_the_slots_of_its_workers(database: Database, clock: ManualClock) -> None:
    beat(database, "both", "short,long", 3)
    beat(database, "long", "long", 2)
    assert listened(database, clock.ms) == {"short", "long"}
    assert free(database, clock.ms) == {"short": 3, "long": 5}


def test_a_worker_of_version_1_reports_no_queue(database: Database, clock: ManualClock) -> None:
    beat(database, "old", None, None)
    assert listened(database, clock.ms) == {"short"}
    assert free(database, clock.ms) == {"short": 4}


def test_a_running_job_takes_a_slot_of_its_worker(
    database: Database, clock: ManualClock, add_job: Callable[..., str]
) -> None:
    beat(database, "w1", "short", 1)
    beat(database, "w2", "short,long", 2)
    for number, worker in enumerate(("w1", "w1", "w2")):
        job_id = add_job(f"job-{number}")
        with database.write() as session:
            assert leases.claim(session, job_id, worker, clock.ms, 30_000)
    assert free(database, clock.ms) == {"short": 1, "long": 1}
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "job-2").values(queue="stream"))
    assert free(database, clock.ms) == {"short": 2, "long": 2}


def test_workers_that_claim_no_jobs_do_not_count(
    database: Database, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    for why in ("silent", "draining", "without Spark"):
        with subtests.test(why=why):
            beat(database, "w1", "short,long", 4, "unavailable" if why == "without Spark" else "ready")
            since = clock.ms
            if why == "draining":
                with database.write() as session:
                    session.execute(update(WorkerRow).values(drain_requested_at=clock.ms))
            if why == "silent":
                since += 1
            assert (listened(database, since), free(database, since)) == (frozenset(), {})


class TestUnresponsiveWorkers:
    @pytest.fixture(autouse=True)
    def _waiting(self, database: Database, clock: ManualClock, add_job: Callable[..., str]) -> None:
        """A worker with two slots that has started, and a job that then waits for ten seconds."""
        facts = WorkerFacts(queues="short", concurrency=2, spark_state="ready")
        with database.write() as session:
            workers.record_heartbeat(session, "w1", clock.ms, "1", facts)
        add_job("waits")
        clock.ms += 10_000

    def unresponsive(
        self, database: Database, clock: ManualClock, waited: int = 10_000, most_running: int = 0
    ) -> list[str]:
        with database.read() as session:
            return list(unresponsive_workers(session, "1", 0, clock.ms - waited, most_running))

    def take(self, database: Database, clock: ManualClock, job_id: str) -> None:
        with database.write() as session:
            assert leases.claim(session, job_id, "w1", clock.ms, 30_000)

    def test_a_worker_that_claims_nothing(self, database: Database, clock: ManualClock) -> None:
        assert self.unresponsive(database, clock) == ["w1"]
        assert self.unresponsive(database, clock, 10_001) == [], "it is given its time"

    def test_a_worker_that_claimed_another_job(
        self, database: Database, clock: ManualClock, add_job: Callable[..., str]
    ) -> None:
        self.take(database, clock, add_job("other"))
        assert self.unresponsive(database, clock) == []
        clock.ms += 10_000
        assert self.unresponsive(database, clock) == ["w1"], "since then it has taken nothing, and has a slot left"

    def test_a_worker_without_a_free_slot(
        self, database: Database, clock: ManualClock, add_job: Callable[..., str]
    ) -> None:
        for name in ("a", "b"):
            self.take(database, clock, add_job(name))
        clock.ms += 10_000
        assert self.unresponsive(database, clock) == []

    def test_a_worker_that_need_not_claim_the_job(
        self, database: Database, clock: ManualClock, subtests: pytest.Subtests
    ) -> None:
        cases: list[dict[str, object]] = [
            {"queues": "long"},
            {"spark_state": "starting"},
            {"drain_requested_at": 1},
            {"version": "another"},
            {"heartbeat_at": -1},
        ]
        for excuse in cases:
            with subtests.test(excuse=excuse):
                with database.write() as session:
                    session.execute(update(WorkerRow).values(**excuse))
                assert self.unresponsive(database, clock) == []

    def test_a_job_that_waits_for_something_else(
        self, database: Database, clock: ManualClock, subtests: pytest.Subtests
    ) -> None:
        cases: list[dict[str, object]] = [
            {"isolated": True},
            {"queue": "stream"},
            {"fence": 1},
            {"cancel_requested_at": 1},
        ]
        for excuse in cases:
            with subtests.test(excuse=excuse):
                with database.write() as session:
                    session.execute(update(JobRow).values(**excuse))
                assert self.unresponsive(database, clock) == []

    def test_a_tenant_at_its_limit(self, database: Database, clock: ManualClock, add_job: Callable[..., str]) -> None:
        self.take(database, clock, add_job("other"))
        clock.ms += 10_000
        assert self.unresponsive(database, clock, most_running=1) == []
