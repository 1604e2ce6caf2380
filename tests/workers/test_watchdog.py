"""Workers on a real cluster, whose parts are lost while jobs run on it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import select

from service.store.tables import WorkerRow
from tests.support.processes import wait_for, wait_until_gone
from tests.support.spark_cluster import SparkCluster, running_cluster
from tests.support.tables import ENDLESS, parquet, write_endless, write_orders
from tests.support.worker import Fleet, fleet

_PATIENCE = 300
"""Seconds; a start of Spark takes five of them, and a minute where the machine is busy with others."""

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

PAIRS = {
    "name": "pairs",
    "tables": {"a": parquet("one_key"), "b": parquet("one_key")},
    "sql": "SELECT COUNT(*) AS n FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1 AND a.v < 200",
}
"""Some seconds of work in one task: 200 x 400,000 pairs, less those of (0, 0), (0, 1) and (1, 0)."""
PER_CATEGORY = {
    "name": "per-category",
    "tables": {"orders": parquet("orders")},
    "sql": "SELECT category, COUNT(*) AS n FROM orders GROUP BY category",
}


@contextmanager
def workers_on(cluster: SparkCluster, directory: Path, cores: int = 1, alone_seconds: int = 60) -> Iterator[Fleet]:
    environment = {
        "EVENKEEL_SPARK_MASTER": cluster.url,
        "EVENKEEL_SPARK_MASTER_UI_PORT": str(cluster.web_port),
        "EVENKEEL_SPARK_CORES_MAX": str(cores),
        "EVENKEEL_SPARK_DRIVER_MEMORY": "512m",
        "EVENKEEL_SPARK_EXECUTOR_MEMORY": "512m",
        "EVENKEEL_SPARK_EXECUTOR_WAIT_SECONDS": str(alone_seconds),
        "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    }
    with fleet(directory, environment) as workers:
        write_orders(workers.data)
        write_endless(workers.data)
        yield workers


def wait_for_spark(workers: Fleet, state: str, number: int = 1) -> list[WorkerRow]:
    def look() -> list[WorkerRow] | None:
        with workers.database.read() as session:
            rows = list(session.scalars(select(WorkerRow)))
        return rows if [row.spark_state for row in rows] == [state] * number else None

    try:
        return wait_for(f"Spark {state}", look, _PATIENCE)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{workers.logs()}") from None


def ends_right(workers: Fleet) -> str:
    """Submits a job, and gives its id once its result is checked."""
    job_id = workers.submit(PER_CATEGORY)
    workers.wait(job_id, "SUCCEEDED", _PATIENCE)
    # 10,000 is 7 x 1428 and 4 more.
    expected = {f"c{i}": 1429 if i < 4 else 1428 for i in range(7)}
    assert {row["category"]: row["n"] for row in workers.rows(job_id)} == expected
    return job_id


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Two workers of one core each; its master forgets everything when it is started anew."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def test_two_workers_share_a_cluster_and_one_loses_an_executor(cluster: SparkCluster, tmp_path: Path) -> None:
    with workers_on(cluster, tmp_path) as workers:
        workers.start_worker()
        workers.start_worker()
        rows = wait_for_spark(workers, "ready", 2)
        assert sorted(row.app_id or "" for row in rows) == sorted(cluster.applications())
        assert [row.slots for row in rows] == [1, 1]

        job_id = workers.submit(PAIRS)
        owner = workers.wait_for_tasks(job_id, _PATIENCE).lease_owner
        (application,) = (row.app_id for row in rows if row.id == owner)
        (executor,) = cluster.executors(application)
        os.kill(executor, signal.SIGKILL)
        workers.wait(job_id, "SUCCEEDED", _PATIENCE)
        assert workers.rows(job_id) == [{"n": 79_999_997}]
        assert len(workers.attempts(job_id)) == 1
        assert executor not in cluster.executors()


def test_a_master_that_forgot_its_applications_costs_an_attempt(cluster: SparkCluster, tmp_path: Path) -> None:
    with workers_on(cluster, tmp_path, cores=2, alone_seconds=10) as workers:
        workers.start_worker()
        wait_for_spark(workers, "ready")
        job_id = workers.submit(ENDLESS)
        workers.wait_for_tasks(job_id, _PATIENCE)
        executors = cluster.executors()
        cluster.restart_master()
        wait_until_gone(executors, _PATIENCE)

        # The driver never learns of it, and would wait for executors for ever.
        wait_for("another attempt", lambda: len(workers.attempts(job_id)) == 2, _PATIENCE)
        first, _ = workers.attempts(job_id)
        assert first.error is not None
        assert (first.status, first.error["code"]) == ("CRASHED", "driver_lost")
        workers.wait_for_tasks(job_id, _PATIENCE)
        workers.cancel(job_id)
        workers.wait(job_id, "CANCELLED")


def test_jobs_wait_for_a_cluster_that_is_away(cluster: SparkCluster, tmp_path: Path) -> None:
    cluster.stop_master()
    with workers_on(cluster, tmp_path) as workers:
        workers.start_worker()
        (row,) = wait_for_spark(workers, "unavailable")
        assert row.spark_fault is not None
        assert row.spark_fault.startswith("cluster_unreachable: No Spark master answers at 127.0.0.1")
        job_id = workers.submit(PER_CATEGORY)
        # Long enough for the message to have come and gone.
        heartbeat = wait_for_spark(workers, "unavailable")[0].heartbeat_at
        wait_for("heartbeats", lambda: wait_for_spark(workers, "unavailable")[0].heartbeat_at > heartbeat + 3000)
        assert (workers.job(job_id).status, workers.job(job_id).fence) == ("QUEUED", 0)

        cluster.start_master()
        workers.wait(job_id, "SUCCEEDED", _PATIENCE)
        assert len(workers.attempts(job_id)) == 1


def test_jobs_go_on_where_the_master_remembers(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path, workers=1, cores=2, recovers=True) as cluster,
        workers_on(cluster, tmp_path, cores=2) as workers,
    ):
        workers.start_worker()
        (row,) = wait_for_spark(workers, "ready")
        job_id = workers.submit(PAIRS)
        workers.wait_for_tasks(job_id, _PATIENCE)
        executors = cluster.executors()
        cluster.restart_master()
        workers.wait(job_id, "SUCCEEDED", _PATIENCE)
        assert workers.rows(job_id) == [{"n": 79_999_997}]
        assert len(workers.attempts(job_id)) == 1
        ends_right(workers)
        assert (cluster.executors(), cluster.applications()) == (executors, [row.app_id])
