"""Jobs of one tenant end while jobs of another one that do not end occupy all slots of the worker and of Spark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.processes import wait_for
from tests.support.spark_cluster import SparkCluster
from tests.support.tables import ENDLESS, parquet, write_endless, write_orders
from tests.support.worker import Fleet, fleet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENVIRONMENT = {
    "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    "EVENKEEL_WORKER_PROGRESS_SECONDS": "0.2",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "1",
}
GROUPS = {"tables": {"o": parquet("orders")}, "sql": "SELECT o.category, COUNT(*) AS n FROM o GROUP BY o.category"}


@pytest.fixture(params=["local", pytest.param("cluster", marks=pytest.mark.full)])
def master(request: pytest.FixtureRequest) -> Mapping[str, str]:
    """The settings of a Spark with two slots."""
    if request.param == "local":
        return {"EVENKEEL_SPARK_MASTER": "local[2]"}
    cluster: SparkCluster = request.getfixturevalue("spark_cluster")
    return {
        "EVENKEEL_SPARK_MASTER": cluster.url,
        "EVENKEEL_SPARK_MASTER_UI_PORT": str(cluster.web_port),
        "EVENKEEL_SPARK_EXECUTOR_MEMORY": "512m",
    }


@pytest.fixture
def workers(master: Mapping[str, str], tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, {**ENVIRONMENT, **master}) as own:
        write_orders(own.data)
        write_endless(own.data)
        own.start_worker()
        yield own


@pytest.mark.withstands(
    "a tenant occupies all slots of the workers and of Spark",
    how="twice as many jobs as the worker has slots, whose tasks do not end, in local mode and on a cluster",
    times=2,
    guaranteed="jobs of another tenant end meanwhile, and the first tenant's jobs keep their attempts",
)
def test_small_jobs_end_while_long_jobs_of_another_tenant_run(workers: Fleet) -> None:
    long = [workers.submit(ENDLESS, "a") for _ in range(4)]
    running = wait_for("two long jobs", lambda: found if len(found := with_tasks(workers, long)) == 2 else None, 120)
    for _ in range(3):
        small = workers.submit(GROUPS, "b")
        workers.wait(small, "SUCCEEDED")
        assert len(workers.rows(small)) == 7
    assert {job_id: workers.job(job_id).status for job_id in long} == {
        job_id: "RUNNING" if job_id in running else "QUEUED" for job_id in long
    }
    assert [workers.job(job_id).fence for job_id in running] == [1, 1]
    assert "task_preempted" in {entry["event"] for entry in workers.log_events()}
    for job_id in long:
        workers.cancel(job_id)
    for job_id in long:
        workers.wait(job_id, "CANCELLED")


def with_tasks(workers: Fleet, job_ids: list[str]) -> list[str]:
    """Returns the jobs of which Spark runs tasks."""
    rows = ((job_id, workers.job(job_id)) for job_id in job_ids)
    return [job_id for job_id, row in rows if row.status == "RUNNING" and row.progress and row.progress["tasks_total"]]
