"""Heartbeats of worker processes."""

from __future__ import annotations

from sqlalchemy import select, update

from service.contract.enums import JobStatus, WorkerStatus
from service.store import workers
from service.store.session import Database
from service.store.tables import JobRow, WorkerRow
from service.store.workers import WorkerFacts
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from tests.support.lifecycle import AddJob


def test_the_first_heartbeat_adds_the_worker(database: Database, clock: ManualClock) -> None:
    begin = clock.ms
    for _ in range(2):
        with database.write() as session:
            workers.record_heartbeat(session, "w1", clock.ms, "0.1.0")
        clock.ms += 5_000
    with database.read() as session:
        row = session.scalars(select(WorkerRow)).one()
    assert (row.started_at, row.heartbeat_at) == (begin, begin + 5_000)


def test_only_workers_with_a_recent_heartbeat_count(database: Database, clock: ManualClock) -> None:
    for name in ("old", "new"):
        with database.write() as session:
            workers.record_heartbeat(session, name, clock.ms, "0.1.0")
        clock.ms += 60_000
    with database.write() as session:
        assert workers.count_alive(session, clock.ms - 60_000) == 1
        workers.remove_silent_workers(session, clock.ms - 60_000)
        assert workers.count_alive(session, 0) == 1
        workers.record_heartbeat(session, "newest", clock.ms, "0.1.0")
        workers.remove_worker(session, "new")
        assert [row.id for row in workers.list_workers(session, 0)] == ["newest"]


def test_each_heartbeat_replaces_the_reported_values(database: Database, clock: ManualClock) -> None:
    for facts in (WorkerFacts(spark_state="unavailable", spark_fault="no master"), WorkerFacts(spark_state="ready")):
        with database.write() as session:
            assert not workers.record_heartbeat(session, "w1", clock.ms, "0.1.0", facts)
    with database.read() as session:
        row = session.scalars(select(WorkerRow)).one()
    assert (row.spark_state, row.spark_fault) == ("ready", None)


def test_the_first_request_to_drain_counts(database: Database, clock: ManualClock) -> None:
    begin = clock.ms
    with database.write() as session:
        assert not workers.record_heartbeat(session, "w1", clock.ms, "0.1.0")
    for _ in range(2):
        with database.write() as session:
            workers.request_drain(session, "w1", clock.ms)
            assert workers.record_heartbeat(session, "w1", clock.ms, "0.1.0", leaving=True)
            assert session.scalars(select(WorkerRow.drain_requested_at)).one() == begin
        clock.ms += 5_000


def test_a_worker_that_leaves_is_draining(database: Database, clock: ManualClock) -> None:
    with database.write() as session:
        workers.record_heartbeat(session, "new", clock.ms, "0.1.0", leaving=True)
        workers.record_heartbeat(session, "old", clock.ms, "0.1.0")
        workers.record_heartbeat(session, "old", clock.ms + 1, "0.1.0", leaving=True)
        found = {row.id: row.drain_requested_at for row in workers.list_workers(session, 0)}
    assert found == {"new": clock.ms, "old": clock.ms + 1}


def test_workers_are_counted_by_status(database: Database, clock: ManualClock) -> None:
    states = {"a": "ready", "b": "starting", "c": "unavailable", "d": None}
    with database.write() as session:
        workers.record_heartbeat(session, "gone", clock.ms - workers.KEPT_MS - 1, "0.1.0")
        workers.record_heartbeat(session, "silent", clock.ms - 30_001, "0.1.0", leaving=True)
        workers.record_heartbeat(session, "drains", clock.ms, "0.1.0", leaving=True)
        for worker, state in states.items():
            workers.record_heartbeat(session, worker, clock.ms - 30_000, "0.1.0", WorkerFacts(spark_state=state))
        counts = workers.count_by_status(session, clock.ms, 30_000)
    assert counts == {
        WorkerStatus.STARTING: 1,
        WorkerStatus.READY: 2,
        WorkerStatus.DRAINING: 1,
        WorkerStatus.UNAVAILABLE: 1,
        WorkerStatus.SILENT: 1,
    }


def test_a_worker_with_heartbeats_is_found_and_drains_alone(database: Database, clock: ManualClock) -> None:
    with database.write() as session:
        for worker in ("w1", "w2"):
            workers.record_heartbeat(session, worker, clock.ms, "0.1.0")
        workers.request_drain(session, "w1", clock.ms)
    with database.read() as session:
        found = {worker: workers.find_worker(session, worker, clock.ms) for worker in ("w1", "w2", "w3")}
        assert workers.find_worker(session, "w1", clock.ms + 1) is None
    assert {worker: row and (row.id, row.drain_requested_at) for worker, row in found.items()} == {
        "w1": ("w1", clock.ms),
        "w2": ("w2", None),
        "w3": None,
    }


def test_another_version_counts_while_it_sends_heartbeats(database: Database, clock: ManualClock) -> None:
    with database.write() as session:
        workers.record_heartbeat(session, "old", clock.ms, "0.1.0")
        workers.record_heartbeat(session, "new", clock.ms + 5, "0.2.0")
        found = [
            workers.has_other_version(session, since, version)
            for since, version in [(clock.ms, "0.2.0"), (clock.ms + 1, "0.2.0"), (clock.ms + 5, "0.1.0")]
        ]
    assert found == [True, False, True]


def test_running_jobs_are_those_with_a_lease_of_these_workers(
    database: Database, clock: ManualClock, add_job: AddJob
) -> None:
    def held(job_id: str, worker: str = "w1", lease_ms: int = 30_000) -> str:
        return lifecycle.claim(database, add_job(job_id), worker, lease_ms=lease_ms).job_id

    for job_id in ("second", "again"):
        held(job_id)
        clock.ms += 5
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "again").values(status="QUEUED"))
    lifecycle.claim(database, "again", "w2")
    held("elsewhere", "w3")
    held("lost", lease_ms=0)
    held("ended")
    with database.write() as session:
        session.execute(update(JobRow).where(JobRow.id == "ended").values(status="SUCCEEDED"))
    add_job("queued")
    with database.read() as session:
        found = workers.running_jobs_of(session, ["w1", "w2"], clock.ms)
    assert [(job.job_id, job.worker, job.attempt, job.started_at, job.status) for job in found] == [
        ("second", "w1", 1, clock.ms - 10, JobStatus.PLANNING),
        ("again", "w2", 2, clock.ms, JobStatus.PLANNING),
    ]
