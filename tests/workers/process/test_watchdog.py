"""A worker on a real cluster whose master is unavailable or restarted while jobs run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from service.store.tables import WorkerRow
from tests.support.processes import wait_for
from tests.support.spark_cluster import SparkCluster, running_cluster
from tests.support.tables import ONE_KEY, parquet, write_endless, write_orders
from tests.support.worker import Fleet, fleet

_PATIENCE = 300
"""Seconds; a start of Spark takes five of them, and a minute where the machine is busy with others."""

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PAIRS = {
    "name": "pairs",
    "tables": {"a": ONE_KEY, "b": ONE_KEY},
    "sql": "SELECT COUNT(*) AS n FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1 AND a.v < 200",
}
"""Some seconds of work in one task: 200 x 400,000 pairs, less those of (0, 0), (0, 1) and (1, 0)."""
PER_CATEGORY = {
    "name": "per-category",
    "tables": {"orders": parquet("orders")},
    "sql": "SELECT category, COUNT(*) AS n FROM orders GROUP BY category",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """One worker of two cores; its master remembers everything when it is started anew."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), workers=1, cores=2, recovers=True) as running:
        yield running


@pytest.fixture(scope="module")
def workers(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    environment = {
        "EVENKEEL_SPARK_MASTER": cluster.url,
        "EVENKEEL_SPARK_MASTER_UI_PORT": str(cluster.web_port),
        "EVENKEEL_SPARK_CORES_MAX": "2",
        "EVENKEEL_SPARK_DRIVER_MEMORY": "512m",
        "EVENKEEL_SPARK_EXECUTOR_MEMORY": "512m",
        "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    }
    with fleet(tmp_path_factory.mktemp("fleet"), environment) as own:
        write_orders(own.data)
        write_endless(own.data)
        yield own


def wait_for_spark(workers: Fleet, state: str) -> list[WorkerRow]:
    def look() -> list[WorkerRow] | None:
        with workers.database.read() as session:
            rows = list(session.scalars(select(WorkerRow)))
        return rows if [row.spark_state for row in rows] == [state] else None

    try:
        return wait_for(f"Spark {state}", look, _PATIENCE)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{workers.logs()}") from None


def ends_right(workers: Fleet, job_id: str) -> None:
    """Waits for a job `PER_CATEGORY` and checks its result."""
    workers.wait(job_id, "SUCCEEDED", _PATIENCE)
    # 10,000 is 7 x 1428 and 4 more.
    expected = {f"c{i}": 1429 if i < 4 else 1428 for i in range(7)}
    assert {row["category"]: row["n"] for row in workers.rows(job_id)} == expected


def test_jobs_wait_for_an_unavailable_cluster(cluster: SparkCluster, workers: Fleet) -> None:
    cluster.stop_master()
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
    ends_right(workers, job_id)
    assert len(workers.attempts(job_id)) == 1


def test_jobs_go_on_where_the_master_remembers(cluster: SparkCluster, workers: Fleet) -> None:
    (row,) = wait_for_spark(workers, "ready")
    job_id = workers.submit(PAIRS)
    workers.wait_for_tasks(job_id, _PATIENCE)
    executors = cluster.executors()
    cluster.restart_master()
    workers.wait(job_id, "SUCCEEDED", _PATIENCE)
    assert workers.rows(job_id) == [{"n": 79_999_997}]
    assert len(workers.attempts(job_id)) == 1
    ends_right(workers, workers.submit(PER_CATEGORY))
    assert (cluster.executors(), cluster.applications()) == (executors, [row.app_id])
