"""Tests of replacing workers one after the other under load."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import select

from service.jobs.workers import drain_worker
from service.store.tables import WorkerRow
from tests.support.processes import free_port, wait_for
from tests.support.service import Service, running_service
from tests.support.tables import parquet, write_orders
from tests.support.worker import TENANT, Fleet, fleet

pytestmark = pytest.mark.e2e

ENVIRONMENT = {
    "EVENKEEL_SPARK_MASTER": "local[1]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    # Long enough that a job runs in time only if its message is passed on.
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "600",
}
COUNT = {"tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}
ROWS = 5_000
# Compares every pair of rows, which takes longer than the drain time of 0.
SLOW = {
    "tables": {"a": parquet("pairs"), "b": parquet("pairs")},
    "sql": "SELECT COUNT(*) AS n FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1",
}


def write_pairs(data: Path) -> None:
    """Writes a table with one key; a self-join takes Spark some seconds."""
    (data / "pairs").mkdir()
    table = pa.table({"k": pa.array([1] * ROWS, pa.int64()), "v": pa.array(range(ROWS), pa.int64())})
    pq.write_table(table, data / "pairs" / "part.parquet")


def id_of(workers: Fleet, process: subprocess.Popen[bytes]) -> str:
    with workers.database.read() as session:
        rows = session.scalars(select(WorkerRow)).all()
    (found,) = (row.id for row in rows if row.pid == process.pid)
    return found


@pytest.mark.withstands(
    "a rolling restart",
    how="every API and worker is stopped and started in turn, under load",
    times=1,
    guaranteed="no job is lost or runs twice",
)
@pytest.mark.slow
def test_rolling_restart_loses_and_repeats_no_job(tmp_path: Path) -> None:
    with fleet(tmp_path, {**ENVIRONMENT, "EVENKEEL_WORKER_DRAIN_SECONDS": "100"}) as workers:
        write_orders(workers.data)
        port = free_port()
        first = workers.start_worker({"EVENKEEL_WORKER_METRICS_PORT": str(port)})
        second = workers.start_worker()
        submitted = [workers.submit(COUNT) for _ in range(8)]
        wait_for("a job to end", lambda: any(workers.job(job_id).finished_at for job_id in submitted), 240)
        scraped = httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=30, trust_env=False).text
        assert "evenkeel_worker_queue_wait_seconds_count" in scraped
        assert "evenkeel_worker_memory_bytes" in scraped

        drain_worker(workers.database, TENANT, id_of(workers, first), 30_000)
        submitted += [workers.submit(COUNT) for _ in range(4)]
        assert first.wait(240) == 0, workers.logs()
        workers.start_worker()

        submitted += [workers.submit(COUNT) for _ in range(4)]
        second.terminate()
        submitted += [workers.submit(COUNT) for _ in range(4)]
        assert second.wait(240) == 0, workers.logs()

        for job_id in submitted:
            workers.wait(job_id, "SUCCEEDED", 240)
            assert workers.rows(job_id) == [{"n": 10_000}]
            attempts = [(attempt.fence, attempt.status) for attempt in workers.attempts(job_id)]
            assert attempts == [(1, "SUCCEEDED")], workers.logs()


@pytest.mark.slow
@pytest.mark.full
def test_drained_worker_exits_after_its_job_and_is_replaced(tmp_path: Path) -> None:
    # The drain time applies to stopped workers; a drained worker has no deadline.
    with running_service(tmp_path, {**ENVIRONMENT, "EVENKEEL_WORKER_DRAIN_SECONDS": "0"}) as service:
        write_pairs(service.data)
        slow = service.submit(SLOW)
        service.wait(slow, "RUNNING")
        (worker,) = listed(service)
        assert [job["id"] for job in worker["jobs"]] == [slow]
        answer = service.http.post(f"/v1/workers/{worker['id']}/drain")
        assert (answer.status_code, answer.json()["status"]) == (202, "DRAINING")
        waiting = service.submit({"tables": {"a": parquet("pairs")}, "sql": "SELECT COUNT(*) AS n FROM a"})
        assert service.wait(slow, seconds=240)["status"] == "SUCCEEDED"
        assert service.wait(waiting, seconds=240)["status"] == "SUCCEEDED"
        assert [service.job(job_id)["attempts"] for job_id in (slow, waiting)] == [1, 1]
        fresh = wait_for("a fresh worker", lambda: [it for it in listed(service) if it["id"] != worker["id"]], 120)
        assert [it["status"] for it in fresh] in (["STARTING"], ["READY"])
        said = service.output.read_text()
        assert "The worker was drained and has ended; starting a new one." in said
        assert "restarting it" not in said


def listed(service: Service) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = service.http.get("/v1/workers").json()["workers"]
    return workers
