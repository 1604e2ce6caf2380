"""GET /healthz and GET /readyz."""

from __future__ import annotations

import pytest
from sqlalchemy import text, update

from service import __version__
from service.store import workers
from service.store.tables import JobRow, WorkerRow
from service.store.workers import WorkerFacts
from tests.support import lifecycle
from tests.support.api import Api, refused


def missing(api: Api) -> set[str]:
    """Returns the codes of the issues that GET /readyz reports."""
    answer = api.client.get("/readyz")
    refused(answer, 503, "not_ready")
    assert int(answer.headers["retry-after"]) > 0
    return {issue["code"] for issue in answer.json()["errors"]}


def say(api: Api, worker: str, facts: WorkerFacts, *, leaving: bool = False) -> None:
    with api.database.write() as session:
        workers.record_heartbeat(session, worker, api.database.now(session), "0.1.0", facts, leaving=leaving)


def test_liveness_does_not_use_the_database(api: Api) -> None:
    with api.database.write() as session:
        session.execute(text("DROP TABLE workers"))
    assert api.client.get("/healthz").json() == {"status": "alive", "version": __version__}


class TestReadiness:
    def test_ready(self, api: Api) -> None:
        say(api, "w1", WorkerFacts(queues=api.settings.worker.queues))
        answer = api.client.get("/readyz")
        assert answer.status_code == 200
        assert answer.json() == {"status": "ready", "workers": 1, "warnings": []}

    def test_a_queue_without_a_listener_is_a_warning(self, api: Api, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str | None, str]] = [("short", "long"), (None, "long"), ("long", "short")]
        for listened, unheard in cases:
            with subtests.test(listened=listened, unheard=unheard):
                # A worker that says nothing of its queues is one of the version before, in the middle of an upgrade.
                say(api, "w1", WorkerFacts(queues=listened, spark_state="ready"))
                say(api, "w2", WorkerFacts(queues="short,long", spark_state="unavailable"))
                answer = api.client.get("/readyz")
                assert answer.status_code == 200
                (warning,) = answer.json()["warnings"]
                assert warning["code"] == "queue"
                assert f"listens to the queue {unheard}," in warning["detail"]
                say(api, "w2", WorkerFacts(queues="short,long", spark_state="ready"))
                assert api.client.get("/readyz").json()["warnings"] == []

    def test_a_worker_that_receives_no_jobs_is_a_warning(self, api: Api) -> None:
        say(api, "w1", WorkerFacts(queues="short,long", spark_state="ready"))
        job_id = lifecycle.insert(api.database)
        with api.database.write() as session:
            session.execute(update(WorkerRow).values(started_at=1, version=__version__))
            session.execute(update(JobRow).values(updated_at=1))
        (warning,) = api.client.get("/readyz").json()["warnings"]
        assert warning["code"] == "worker"
        assert "Worker w1 is alive but receives no jobs" in warning["detail"]
        lifecycle.claim(api.database, job_id)
        assert api.client.get("/readyz").json()["warnings"] == []

    def test_no_worker(self, api: Api) -> None:
        assert missing(api) == {"worker"}

    def test_a_worker_without_recent_heartbeat(self, api: Api) -> None:
        lifecycle.beat(api.database)
        with api.database.write() as session:
            session.execute(update(WorkerRow).values(heartbeat_at=1))
        assert missing(api) == {"worker"}

    def test_a_worker_whose_spark_is_starting_counts_as_ready(self, api: Api) -> None:
        say(api, "w1", WorkerFacts(spark_state="starting"))
        assert api.client.get("/readyz").status_code == 200

    def test_no_worker_with_a_usable_spark(self, api: Api) -> None:
        for worker in ("w1", "w2"):
            say(api, worker, WorkerFacts(spark_state="unavailable", spark_fault=f"no master for {worker}"))
        assert missing(api) == {"cluster"}
        assert "Worker w1: no master for w1" in api.client.get("/readyz").json()["detail"]
        say(api, "w3", WorkerFacts(spark_state="ready"))
        answer = api.client.get("/readyz")
        assert (answer.status_code, answer.json()["workers"]) == (200, 3)

    def test_draining_workers_do_not_count(self, api: Api) -> None:
        say(api, "w1", WorkerFacts(spark_state="ready"), leaving=True)
        assert missing(api) == {"worker"}
        assert "draining" in api.client.get("/readyz").json()["detail"]
        say(api, "w2", WorkerFacts(spark_state="unavailable"))
        assert missing(api) == {"cluster"}

    def test_no_broker(self, api: Api) -> None:
        lifecycle.beat(api.database)
        (api.settings.broker_dir / "messages").rmdir()
        assert missing(api) == {"broker"}

    @pytest.mark.both_databases
    def test_another_schema(self, api: Api) -> None:
        with api.database.write() as session:
            session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        assert missing(api) == {"schema"}

    @pytest.mark.both_databases
    def test_no_database(self, api: Api) -> None:
        with api.database.write() as session:
            session.execute(text("DROP TABLE workers"))
        assert missing(api) == {"database"}
