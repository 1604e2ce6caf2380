"""Workers over HTTP: list, read, drain."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, select, update

from service.store import jobs, workers
from service.store.tables import WorkerRow
from service.store.workers import WorkerFacts
from tests.support import lifecycle
from tests.support.api import Api, refused

MINUTE_MS = 60_000
FACTS = WorkerFacts(
    host="node-1",
    pid=4711,
    concurrency=4,
    queues="short,long",
    cluster="spark://master:7077",
    app_id="app-1",
    spark_state="ready",
    slots=8,
    memory_bytes=1_000_000,
)


def beat(api: Api, worker: str = lifecycle.WORKER, facts: WorkerFacts | None = FACTS, *, ago_ms: int = 0) -> None:
    with api.database.write() as session:
        workers.record_heartbeat(session, worker, api.database.now(session) - ago_ms, "0.1.0", facts)


def listed(api: Api) -> list[dict[str, Any]]:
    answer = api.client.get("/v1/workers")
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["workers"]
    return found


class TestReading:
    def test_no_workers(self, api: Api) -> None:
        assert listed(api) == []

    def test_fields_of_a_worker(self, api: Api) -> None:
        beat(api)
        (worker,) = listed(api)
        assert worker["started_at"] == worker["heartbeat_at"]
        assert worker == {
            "id": lifecycle.WORKER,
            "host": "node-1",
            "version": "0.1.0",
            "started_at": worker["started_at"],
            "heartbeat_at": worker["heartbeat_at"],
            "status": "READY",
            "queues": ["short", "long"],
            "concurrency": 4,
            "cluster": "spark://master:7077",
            "app_id": "app-1",
            "slots": 8,
            "memory_bytes": 1_000_000,
            "unavailable_reason": None,
            "jobs": [],
            "other_jobs": 0,
        }
        assert api.client.get(f"/v1/workers/{lifecycle.WORKER}").json() == worker

    def test_a_worker_of_the_previous_version_has_null_fields(self, api: Api) -> None:
        beat(api, facts=None)
        (worker,) = listed(api)
        assert (worker["status"], worker["queues"]) == ("READY", ["short"])
        nothing = ("host", "concurrency", "cluster", "app_id", "slots", "memory_bytes", "unavailable_reason")
        assert {worker[name] for name in nothing} == {None}
        assert api.client.post(f"/v1/workers/{lifecycle.WORKER}/drain").json()["status"] == "DRAINING"

    def test_the_state_depends_on_spark(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str, str | None]] = [
            ("starting", "STARTING", None),
            ("unavailable", "UNAVAILABLE", "no master"),
            ("of a newer one", "READY", None),
        ]
        for state, status, reason in cases:
            with subtests.test(state=state, status=status, reason=reason):
                beat(api, facts=WorkerFacts(spark_state=state, spark_fault="no master"))
                (worker,) = listed(api)
                assert (worker["status"], worker["unavailable_reason"]) == (status, reason)

    @pytest.mark.both_databases
    def test_silent_workers_are_listed_for_an_hour(self, api: Api) -> None:
        beat(api, "long gone", ago_ms=61 * MINUTE_MS)
        beat(api, "silent", ago_ms=2 * MINUTE_MS)
        beat(api, "b")
        beat(api, "a")
        with api.database.write() as session:
            session.execute(update(WorkerRow).where(WorkerRow.id.in_(["a", "b"])).values(started_at=5))
        assert [(worker["id"], worker["status"]) for worker in listed(api)] == [
            ("a", "READY"),
            ("b", "READY"),
            ("silent", "SILENT"),
        ]
        refused(api.client.get("/v1/workers/long%20gone"), 404, "unknown_worker")

    @pytest.mark.both_databases
    def test_running_jobs(self, api: Api) -> None:
        beat(api)
        beat(api, "idle")
        own = lifecycle.claim(api.database, lifecycle.insert(api.database, name="mine"))
        lifecycle.run(api.database, own)
        for tenant, kind in (("another", jobs.RUN), (lifecycle.TENANT, jobs.EXPLAIN)):
            lifecycle.claim(api.database, lifecycle.insert(api.database, tenant=tenant, kind=kind))
        lifecycle.fail(api.database, lifecycle.claim(api.database, lifecycle.insert(api.database)))
        lifecycle.claim(api.database, lifecycle.insert(api.database), lease_ms=-1)
        by_id = {worker["id"]: worker for worker in listed(api)}
        (job,) = by_id[lifecycle.WORKER]["jobs"]
        job.pop("started_at")
        assert job == {"id": own.job_id, "name": "mine", "status": "RUNNING", "attempt": 1}
        assert by_id[lifecycle.WORKER]["other_jobs"] == 2
        assert (by_id["idle"]["jobs"], by_id["idle"]["other_jobs"]) == ([], 0)

    def test_an_unknown_worker_is_not_found(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[str] = ["nobody", "%00", "a%20b", "x" * 200, "%F0%9F%98%80"]
        for worker_id in cases:
            with subtests.test(worker_id=worker_id):
                refused(api.client.get(f"/v1/workers/{worker_id}"), 404, "unknown_worker")
                refused(api.client.post(f"/v1/workers/{worker_id}/drain"), 404, "unknown_worker")


class TestDraining:
    def test_is_idempotent(self, api: Api) -> None:
        beat(api)
        requested = []
        for _ in range(2):
            answer = api.client.post(f"/v1/workers/{lifecycle.WORKER}/drain")
            assert (answer.status_code, answer.json()["status"]) == (202, "DRAINING")
            with api.database.read() as session:
                requested.append(session.scalars(select(WorkerRow.drain_requested_at)).one())
        assert requested[0] == requested[1] is not None
        with api.database.write() as session:
            assert workers.record_heartbeat(session, lifecycle.WORKER, api.database.now(session), "0.1.0", FACTS)

    def test_a_silent_worker_is_refused(self, api: Api) -> None:
        beat(api, ago_ms=2 * MINUTE_MS)
        detail = refused(api.client.post(f"/v1/workers/{lifecycle.WORKER}/drain"), 409, "worker_silent")["detail"]
        assert "last heartbeat was 12" in detail
        with api.database.read() as session:
            assert session.scalars(select(WorkerRow.drain_requested_at)).one() is None

    def test_a_worker_that_shut_down_is_not_found(self, api: Api) -> None:
        beat(api)
        with api.database.write() as session:
            session.execute(delete(WorkerRow))
        refused(api.client.post(f"/v1/workers/{lifecycle.WORKER}/drain"), 404, "unknown_worker")
