"""Tests of jobs that run in a Spark driver of their own: kills, a lack of memory, stops, and the limit of drivers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.enums import JobStatus
from service.store.publication import stage_metrics
from tests.support.processes import wait_for, wait_until_gone
from tests.support.spark_cluster import SparkCluster
from tests.support.tables import ENDLESS, parquet, write_endless, write_orders
from tests.support.worker import Fleet, fleet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENVIRONMENT = {
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
    "EVENKEEL_SPARK_TASK_KILL_SECONDS": "5",
    "EVENKEEL_WORKER_CONCURRENCY": "3",
    "EVENKEEL_WORKER_ISOLATED_MEMORY": "512m",
    "EVENKEEL_WORKER_LEASE_SECONDS": "10",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    "EVENKEEL_WORKER_SWEEP_SECONDS": "0.5",
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "2",
    "EVENKEEL_WORKER_PROGRESS_SECONDS": "0.2",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "0",
}
OWN = {"settings": {"isolation": "driver"}}
PAIRS, WIDE = 6_000, 400
COUNT = {"tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}
COUNTED = [{"n": 10_000}]
# Compares every pair of rows, which takes some seconds, in which a test can cause faults.
SLOW: dict[str, Any] = {
    "name": "slow",
    "tables": {"a": parquet("pairs"), "b": parquet("pairs")},
    "sql": "SELECT COUNT(*) AS n FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1",
}
# All but (0, 0), (0, 1) and (1, 0).
SLOW_ROWS = [{"n": PAIRS * PAIRS - 3}]
# Collects 160,000 texts of 20 KB in one group: 3 GB.
GREEDY = {
    "name": "greedy",
    "tables": {"a": parquet("wide"), "b": parquet("wide")},
    "sql": "SELECT LISTAGG(a.t, ',') WITHIN GROUP (ORDER BY b.k) AS t FROM a JOIN b ON a.k = b.k",
    "limits": {"max_attempts": 1},
    **OWN,
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One installation for all tests. Each test leaves no running job and at most one worker, which the next test
    uses.
    """
    with fleet(tmp_path_factory.mktemp("fleet"), ENVIRONMENT) as own:
        write_orders(own.data)
        write_endless(own.data)
        _write(own, "pairs", {"k": pa.array([1] * PAIRS, pa.int64()), "v": pa.array(range(PAIRS), pa.int64())})
        _write(own, "wide", {"k": pa.array([1] * WIDE, pa.int64()), "t": pa.array(["x" * 20_000] * WIDE)})
        yield own


def _write(own: Fleet, name: str, columns: dict[str, Any]) -> None:
    (own.data / name).mkdir()
    pq.write_table(pa.table(columns), own.data / name / "part.parquet")


def ready_worker(workers: Fleet) -> subprocess.Popen[bytes]:
    """Returns a worker whose Spark has started: until then, another JVM prepares its command line."""
    worker = workers.running_worker()
    workers.wait(workers.submit(COUNT), "SUCCEEDED")
    return worker


