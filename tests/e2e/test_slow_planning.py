"""Tests of workers whose planning does not end: their jobs end anyway, and the workers exit."""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import update

from service.store import leases
from service.store.tables import JobRow
from tests.support.processes import family, wait_for, wait_until_gone
from tests.support.service import running_service
from tests.support.slow_planning import query, slow_planning, wait_until_it_hangs
from tests.support.tables import write_orders
from tests.support.worker import Fleet, fleet, jvm_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENVIRONMENT = {
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "1g",
    "EVENKEEL_SPARK_TASK_KILL_SECONDS": "3",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    "EVENKEEL_WORKER_LEASE_SECONDS": "10",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    "EVENKEEL_WORKER_SWEEP_SECONDS": "0.5",
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "2",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "0",
}
COUNT = query("quick")
COUNTED = [{"n": 10_000}]
END_SECONDS = 15


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the code that makes planning hang."""
    return tmp_path_factory.mktemp("slow") / "hooks"


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, hooks: Path) -> Iterator[Fleet]:
    """One installation for all tests. Each test leaves no running job and at most one worker, which the next test
    uses.
    """
    with fleet(tmp_path_factory.mktemp("fleet"), {**ENVIRONMENT, **slow_planning(hooks)}) as own:
        write_orders(own.data)
        yield own


def planned(workers: Fleet, hooks: Path, alias: str, **limits: object) -> str:
    """Submits a job, waits until its planning hangs, and returns its id."""
    job_id = workers.submit({**query(alias), "limits": limits})
    wait_until_it_hangs(hooks, alias)
    assert workers.job(job_id).status == "PLANNING"
    return job_id


def assert_goes_on(workers: Fleet, worker: subprocess.Popen[bytes]) -> None:
    job_id = workers.submit(COUNT)
    workers.wait(job_id, "SUCCEEDED")
    assert workers.rows(job_id) == COUNTED
    assert worker.poll() is None


def code_of(workers: Fleet, job_id: str) -> tuple[str, str]:
    """Returns the state and the error code of a job's only attempt."""
    (attempt,) = workers.attempts(job_id)
    return attempt.status, (attempt.error or {})["code"]


def end(worker: subprocess.Popen[bytes], workers: Fleet) -> None:
    """Checks that the worker exits with code 0 although its plannings hang."""
    jvm = jvm_of(worker).pid
    worker.terminate()
    assert worker.wait(45) == 0, workers.logs()
    wait_until_gone([jvm])


@pytest.mark.withstands(
    "the planning of a job does not end",
    how="a loop in Python, with and without checks, in a job that is cancelled or exceeds its time limit",
    times=4,
    guaranteed="the job is CANCELLED or TIMED_OUT at once; its worker continues, and exits when told to",
)
@pytest.mark.parametrize(
    ("status", "alias"),
    [
        ("CANCELLED", "checks"),
        ("TIMED_OUT", "loops"),
        pytest.param("CANCELLED", "loops", marks=pytest.mark.full),
        pytest.param("TIMED_OUT", "checks", marks=pytest.mark.full),
    ],
)
def test_job_ends_while_its_planning_loops(workers: Fleet, hooks: Path, alias: str, status: str) -> None:
    worker = workers.running_worker()
    job_id = planned(workers, hooks, alias, timeout="5s")
    if status == "CANCELLED":
        workers.cancel(job_id)
    workers.wait(job_id, status, END_SECONDS)
    assert code_of(workers, job_id) == (status, status.lower())
    assert_goes_on(workers, worker)
    assert ("planning_abandoned" in workers.log(worker)) is (alias == "loops")
    if alias == "loops":
        end(worker, workers)


@pytest.mark.withstands(
    "Spark does not answer the planning of a job",
    how="a call into the JVM that does not return, in a job that is cancelled or exceeds its time limit",
    times=2,
    guaranteed="the job is CANCELLED or TIMED_OUT at once; the driver is terminated, and the next job runs on a new "
    "one",
)
@pytest.mark.parametrize("status", ["CANCELLED", pytest.param("TIMED_OUT", marks=pytest.mark.full)])
def test_driver_that_hangs_while_planning_is_terminated(workers: Fleet, hooks: Path, status: str) -> None:
    worker = workers.running_worker()
    assert_goes_on(workers, worker)
    driver = jvm_of(worker).pid
    job_id = planned(workers, hooks, "calls", timeout="5s")
    if status == "CANCELLED":
        workers.cancel(job_id)
    workers.wait(job_id, status, END_SECONDS)
    assert code_of(workers, job_id) == (status, status.lower())
    assert_goes_on(workers, worker)
    wait_until_gone([driver], 30)
    assert_goes_on(workers, worker)
    assert jvm_of(worker).pid != driver
    wait_for("the planning to end", lambda: "abandoned_planning_ended" in workers.log(worker))


