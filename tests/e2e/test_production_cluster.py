"""The service on a real Spark cluster: a master and two Spark workers, and two workers of Evenkeel that share them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from service.store.tables import AttemptRow, WorkerRow
from tests.support.burst import SLOW, SLOW_ANSWER, assert_ended_once, wait_until_ended, write_pairs, write_small
from tests.support.processes import wait_for, wait_until_gone
from tests.support.production import Part, Production, running_production, running_servers
from tests.support.spark_cluster import SparkCluster, running_cluster
from tests.support.traffic import traffic

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENVIRONMENT = {
    # One executor with one core each, so that there is one for both.
    "EVENKEEL_SPARK_CORES_MAX": "1",
    "EVENKEEL_SPARK_EXECUTOR_MEMORY": "512m",
    # A master that was started again knows no application, and gives none an executor that it lost.
    "EVENKEEL_SPARK_EXECUTOR_WAIT_SECONDS": "15",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def production(cluster: SparkCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Production]:
    environment = {
        **ENVIRONMENT,
        "EVENKEEL_SPARK_MASTER": cluster.url,
        "EVENKEEL_SPARK_MASTER_UI_PORT": str(cluster.web_port),
    }
    directory = tmp_path_factory.mktemp("production")
    with (
        running_servers(tmp_path_factory.mktemp("servers")) as servers,
        running_production(directory, servers, apis=1, workers=2, environment=environment) as running,
    ):
        write_small(running.data)
        write_pairs(running.data)
        yield running


def worker_of(production: Production, job_id: str) -> Part:
    """The worker that a job is with."""
    statement = (
        select(WorkerRow.pid)
        .join(AttemptRow, AttemptRow.worker == WorkerRow.id)
        .where(AttemptRow.job_id == job_id)
        .order_by(AttemptRow.fence.desc())
    )
    pid = production.all(statement)[0][0]
    (part,) = (part for part in production.workers if part.process.pid == pid)
    return part


def application_of(production: Production, part: Part) -> str:
    """What Spark calls a worker."""
    return str(production.all(select(WorkerRow.app_id).where(WorkerRow.pid == part.process.pid))[0][0])


def test_the_spark_master_restarted_under_load(production: Production, cluster: SparkCluster) -> None:
    with traffic(production, "master") as clients:
        clients.start_slow(2)
        clients.post(range(1, 5))
        cluster.restart_master()
        clients.post(range(5, 9))
        clients.finish()


def test_a_worker_killed_with_its_job_is_replaced_by_the_other(production: Production, cluster: SparkCluster) -> None:
    client = production.apis[0]
    job_id = client.submit(SLOW)
    client.wait(job_id, "RUNNING")
    killed = worker_of(production, job_id)
    application = application_of(production, killed)
    executors = cluster.executors(application)
    assert len(executors) == 1
    production.kill(killed)
    wait_until_ended(production, [job_id], 300)
    assert_ended_once(production, {job_id: SLOW_ANSWER})
    attempts = select(AttemptRow.status).where(AttemptRow.job_id == job_id).order_by(AttemptRow.fence)
    assert production.all(attempts) == [("CRASHED",), ("SUCCEEDED",)]
    assert worker_of(production, job_id) is not killed
    # Nothing of it is left on the cluster, so that there is room for its successor.
    wait_until_gone(executors, 60)
    wait_for("the cluster to forget it", lambda: application not in cluster.applications(), 60)
    assert len(cluster.applications()) == 1
