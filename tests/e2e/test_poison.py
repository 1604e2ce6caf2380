"""Tests of jobs that crash their driver or fill the disk: they end with the right error and do not affect other
jobs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.contract.enums import JobStatus
from tests.support.processes import wait_for
from tests.support.tables import ENDLESS, ONE_KEY, parquet, write_endless, write_orders
from tests.support.worker import Fleet, fleet, jvm_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENVIRONMENT = {
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "512m",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    "EVENKEEL_WORKER_LEASE_SECONDS": "10",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    "EVENKEEL_WORKER_SWEEP_SECONDS": "0.5",
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "2",
    "EVENKEEL_WORKER_PROGRESS_SECONDS": "0.2",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "0",
}

PAIRS, WIDE = 12_000, 400
_LONG_SECONDS = 300
"""Innocent jobs take a while, so that they still run when the poisonous job is retried."""

COUNT = {"tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}
COUNTED = [{"n": 10_000}]
WRONG = {**COUNT, "sql": "SELECT SUM(1 / (o.price - o.price)) AS x FROM o", "limits": {"max_attempts": 3}}
POISON = {**ENDLESS, "name": "poison", "limits": {"max_attempts": 2}}
POISONOUS_STREAM = {
    "name": "poisonous",
    "mode": "continuous",
    "tables": {
        "a": {**ONE_KEY, "role": "stream"},
        "b": {**ONE_KEY, "role": "static"},
    },
    "sql": "SELECT a.k, COUNT(*) AS n FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1 GROUP BY a.k",
    "limits": {"max_attempts": 2},
}
INNOCENT = {
    "name": "innocent",
    "tables": {"a": parquet("pairs"), "b": parquet("pairs")},
    "sql": "SELECT COUNT(*) AS n FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1",
    "limits": {"max_attempts": 2},
}
# All but (0, 0), (0, 1) and (1, 0).
INNOCENT_ROWS = [{"n": PAIRS * PAIRS - 3}]
# Collects 160,000 texts of 20 KB in one group: 3 GB.
GREEDY = {
    "name": "greedy",
    "tables": {"a": parquet("wide"), "b": parquet("wide")},
    "sql": "SELECT LISTAGG(a.t, ',') WITHIN GROUP (ORDER BY b.k) AS t FROM a JOIN b ON a.k = b.k",
    "limits": {"max_attempts": 1},
}
# With a text, so that Spark writes the result: the worker writes a small one, and its limit is not lowered.
ROWS = "SELECT o.uid, o.category, CAST(o.price AS STRING) AS shown FROM o"
SORTED_ROWS = f"{ROWS} ORDER BY o.price"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("fleet"), ENVIRONMENT) as own:
        write_orders(own.data)
        write_endless(own.data)
        _write(own, "pairs", {"k": pa.array([1] * PAIRS, pa.int64()), "v": pa.array(range(PAIRS), pa.int64())})
        _write(own, "wide", {"k": pa.array([1] * WIDE, pa.int64()), "t": pa.array(["x" * 20_000] * WIDE)})
        yield own


def _write(own: Fleet, name: str, columns: dict[str, Any]) -> None:
    (own.data / name).mkdir()
    pq.write_table(pa.table(columns), own.data / name / "part.parquet")


def ends_of(workers: Fleet, job_id: str) -> list[str]:
    """Returns the final states of a job's attempts."""
    return [attempt.status for attempt in workers.attempts(job_id)]


def has_tasks(workers: Fleet, job_id: str) -> bool:
    job = workers.job(job_id)
    return job.status == "RUNNING" and bool(job.progress and job.progress["tasks_total"])


def assert_next_job_runs(workers: Fleet) -> None:
    job_id = workers.submit(COUNT)
    workers.wait(job_id, "SUCCEEDED")
    assert ends_of(workers, job_id) == ["SUCCEEDED"]
    assert workers.rows(job_id) == COUNTED


def wait_until_nothing_stays(workers: Fleet, job_id: str) -> None:
    """Waits until the job's files are deleted, which happens after its end is published."""
    wait_for("the files to be deleted", lambda: not list((workers.settings.results_dir / job_id).glob("*")))


