"""Tests of a worker's faults: kills, a killed JVM, a pause, a cancellation and a stop."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.processes import wait_for, wait_until_gone
from tests.support.tables import ENDLESS, parquet, write_endless, write_orders
from tests.support.worker import Fleet, active_tasks, fleet, jvm_of, pause

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENVIRONMENT = {
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
    "EVENKEEL_SPARK_TASK_KILL_SECONDS": "3",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    "EVENKEEL_WORKER_LEASE_SECONDS": "5",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    "EVENKEEL_WORKER_SWEEP_SECONDS": "0.5",
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "2",
    "EVENKEEL_WORKER_PROGRESS_SECONDS": "0.2",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "1",
}

ROWS = 6_000
# Compares every pair of rows, which takes some seconds, in which a test can cause faults.
SLOW = {
    "name": "slow",
    "tables": {"a": parquet("pairs"), "b": parquet("pairs")},
    "sql": "SELECT COUNT(*) AS n FROM a JOIN b ON a.k = b.k WHERE a.v + b.v > 1",
}
# All but (0, 0), (0, 1) and (1, 0).
SLOW_RESULT = [{"n": ROWS * ROWS - 3}]
# Java tries every way to distribute 200 characters over 20 wildcards and does not react to an interrupt. As a literal,
# the pattern would be refused.
BACKTRACKING = {
    "name": "backtracking",
    "tables": {"t": parquet("texts")},
    "sql": "SELECT COUNT(*) AS n FROM t WHERE s LIKE p",
}
# Occupies both slots, so that no other attempt progresses.
EVERYWHERE = {**BACKTRACKING, "name": "everywhere", "tables": {"t": parquet("two_texts")}}
COUNT = {"tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}
STREAM = {
    "name": "innocent",
    "mode": "continuous",
    "tables": {"o": {**parquet("orders"), "role": "stream"}},
    "sql": "SELECT o.uid, o.price FROM o",
    "limits": {"max_attempts": 1},
}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """One installation for all tests. Each test leaves no running job and at most one worker, which the next test
    uses.
    """
    with fleet(tmp_path_factory.mktemp("fleet"), ENVIRONMENT) as own:
        write_orders(own.data)
        write_endless(own.data)
        (own.data / "pairs").mkdir()
        table = pa.table({"k": pa.array([1] * ROWS, pa.int64()), "v": pa.array(range(ROWS), pa.int64())})
        pq.write_table(table, own.data / "pairs" / "part.parquet")
        endless = pa.table({"s": ["a" * 200], "p": ["%a" * 20 + "%b"]})
        for name, files in (("texts", 1), ("two_texts", 2)):
            (own.data / name).mkdir()
            for number in range(files):
                pq.write_table(endless, own.data / name / f"part-{number}.parquet")
        yield own


def assert_ended_once(workers: Fleet, job_id: str, *attempts: str) -> None:
    """Checks that only the last attempt published, with the right result, and that only its files are left."""
    assert workers.rows(job_id) == SLOW_RESULT
    assert [attempt.status for attempt in workers.attempts(job_id)] == list(attempts)
    job = workers.job(job_id)
    assert job.result_path == f"{job_id}/attempt-{len(attempts)}"
    left = [path.name for path in (workers.settings.results_dir / job_id).iterdir()]
    assert left == [f"attempt-{len(attempts)}"]


def has_ended_late(workers: Fleet, worker: subprocess.Popen[bytes]) -> bool:
    """Whether the worker has ended an attempt whose lease another worker has."""
    said = workers.log(worker)
    return "attempt_lost_its_lease" in said or "publication_refused" in said


@pytest.mark.withstands(
    "a worker is stopped during a job",
    how="SIGTERM",
    times=1,
    guaranteed="the job is queued again without losing an attempt",
)
def test_stopped_worker_hands_its_jobs_back(workers: Fleet) -> None:
    worker = workers.start_worker()
    job_id = workers.submit(ENDLESS)
    workers.wait_for_tasks(job_id)
    jvm = jvm_of(worker).pid
    worker.terminate()
    assert worker.wait(30) == 0, workers.logs()
    wait_until_gone([jvm], 15)
    job = workers.job(job_id)
    assert (job.status, job.lease_owner) == ("QUEUED", None)
    (attempt,) = workers.attempts(job_id)
    assert attempt.error is not None
    assert (attempt.status, attempt.error["code"]) == ("CANCELLED", "handed_back")
    assert list((workers.settings.state_dir / "spark").iterdir()) == []
    assert list(workers.settings.results_dir.glob("*")) == []
    workers.cancel(job_id)


def test_stopped_worker_completes_short_jobs(workers: Fleet) -> None:
    worker = workers.start_worker({"EVENKEEL_WORKER_DRAIN_SECONDS": "100"})
    job_id = workers.submit(SLOW)
    workers.wait_for_tasks(job_id)
    worker.terminate()
    assert worker.wait(100) == 0, workers.logs()
    assert_ended_once(workers, job_id, "SUCCEEDED")


@pytest.mark.withstands(
    "a worker is killed",
    how="`kill -9` during a job",
    times=1,
    guaranteed="its JVM exits too; another worker completes the job, once",
)
def test_killed_worker_is_replaced(workers: Fleet) -> None:
    first = workers.running_worker()
    job_id = workers.submit(SLOW)
    workers.wait_for_tasks(job_id)
    jvm = jvm_of(first).pid
    first.kill()
    first.wait(10)
    wait_until_gone([jvm])
    workers.start_worker()
    workers.wait(job_id, "SUCCEEDED")
    assert_ended_once(workers, job_id, "CRASHED", "SUCCEEDED")


@pytest.mark.withstands(
    "a worker resumes after its lease expired",
    how="SIGSTOP of worker and JVM, SIGCONT after the end of the job",
    times=1,
    guaranteed="its writes change nothing and are removed",
)
def test_paused_worker_cannot_publish(workers: Fleet) -> None:
    paused = workers.running_worker()
    job_id = workers.submit(SLOW)
    workers.wait_for_tasks(job_id)
    jvm = jvm_of(paused)
    wait_for("a moment to pause it", lambda: pause(workers, paused), 30)
    jvm.suspend()
    workers.start_worker()
    workers.wait(job_id, "SUCCEEDED")
    jvm.resume()
    paused.send_signal(signal.SIGCONT)
    # It continues, notices the loss of its lease, and deletes its files.
    wait_for("the late attempt to end", lambda: has_ended_late(workers, paused), 60)
    own = workers.settings.results_dir / job_id / "attempt-1"
    wait_for("its files to be deleted", lambda: not own.exists(), 30)
    assert_ended_once(workers, job_id, "CRASHED", "SUCCEEDED")
    paused.kill()
    paused.wait(10)


@pytest.mark.withstands(
    "no worker is left",
    how="`kill -9` of the only worker during a job",
    times=1,
    guaranteed="once its lease has expired, the job is shown as QUEUED, never as RUNNING, and can be cancelled at once",
)
def test_job_without_a_worker_is_not_shown_running(workers: Fleet) -> None:
    only = workers.running_worker()
    job_id = workers.submit(ENDLESS)
    workers.wait_for_tasks(job_id)
    assert workers.shown(job_id).status == "RUNNING"
    only.kill()
    only.wait(10)
    wait_for("the lease to expire", lambda: workers.shown(job_id).status == "QUEUED", 30)
    assert workers.job(job_id).status == "RUNNING", "a sweep has already happened"
    shown = workers.shown(job_id)
    assert (shown.finished, shown.progress) == (False, None)
    workers.cancel(job_id)
    assert workers.shown(job_id).status == "CANCELLED"
    assert [attempt.status for attempt in workers.attempts(job_id)] == ["CRASHED"]


@pytest.mark.withstands(
    "a worker dies while one of its jobs is CANCELLING",
    how="`kill -9` of the paused worker after the request",
    times=1,
    guaranteed="another worker sets the job to CANCELLED; nothing of it remains",
)
@pytest.mark.full
def test_job_of_a_dead_worker_is_cancelled(workers: Fleet) -> None:
    first = workers.running_worker()
    job_id = workers.submit(ENDLESS)
    workers.wait_for_tasks(job_id)
    jvm = jvm_of(first)
    wait_for("a moment to pause it", lambda: pause(workers, first), 30)
    workers.cancel(job_id)
    assert workers.shown(job_id).status == "CANCELLING"
    first.kill()
    first.wait(10)
    wait_until_gone([jvm.pid])
    workers.start_worker()
    ended = workers.wait(job_id, "CANCELLED", 60)
    assert ended.error is not None
    assert ended.error["code"] == "cancelled"
    (attempt,) = workers.attempts(job_id)
    assert attempt.error is not None
    assert (attempt.status, attempt.error["code"]) == ("CRASHED", "worker_lost")
    wait_for("its files to be deleted", lambda: not (workers.settings.results_dir / job_id).exists(), 15)


@pytest.mark.withstands(
    "a Spark driver dies",
    how="`kill -9` of the JVM during a job",
    times=1,
    guaranteed="the worker notices within seconds, starts another driver and runs the job again",
)
def test_killed_jvm_is_replaced_and_jobs_can_be_cancelled(workers: Fleet) -> None:
    worker = workers.running_worker()
    job_id = workers.submit(SLOW)
    workers.wait_for_tasks(job_id)
    killed = jvm_of(worker)
    killed.kill()
    wait_for("the job to be handed back", lambda: workers.job(job_id).fence == 2, 20)
    workers.wait(job_id, "SUCCEEDED")
    assert_ended_once(workers, job_id, "CRASHED", "SUCCEEDED")
    assert worker.poll() is None

    endless = workers.submit(ENDLESS)
    workers.wait_for_tasks(endless)
    wait_for("tasks", lambda: active_tasks(worker), 30)
    workers.cancel(endless)
    workers.wait(endless, "CANCELLED", 15)
    wait_for("Spark's tasks to end", lambda: active_tasks(worker) == 0, 15)
    assert not (workers.settings.results_dir / endless).exists()


@pytest.mark.withstands(
    "a task that cannot be interrupted",
    kind="attack",
    how="a regular expression from a column that backtracks endlessly, in a job that is cancelled",
    times=1,
    guaranteed="the job is CANCELLED at once, and its slot is free soon after",
)
def test_driver_of_an_uninterruptible_task_is_terminated(workers: Fleet) -> None:
    worker = workers.running_worker()
    job_id = workers.submit(BACKTRACKING)
    workers.wait_for_tasks(job_id)
    wait_for("tasks", lambda: active_tasks(worker), 30)
    driver = jvm_of(worker).pid
    workers.cancel(job_id)
    workers.wait(job_id, "CANCELLED", 15)
    wait_until_gone([driver])
    assert "spark_driver_stuck" in workers.log(worker)
    job_id = workers.submit(COUNT)
    workers.wait(job_id, "SUCCEEDED")
    assert jvm_of(worker).pid != driver


@pytest.mark.withstands(
    "a job next to which drivers are terminated",
    kind="attack",
    how="repeated jobs whose tasks cannot be interrupted are cancelled next to a job and a stream with one attempt "
    "each",
    times=2,
    guaranteed="each cancelled job is CANCELLED; the others are handed back with `driver_ended`, lose no attempt, and "
    "continue",
)
@pytest.mark.full
def test_terminated_driver_uses_no_attempt_of_other_jobs(workers: Fleet) -> None:
    worker = workers.running_worker()
    stream = workers.submit(STREAM)
    for number in (1, 2):
        workers.wait(stream, "RUNNING")
        killer = workers.submit(EVERYWHERE)
        workers.wait_for_tasks(killer)
        wait_for("tasks in both slots", lambda: active_tasks(worker) == 2, 60)
        innocent = workers.submit({**COUNT, "limits": {"max_attempts": 1}})
        workers.wait(innocent, "RUNNING")
        driver = jvm_of(worker).pid
        workers.cancel(killer)
        workers.wait(killer, "CANCELLED", 15)
        wait_until_gone([driver])
        workers.wait(innocent, "SUCCEEDED")
        assert ends_of(workers, killer) == [("CANCELLED", "cancelled")]
        assert ends_of(workers, innocent) == [("CANCELLED", "driver_ended"), ("SUCCEEDED", None)]
        assert workers.rows(innocent) == [{"n": 10_000}]
        wait_for("the stream to continue", lambda: workers.job(stream).fence > number, 60)  # noqa: B023 - called at once
        assert ends_of(workers, stream)[:number] == [("CANCELLED", "driver_ended")] * number
    workers.wait(stream, "RUNNING")
    assert worker.poll() is None
    workers.cancel(stream)
    workers.wait(stream, "CANCELLED", 30)


def ends_of(workers: Fleet, job_id: str) -> list[tuple[str, str | None]]:
    """Returns the final states and error codes of a job's attempts."""
    return [(attempt.status, (attempt.error or {}).get("code")) for attempt in workers.attempts(job_id)]
