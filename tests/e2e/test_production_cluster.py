"""Tests of two workers that share a real Spark cluster with a master and two Spark workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from service.store.tables import AttemptRow, JobRow, WorkerRow
from tests.support.burst import SLOW, SLOW_ANSWER, assert_ended_once, wait_until_ended, write_pairs, write_small
from tests.support.processes import wait_for, wait_until_gone
from tests.support.production import Part, Production, running_production, running_servers
from tests.support.spark_cluster import SparkCluster, running_cluster
from tests.support.tables import ENDLESS, write_endless
from tests.support.traffic import traffic

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENVIRONMENT = {
    # One executor with one core each, so that both workers get one.
    "EVENKEEL_SPARK_CORES_MAX": "1",
    "EVENKEEL_SPARK_EXECUTOR_MEMORY": "512m",
    # A restarted master knows no application and does not replace lost executors.
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
        write_endless(running.data)
        yield running


def worker_of(production: Production, job_id: str) -> Part:
    """Returns the worker that runs a job."""
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
    """Returns the id of a worker's Spark application."""
    return str(production.all(select(WorkerRow.app_id).where(WorkerRow.pid == part.process.pid))[0][0])


def attempts_of(production: Production, job_id: str) -> list[str]:
    """Returns the states of a job's attempts, oldest first."""
    statement = select(AttemptRow.status).where(AttemptRow.job_id == job_id).order_by(AttemptRow.fence)
    return [status for (status,) in production.all(statement)]


def wait_for_tasks(production: Production, job_id: str) -> None:
    """Waits until Spark runs tasks of a job."""

    def has_tasks() -> bool:
        ((progress,),) = production.all(select(JobRow.progress).where(JobRow.id == job_id))
        return bool(progress and progress["tasks_total"])

    wait_for("tasks of the job", has_tasks, 120)


@pytest.mark.withstands(
    "a Spark executor dies",
    how="`kill -9` during a job",
    times=1,
    guaranteed="the job ends in the same attempt",
)
@pytest.mark.full
def test_lost_executor_uses_no_attempt(production: Production, cluster: SparkCluster) -> None:
    applications = production.all(select(WorkerRow.app_id, WorkerRow.slots).order_by(WorkerRow.app_id))
    assert applications == [(application, 1) for application in sorted(cluster.applications())]

    job_id = production.apis[0].submit(SLOW)
    wait_for_tasks(production, job_id)
    (executor,) = cluster.executors(application_of(production, worker_of(production, job_id)))
    os.kill(executor, signal.SIGKILL)
    wait_until_ended(production, [job_id], 300)
    assert_ended_once(production, {job_id: SLOW_ANSWER})
    assert attempts_of(production, job_id) == ["SUCCEEDED"]
    assert executor not in cluster.executors()


@pytest.mark.withstands(
    "the Spark master dies",
    how="`kill -9` under load, started again without its state",
    times=1,
    guaranteed="workers register again; every job runs once",
)
@pytest.mark.full
def test_spark_master_restarted_under_load(production: Production, cluster: SparkCluster) -> None:
    client = production.apis[0]
    endless = client.submit(ENDLESS)
    wait_for_tasks(production, endless)
    with traffic(production, "master") as clients:
        clients.start_slow(2)
        clients.post(range(1, 5))
        cluster.restart_master()
        clients.post(range(5, 9))
        # A driver does not learn that the master has lost it, and would wait for executors forever.
        wait_for("another attempt", lambda: len(attempts_of(production, endless)) == 2, 120)
        # Until then, it occupies a worker's only core.
        client.http.post(f"/v1/jobs/{endless}/cancel").raise_for_status()
        clients.finish()
    assert client.wait(endless)["status"] == "CANCELLED"
    assert attempts_of(production, endless)[0] == "CRASHED"
    (error,) = production.all(select(AttemptRow.error).where(AttemptRow.job_id == endless, AttemptRow.fence == 1))[0]
    assert error["code"] == "driver_lost"


@pytest.mark.full
def test_killed_worker_is_replaced_by_the_other(production: Production, cluster: SparkCluster) -> None:
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
    assert attempts_of(production, job_id) == ["CRASHED", "SUCCEEDED"]
    assert worker_of(production, job_id) is not killed
    # It has left the cluster, so that its successor gets executors.
    wait_until_gone(executors, 60)
    wait_for("the cluster to remove it", lambda: application not in cluster.applications(), 60)
    assert len(cluster.applications()) == 1