@pytest.mark.withstands(
    "a job that crashes every driver",
    how="`kill -9` of the JVM whenever the job runs, next to another job",
    times=2,
    guaranteed="the job is CRASHED after its last attempt; the other job and the next one on this worker succeed",
)
def test_job_that_kills_its_jvm_ends_crashed(workers: Fleet) -> None:
    worker = workers.running_worker()
    poison, innocent = workers.submit(POISON), workers.submit(INNOCENT)

    def both_run() -> bool:
        return has_tasks(workers, poison) and has_tasks(workers, innocent)

    wait_for("tasks of both jobs", both_run, 120)
    _kill_jvm(worker.pid, workers)
    wait_for("the loss to be noticed", lambda: not both_run(), 30)

    def is_over() -> bool:
        if has_tasks(workers, poison):
            _kill_jvm(worker.pid, workers)
        return JobStatus(workers.job(poison).status).is_terminal

    wait_for("the end of the poisonous job", is_over, 240, every=0.2)
    job = workers.job(poison)
    assert (job.status, (job.error or {})["code"]) == ("CRASHED", "worker_lost")
    assert ends_of(workers, poison) == ["CRASHED"] * 2
    assert [(attempt.error or {})["code"] for attempt in workers.attempts(poison)] == ["driver_lost"] * 2
    workers.wait(innocent, "SUCCEEDED", _LONG_SECONDS)
    assert ends_of(workers, innocent) == ["CRASHED", "SUCCEEDED"]
    assert workers.rows(innocent) == INNOCENT_ROWS
    wait_until_nothing_stays(workers, poison)
    assert_next_job_runs(workers)
    assert worker.poll() is None


@pytest.mark.withstands(
    "a stream that crashes every driver",
    how="`kill -9` of the JVM whenever a mini-batch of a continuous job runs, next to another job",
    times=2,
    guaranteed="the stream is STOPPED after its last attempt; the other job and the next one on this worker succeed",
)
@pytest.mark.full
def test_stream_that_kills_its_jvm_is_stopped(workers: Fleet) -> None:
    worker = workers.running_worker()
    poison, innocent = workers.submit(POISONOUS_STREAM), workers.submit(INNOCENT)

    def both_run() -> bool:
        return workers.job(poison).status == "RUNNING" and has_tasks(workers, innocent)

    wait_for("tasks of both jobs", both_run, 120)
    _kill_jvm(worker.pid, workers)
    wait_for("the loss to be noticed", lambda: not both_run(), 30)

    def is_over() -> bool:
        if workers.job(poison).status == "RUNNING":
            _kill_jvm(worker.pid, workers)
        return workers.job(poison).status == "STOPPED"

    wait_for("the end of the poisonous stream", is_over, 240, every=0.2)
    assert (workers.job(poison).error or {})["code"] == "worker_lost"
    assert ends_of(workers, poison) == ["CRASHED"] * 2
    workers.wait(innocent, "SUCCEEDED", _LONG_SECONDS)
    assert ends_of(workers, innocent) == ["CRASHED", "SUCCEEDED"]
    assert workers.rows(innocent) == INNOCENT_ROWS
    assert_next_job_runs(workers)
    assert worker.poll() is None


def _kill_jvm(worker: int, workers: Fleet) -> None:
    (process,) = (each for each in workers.running() if each.pid == worker)
    with suppress(ValueError, psutil.NoSuchProcess):  # It is being started.
        jvm_of(process).kill()


@pytest.mark.withstands(
    "a job that fails, takes too long, or is cancelled",
    how="a division by zero, a time limit and a cancellation during the job, with three attempts allowed",
    times=3,
    guaranteed="FAILED, TIMED_OUT or CANCELLED after one attempt, with its error code: further attempts are only for "
    "lost ones",
)
def test_only_lost_attempts_are_retried(workers: Fleet) -> None:
    workers.running_worker()
    wrong = workers.submit(WRONG)
    late = workers.submit({**ENDLESS, "limits": {"timeout": "1s", "max_attempts": 3}})
    workers.wait(wrong, "FAILED")
    workers.wait(late, "TIMED_OUT")
    cancelled = workers.submit(POISON)
    workers.wait_for_tasks(cancelled)
    workers.cancel(cancelled)
    workers.wait(cancelled, "CANCELLED")
    for job_id, code in ((wrong, "divide_by_zero"), (late, "timed_out"), (cancelled, "cancelled")):
        job = workers.job(job_id)
        assert (job.error or {})["code"] == code
        assert ends_of(workers, job_id) == [job.status]
        wait_until_nothing_stays(workers, job_id)