def processes_of(worker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Returns the processes of attempts that a worker runs."""
    return [child for child in psutil.Process(worker.pid).children() if "workers.isolated" in child.cmdline()]


def family_of(process: psutil.Process) -> list[psutil.Process]:
    """Returns the process of an attempt and its JVM."""
    (jvm,) = (child for child in process.children() if child.name() == "java")
    return [process, jvm]


def jvm_of_worker(worker: subprocess.Popen[bytes]) -> psutil.Process:
    """Returns the JVM that the other jobs of a worker share."""
    (jvm,) = (child for child in psutil.Process(worker.pid).children() if child.name() == "java")
    return jvm


def run_until_tasks(workers: Fleet, worker: subprocess.Popen[bytes], job_id: str) -> list[psutil.Process]:
    """Waits until Spark runs tasks of a job in a driver of its own. Returns its process and JVM."""
    workers.wait_for_tasks(job_id)
    (process,) = processes_of(worker)
    return family_of(process)


def ends_of(workers: Fleet, job_id: str) -> list[tuple[str, str | None]]:
    """Returns the final states of a job's attempts, with the codes of their errors."""
    attempts = workers.attempts(job_id)
    return [(attempt.status, (attempt.error or {}).get("code")) for attempt in attempts]


def wait_until_gone_with_files(workers: Fleet, family: list[psutil.Process], drivers: int = 1) -> None:
    """Waits until processes have ended, and only the files of so many drivers are left."""
    wait_until_gone([process.pid for process in family])
    scratch = workers.settings.state_dir / "spark"
    wait_for("the files of the driver to be removed", lambda: len(list(scratch.iterdir())) == drivers, 20)


def test_job_runs_in_a_driver_of_its_own(workers: Fleet) -> None:
    worker = ready_worker(workers)
    jvm = jvm_of_worker(worker).pid
    job_id = workers.submit({**SLOW, **OWN})
    family = run_until_tasks(workers, worker, job_id)
    assert family[1].pid != jvm
    assert "-Xmx512m" in family[1].cmdline()
    (held,) = (one for one in workers.attempts(job_id))
    assert f"-{worker.pid}-" in held.worker
    workers.wait(job_id, "SUCCEEDED")
    assert workers.rows(job_id) == SLOW_ROWS
    assert ends_of(workers, job_id) == [("SUCCEEDED", None)]
    with workers.database.read() as session:
        assert stage_metrics(session, job_id, 1)
    wait_until_gone_with_files(workers, family)
    started = [one for one in workers.log_events() if one["event"] == "spark_started" and one.get("job_id") == job_id]
    assert [one["pid"] for one in started] == [family[1].pid]
    # Other jobs, and explanations of this one, use the driver of the worker.
    workers.wait(workers.submit(COUNT), "SUCCEEDED")
    assert jvm_of_worker(worker).pid == jvm


@pytest.mark.withstands(
    "the driver of a single job dies",
    how="`kill -9` of its process, and of its JVM, during a job with `isolation: driver`",
    times=2,
    guaranteed="the attempt is CRASHED, the next one succeeds, and the driver that other jobs share continues",
)
@pytest.mark.parametrize("killed", ["process", "JVM"])
@pytest.mark.full
def test_lost_driver_is_replaced(workers: Fleet, killed: str) -> None:
    worker = ready_worker(workers)
    jvm = jvm_of_worker(worker).pid
    job_id = workers.submit({**SLOW, **OWN})
    family = run_until_tasks(workers, worker, job_id)
    family[killed == "JVM"].kill()
    workers.wait(job_id, "SUCCEEDED")
    assert ends_of(workers, job_id) == [("CRASHED", "driver_lost"), ("SUCCEEDED", None)]
    assert workers.rows(job_id) == SLOW_ROWS
    wait_until_gone_with_files(workers, family)
    left = [path.name for path in (workers.settings.results_dir / job_id).iterdir()]
    assert left == ["attempt-2"]
    assert jvm_of_worker(worker).pid == jvm


@pytest.mark.withstands(
    "a job with a driver of its own runs out of memory",
    how="3 GB of text in one group, with a heap of 512 MB, next to a job with a single attempt",
    times=1,
    guaranteed="that job ends with the error code of the cause, and the other one succeeds in its first attempt",
)
@pytest.mark.full
def test_exhausted_heap_harms_no_other_job(workers: Fleet) -> None:
    worker = ready_worker(workers)
    jvm = jvm_of_worker(worker).pid
    innocent = workers.submit({**ENDLESS, "limits": {"max_attempts": 1}})
    workers.wait_for_tasks(innocent)
    greedy = workers.submit(GREEDY)
    wait_for("the end of the job", lambda: JobStatus(workers.job(greedy).status).is_terminal, 240)
    job = workers.job(greedy)
    assert (job.status, (job.error or {})["code"]) in {("CRASHED", "worker_lost"), ("FAILED", "out_of_memory")}
    assert (workers.job(innocent).status, ends_of(workers, innocent)) == ("RUNNING", [("RUNNING", None)])
    workers.wait(workers.submit(COUNT), "SUCCEEDED")
    assert jvm_of_worker(worker).pid == jvm
    workers.cancel(innocent)
    workers.wait(innocent, "CANCELLED")


def test_cancelled_job_ends_with_its_driver(workers: Fleet) -> None:
    worker = workers.running_worker()
    job_id = workers.submit({**ENDLESS, **OWN})
    family = run_until_tasks(workers, worker, job_id)
    workers.cancel(job_id)
    workers.wait(job_id, "CANCELLED", 30)
    assert ends_of(workers, job_id) == [("CANCELLED", "cancelled")]
    with workers.database.read() as session:
        assert stage_metrics(session, job_id, 1)
    wait_until_gone_with_files(workers, family)


@pytest.mark.full
def test_job_that_is_cancelled_during_the_start_of_its_driver(workers: Fleet) -> None:
    worker = workers.running_worker()
    job_id = workers.submit({**ENDLESS, **OWN})
    (process,) = wait_for("the process", lambda: processes_of(worker), 30)
    workers.cancel(job_id)
    workers.wait(job_id, "CANCELLED", 30)
    wait_until_gone_with_files(workers, [process])


@pytest.mark.full
def test_job_that_does_not_stop_is_ended_after_its_time_limit(workers: Fleet) -> None:
    worker = workers.running_worker()
    job_id = workers.submit({**ENDLESS, **OWN, "limits": {"timeout": "1h"}})
    family = run_until_tasks(workers, worker, job_id)
    # It answers neither the request to stop nor anything else.
    for process in family:
        process.suspend()
    workers.cancel(job_id)
    workers.wait(job_id, "CANCELLED", 60)
    wait_until_gone_with_files(workers, family)
    late = workers.submit({**ENDLESS, **OWN, "limits": {"timeout": "1s"}})
    workers.wait(late, "TIMED_OUT", 60)
    assert ends_of(workers, late) == [("TIMED_OUT", "timed_out")]


@pytest.mark.withstands(
    "the process of a single job hangs",
    how="SIGSTOP during a job with `isolation: driver`",
    times=1,
    guaranteed="it is ended after the time of a lease, and the next attempt succeeds",
)
@pytest.mark.full
def test_silent_process_is_replaced(workers: Fleet) -> None:
    worker = workers.running_worker()
    job_id = workers.submit({**SLOW, **OWN})
    family = run_until_tasks(workers, worker, job_id)
    family[0].suspend()
    workers.wait(job_id, "SUCCEEDED")
    assert ends_of(workers, job_id) == [("CRASHED", "driver_lost"), ("SUCCEEDED", None)]
    wait_until_gone_with_files(workers, family)


@pytest.mark.full
def test_further_jobs_wait_for_a_driver_and_block_no_other_job(workers: Fleet) -> None:
    worker = workers.running_worker()
    first, *others = [workers.submit({**ENDLESS, **OWN}) for _ in range(5)]
    workers.wait_for_tasks(first)
    counted = [workers.submit(COUNT) for _ in range(3)]
    for job_id in counted:
        workers.wait(job_id, "SUCCEEDED")
        assert workers.rows(job_id) == COUNTED
    assert [workers.job(job_id).status for job_id in others] == ["QUEUED"] * 4
    assert [workers.job(job_id).fence for job_id in others] == [0] * 4
    assert len(processes_of(worker)) == 1
    for job_id in others[1:]:
        workers.cancel(job_id)
    # The first gives its driver to the second.
    workers.cancel(first)
    workers.wait(first, "CANCELLED", 30)
    workers.wait_for_tasks(others[0])
    workers.cancel(others[0])
    workers.wait(others[0], "CANCELLED", 30)


@pytest.mark.withstands(
    "a worker is killed during a job that has a driver of its own",
    how="`kill -9` of the worker",
    times=1,
    guaranteed="the process of the job and its JVM exit too; another worker completes the job and removes the files of "
    "both drivers",
)
@pytest.mark.full
def test_killed_worker_ends_the_driver_of_the_job(workers: Fleet) -> None:
    worker = ready_worker(workers)
    job_id = workers.submit({**SLOW, **OWN})
    family = run_until_tasks(workers, worker, job_id)
    family.append(jvm_of_worker(worker))
    worker.kill()
    worker.wait(10)
    wait_until_gone([process.pid for process in family])
    workers.start_worker()
    workers.wait(job_id, "SUCCEEDED")
    assert workers.rows(job_id) == SLOW_ROWS
    assert [status for status, _ in ends_of(workers, job_id)] == ["CRASHED", "SUCCEEDED"]
    wait_until_gone_with_files(workers, family)


@pytest.mark.full
def test_stopped_worker_hands_the_job_back(workers: Fleet) -> None:
    worker = workers.running_worker()
    job_id = workers.submit({**ENDLESS, **OWN})
    family = run_until_tasks(workers, worker, job_id)
    worker.terminate()
    assert worker.wait(30) == 0, workers.logs()
    wait_until_gone_with_files(workers, family, drivers=0)
    assert workers.job(job_id).status == "QUEUED"
    assert ends_of(workers, job_id) == [("CANCELLED", "handed_back")]
    workers.cancel(job_id)


@pytest.mark.full
def test_two_drivers_at_once(workers: Fleet) -> None:
    for worker in workers.running():
        worker.terminate()
        worker.wait(30)
    worker = workers.start_worker({"EVENKEEL_WORKER_ISOLATED_DRIVERS": "2"})
    jobs = [workers.submit({**ENDLESS, **OWN}) for _ in range(3)]
    for job_id in jobs[:2]:
        workers.wait_for_tasks(job_id)
    assert (len(processes_of(worker)), workers.job(jobs[2]).fence) == (2, 0)
    for job_id in reversed(jobs):
        workers.cancel(job_id)
        workers.wait(job_id, "CANCELLED", 30)


@pytest.mark.full
def test_driver_on_a_cluster(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    on_cluster = {
        "EVENKEEL_SPARK_MASTER": spark_cluster.url,
        "EVENKEEL_SPARK_MASTER_UI_PORT": str(spark_cluster.web_port),
        "EVENKEEL_SPARK_EXECUTOR_MEMORY": "512m",
        "EVENKEEL_SPARK_EXECUTOR_WAIT_SECONDS": "20",
    }
    with fleet(tmp_path, {**ENVIRONMENT, **on_cluster}) as own:
        write_orders(own.data)
        # One of the two cores of the cluster stays free.
        worker = own.start_worker({"EVENKEEL_SPARK_CORES_MAX": "1"})
        job_id = own.submit({**COUNT, **OWN})
        own.wait(job_id, "SUCCEEDED", 180)
        assert own.rows(job_id) == COUNTED
        worker.terminate()
        worker.wait(30)

        worker = own.start_worker({"EVENKEEL_SPARK_CORES_MAX": "2"})
        own.wait(own.submit(COUNT), "SUCCEEDED", 180)
        job_id = own.submit({**COUNT, **OWN})
        own.wait(job_id, "FAILED", 180)
        assert ends_of(own, job_id) == [("FAILED", "driver_not_started")]
        own.wait(own.submit(COUNT), "SUCCEEDED")
        faults = [one for one in own.log_events() if one["event"] == "spark_unavailable"]
        assert [(one["code"], one["job_id"]) for one in faults] == [("no_executors", job_id)]