@pytest.mark.withstands(
    "a worker is stopped while it plans",
    how="SIGTERM during plannings that do not end, in Python and in the JVM",
    times=1,
    guaranteed="the jobs are queued again without losing an attempt; the worker exits",
)
@pytest.mark.full
def test_stopped_worker_hands_back_jobs_being_planned(workers: Fleet, hooks: Path) -> None:
    worker = workers.running_worker()
    jobs = [planned(workers, hooks, alias) for alias in ("loops", "calls")]
    end(worker, workers)
    for job_id in jobs:
        assert (workers.job(job_id).status, workers.job(job_id).lease_owner) == ("QUEUED", None)
        assert code_of(workers, job_id) == ("CANCELLED", "handed_back")
        workers.cancel(job_id)


@pytest.mark.full
def test_worker_abandons_a_job_that_another_worker_has(workers: Fleet, hooks: Path) -> None:
    worker = workers.running_worker()
    job_id = planned(workers, hooks, "waits")
    with workers.database.write() as session:
        now = workers.database.now(session)
        mine = JobRow.id == job_id
        session.execute(update(JobRow).where(mine).values(status="QUEUED", lease_owner=None, lease_expires_at=None))
        assert leases.claim(session, job_id, "another", now, 600_000) is not None
    wait_for("the worker to abandon the job", lambda: "attempt_lost_its_lease" in workers.log(worker), END_SECONDS)
    job = workers.job(job_id)
    assert (job.status, job.fence, job.lease_owner) == ("PLANNING", 2, "another")
    assert_goes_on(workers, worker)
    end(worker, workers)


@pytest.mark.withstands(
    "plannings that do not end are submitted and cancelled repeatedly",
    kind="attack",
    how="one planning for each thread of a worker, none of which can be interrupted",
    times=1,
    guaranteed="the worker accepts no more jobs and exits by itself; its successor runs the waiting jobs",
)
def test_worker_blocked_by_plannings_is_replaced(workers: Fleet, hooks: Path) -> None:
    worker = workers.running_worker()
    for _ in range(2):
        job_id = planned(workers, hooks, "waits")
        workers.cancel(job_id)
        workers.wait(job_id, "CANCELLED", END_SECONDS)
    waiting = workers.submit(COUNT)
    assert worker.wait(60) == 0, workers.logs()
    assert "worker_blocked_by_plannings" in workers.log(worker)
    assert (workers.job(waiting).status, workers.job(waiting).fence) == ("QUEUED", 0)
    workers.start_worker()
    workers.wait(waiting, "SUCCEEDED")


@pytest.mark.withstands(
    "`evenkeel up` is stopped while a planning does not end",
    how="SIGTERM during plannings in Python and in the JVM, one of which was cancelled over HTTP",
    times=1,
    guaranteed="it exits with all its processes; the jobs are queued or CANCELLED",
)
@pytest.mark.full
def test_service_exits_while_plannings_hang(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks"
    with running_service(tmp_path, {**ENVIRONMENT, **slow_planning(hooks)}) as service:
        write_orders(service.data)
        jobs = {}
        for alias in ("loops", "calls", "waits"):
            jobs[alias] = service.submit(query(alias))
            wait_until_it_hangs(hooks, alias)
            if alias == "loops":
                assert service.http.post(f"/v1/jobs/{jobs[alias]}/cancel").status_code == 202
                assert service.wait(jobs[alias], "CANCELLED", END_SECONDS)["status"] == "CANCELLED"
        processes = family(service.process.pid)
        service.process.terminate()
        assert service.process.wait(60) == 0, service.logs()
        wait_until_gone(list(processes), 15)
        with closing(sqlite3.connect(service.state_dir / "evenkeel.db")) as connection:
            found = dict(connection.execute("SELECT id, status FROM jobs").fetchall())
    assert found == {jobs["loops"]: "CANCELLED", jobs["calls"]: "QUEUED", jobs["waits"]: "QUEUED"}