@pytest.mark.withstands(
    "a Spark driver runs out of memory",
    how="3 GB of text in one group, with a heap of 512 MB",
    times=1,
    guaranteed="the attempt ends within seconds with the error code of the cause, and a new driver runs the next job",
)
def test_a_heap_that_is_exhausted(workers: Fleet) -> None:
    worker = workers.running_worker()
    job_id = workers.submit(GREEDY)
    wait_for("the end of the job", lambda: JobStatus(workers.job(job_id).status).is_terminal, 180)
    job = workers.job(job_id)
    assert (job.status, (job.error or {})["code"]) in {("CRASHED", "worker_lost"), ("FAILED", "out_of_memory")}
    if job.status == "CRASHED":
        # A JVM without memory may not log its error.
        assert [(attempt.error or {})["code"] for attempt in workers.attempts(job_id)] == ["driver_lost"]
    assert ends_of(workers, job_id) == [job.status]
    wait_until_nothing_stays(workers, job_id)
    assert_next_job_runs(workers)
    assert worker.poll() is None


def write_with_spark(workers: Fleet) -> None:
    """Runs a job whose result Spark writes: the JVM writes a library for that to a file when it first needs it."""
    workers.wait(workers.submit({"tables": {"o": parquet("orders")}, "sql": ROWS}), "SUCCEEDED", 60)


@pytest.mark.withstands(
    "the disk of results is full for a while",
    how="as above, with a job that may be retried after a failure",
    times=1,
    guaranteed="the job waits, is retried, and SUCCEEDS; no lost attempt is counted",
)
@pytest.mark.slow
def test_job_is_retried_after_a_transient_failure(workers: Fleet) -> None:
    worker = workers.running_worker()
    write_with_spark(workers)
    jvm = jvm_of(worker)
    before = jvm.rlimit(psutil.RLIMIT_FSIZE)
    jvm.rlimit(psutil.RLIMIT_FSIZE, (4096, before[1]))
    try:
        limits = {"max_attempts": 1, "failure_retries": 2}
        job_id = workers.submit({"tables": {"o": parquet("orders")}, "sql": ROWS, "limits": limits})
        wait_for("the first attempt to fail", lambda: ends_of(workers, job_id) == ["FAILED"], 60)
    finally:
        jvm.rlimit(psutil.RLIMIT_FSIZE, before)
    job = workers.job(job_id)
    assert (job.status, job.error, job.next_run_at is not None) == ("QUEUED", None, True)
    workers.wait(job_id, "SUCCEEDED", 60)
    assert ends_of(workers, job_id) == ["FAILED", "SUCCEEDED"]
    assert len(workers.rows(job_id)) == 10_000


@pytest.mark.withstands(
    "the disk of results is full",
    how="RLIMIT_FSIZE of the JVM at 4 KB while a result is written, and during a shuffle",
    times=2,
    guaranteed="the job is FAILED with `disk_full`, nothing of it remains, and the next job runs once there is space",
)
@pytest.mark.parametrize("sql", [ROWS, pytest.param(SORTED_ROWS, marks=pytest.mark.full)])
def test_a_full_disk(workers: Fleet, sql: str) -> None:
    worker = workers.running_worker()
    write_with_spark(workers)
    jvm = jvm_of(worker)
    before = jvm.rlimit(psutil.RLIMIT_FSIZE)
    jvm.rlimit(psutil.RLIMIT_FSIZE, (4096, before[1]))
    try:
        job_id = workers.submit({"tables": {"o": parquet("orders")}, "sql": sql})
        workers.wait(job_id, "FAILED")
    finally:
        jvm.rlimit(psutil.RLIMIT_FSIZE, before)
    error = workers.job(job_id).error or {}
    assert (error["code"], error["status"]) == ("disk_full", 500)
    assert "EVENKEEL_DATA_RESULTS" in error["detail"]
    assert str(workers.settings.results_dir) not in error["detail"]
    assert ends_of(workers, job_id) == ["FAILED"]
    wait_until_nothing_stays(workers, job_id)
    assert_next_job_runs(workers)
    assert worker.poll() is None
    assert jvm.is_running()
