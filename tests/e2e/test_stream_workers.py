"""Tests of streams and their workers: late, killed and competing workers, consecutive runs, and bad input."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from service.contract.enums import AttemptStatus, JobStatus, Queue
from service.results.json_values import json_rows
from service.results.stream_result import open_stream_result, result_directory
from service.store.streaming_state import StreamStopReason
from tests.support.databases import PostgresDatabases
from tests.support.feeding import Feeder, Group, groups_of, within
from tests.support.processes import wait_for
from tests.support.streaming import TENANT, StreamJob, pid_of, stream_job
from tests.support.worker import Fleet, fleet, jvm_of, pause

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ENVIRONMENT = {
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "512m",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    "EVENKEEL_WORKER_LEASE_SECONDS": "5",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    "EVENKEEL_WORKER_SWEEP_SECONDS": "0.3",
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "1",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "1",
}
SEED = 5
ANNOUNCEMENTS = 20


@pytest.fixture(scope="module")
def warehouse(postgres_databases: PostgresDatabases) -> Iterator[str]:
    """The libpq connection string of a database for sinks."""
    with postgres_databases.new() as url:
        yield url.replace("+psycopg", "")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory, warehouse: str) -> Iterator[Fleet]:
    """One installation for all tests. Each test leaves no running stream."""
    environment = {**ENVIRONMENT, "EVENKEEL_SINK_WAREHOUSE_URL": warehouse}
    with fleet(tmp_path_factory.mktemp("streams"), environment) as own:
        yield own


@pytest.fixture
def two(workers: Fleet) -> tuple[subprocess.Popen[bytes], ...]:
    """Two running workers."""
    while len(workers.running()) < 2:
        workers.start_worker()
    return tuple(workers.running())


def submitted(workers: Fleet, name: str, mode: str = "continuous", **further: Any) -> tuple[StreamJob, Feeder]:
    """Declares a stream, submits a job that reads it, and returns the job and a feeder."""
    feeder = feeder_of(workers, name)
    return job_of(workers, stream_job(name, name, mode, **further)), feeder


def feeder_of(workers: Fleet, name: str) -> Feeder:
    """Declares a stream and returns a feeder for it."""
    return Feeder(within(workers.database, workers.settings, TENANT, name), SEED)


def job_of(workers: Fleet, spec: dict[str, Any]) -> StreamJob:
    return StreamJob(workers.database, workers.submit(spec), workers.logs)


def rows_of(workers: Fleet, job: StreamJob) -> list[list[Any]]:
    """Returns the rows of the managed result."""
    found = open_stream_result(result_directory(workers.settings.streams_dir, job.id, job.stream.generation))
    return json_rows(found.files.page(0, 1000))


def groups(workers: Fleet, job: StreamJob) -> set[Group]:
    return groups_of(rows_of(workers, job))


def wait_until_exact(workers: Fleet, job: StreamJob, feeder: Feeder) -> None:
    job.wait_for("a mini-batch", lambda: job.known is not None and job.known.last_batch is not None)
    job.wait_for("the result", lambda: groups(workers, job) == feeder.posted.groups())


def at_it(workers: Fleet, job: StreamJob) -> tuple[int, subprocess.Popen[bytes]] | None:
    """Returns the current attempt of the job and its worker."""
    row = job.row
    own = () if row.lease_owner is None else (pid_of(row.lease_owner),)
    return next(((row.fence, process) for process in workers.running() if process.pid in own), None)


def times(workers: Fleet, job: StreamJob, *events: str) -> int:
    """Counts these events of the job in the workers' logs."""
    return sum(line["event"] in events and line.get("job_id") == job.id for line in workers.log_events())


def times_let_go(workers: Fleet, job: StreamJob) -> int:
    """Counts the attempts that noticed the loss of their lease."""
    return times(workers, job, "attempt_lost_its_lease", "attempt_handed_back")


def is_let_go(workers: Fleet, job: StreamJob, before: int) -> bool:
    """Whether another attempt has noticed the loss of its lease since `before`."""
    return times_let_go(workers, job) > before


@pytest.mark.withstands(
    "a worker of a stream resumes after its lease expired",
    how="SIGSTOP, then SIGCONT while another worker writes",
    times=4,
    guaranteed="its writes change nothing",
)
@pytest.mark.parametrize(
    ("kind", "with_its_jvm", "times_late"),
    [
        ("managed", True, 2),
        pytest.param("managed", False, 1, marks=pytest.mark.full),
        pytest.param("postgres", True, 1, marks=pytest.mark.full),
    ],
)
def test_late_worker_changes_nothing(
    workers: Fleet,
    two: tuple[subprocess.Popen[bytes], ...],
    warehouse: str,
    kind: str,
    times_late: int,
    *,
    with_its_jvm: bool,
) -> None:
    name = f"late-{kind}-{'with' if with_its_jvm else 'without'}"
    sink = {"kind": kind, **({"connection": "warehouse", "table": "late"} if kind == "postgres" else {})}
    job, feeder = submitted(workers, name, sink=sink)

    def read() -> set[Group]:
        if kind == "managed":
            return groups(workers, job)
        with psycopg.connect(warehouse) as connection:
            return groups_of(connection.execute("SELECT k, n, s, d FROM late").fetchall())

    with feeder.feeding():
        for _ in range(times_late):
            job.wait_for_batch()
            fence, late = job.wait_for("the running attempt", partial(at_it, workers, job))
            before = times_let_go(workers, job)
            jvm = jvm_of(late)
            job.wait_for("a moment to pause it", partial(pause, workers, late))
            if with_its_jvm:
                jvm.suspend()
            job.wait_for_attempt(after=fence)
            job.wait_for_batch()
            if with_its_jvm:
                jvm.resume()
            late.send_signal(signal.SIGCONT)
            # Both write for a moment, until the late worker notices.
            job.wait_for("the late attempt to end", partial(is_let_go, workers, job, before))
    job.wait_for("the result", lambda: read() == feeder.posted.groups())
    job.stop()
    assert read() == feeder.posted.groups()
    ends = [attempt.status for attempt in job.attempts]
    assert ends == [AttemptStatus.CRASHED] * (len(ends) - 1) + [AttemptStatus.STOPPED]
    assert set(two) == set(workers.running())


def test_killed_worker_and_jvm_change_no_result(
    workers: Fleet, two: tuple[subprocess.Popen[bytes], ...], warehouse: str
) -> None:
    job, feeder = submitted(workers, "killed")
    sink = {"kind": "postgres", "connection": "warehouse", "table": "killed"}
    other = job_of(workers, stream_job("killed-too", "killed", sink=sink))

    def read() -> set[Group]:
        with psycopg.connect(warehouse) as connection:
            return groups_of(connection.execute("SELECT k, n, s, d FROM killed").fetchall())

    def kill_worker(worker: subprocess.Popen[bytes]) -> None:
        jvm = jvm_of(worker)
        worker.kill()
        worker.wait(10)
        # It ends with its worker.
        jvm.wait(30)

    def kill_jvm(worker: subprocess.Popen[bytes]) -> None:
        jvm_of(worker).kill()

    with feeder.feeding():
        for kill in (kill_worker, kill_jvm):
            job.wait_for_batch()
            other.wait_for_batch()
            fence, worker = job.wait_for("the running attempt", partial(at_it, workers, job))
            kill(worker)
            # The second time, both jobs run on the remaining worker.
            job.wait_for_attempt(after=fence)
            job.wait_for_batch()
        other.wait_for_batch()
    job.wait_for("the result", lambda: groups(workers, job) == feeder.posted.groups())
    other.wait_for("the result", lambda: read() == feeder.posted.groups())
    for one in (job, other):
        one.stop()
        ends = [attempt.status for attempt in one.attempts]
        assert ends == [AttemptStatus.CRASHED] * (len(ends) - 1) + [AttemptStatus.STOPPED]
    assert len(job.attempts) >= 3
    assert groups(workers, job) == read() == feeder.posted.groups()


@pytest.mark.withstands(
    "a stream's message arrives many times",
    how="repeated messages about one stream to two workers",
    times=1,
    guaranteed="one worker runs it; the other does nothing",
)
def test_one_of_two_competing_workers_runs_a_stream(workers: Fleet, two: tuple[subprocess.Popen[bytes], ...]) -> None:
    job, feeder = submitted(workers, "raced")
    for _ in range(ANNOUNCEMENTS):
        workers.announce(job.id, Queue.STREAM)
    feeder.feed(3)
    job.wait_for_batch()
    for _ in range(ANNOUNCEMENTS):
        workers.announce(job.id, Queue.STREAM)
    feeder.feed(3)
    wait_until_exact(workers, job, feeder)
    wait_for("the messages to be read", lambda: not list(workers.settings.broker_dir.rglob("*.stream.msg")), 60)
    job.stop()
    # A message that arrives now does not start it again.
    workers.announce(job.id, Queue.STREAM)
    other, other_feeder = submitted(workers, "behind")
    other_feeder.feed(1)
    other.wait_for_batch()
    other.stop()
    assert [attempt.status for attempt in job.attempts] == [AttemptStatus.STOPPED]
    assert times(workers, job, "attempt_started") == 1
    assert job.committed() == job.committed(fence=1)
    assert groups(workers, job) == feeder.posted.groups()
    assert set(two) == set(workers.running())


def test_incremental_job_processes_new_rows_in_each_run(workers: Fleet) -> None:
    workers.running_worker()
    feeder = feeder_of(workers, "now-and-then")
    # Before the job is submitted: otherwise, a run could start with fewer rows.
    feeder.feed(4)
    job = job_of(workers, stream_job("now-and-then", "now-and-then", "incremental"))
    for run in range(1, 4):
        if run > 1:
            feeder.feed(4)
            job.resume()
        job.wait_for_rest(run)
        assert job.stream.stopped_because == StreamStopReason.CAUGHT_UP
        assert groups(workers, job) == feeder.posted.groups()
        assert job.committed(fence=run)
    assert [attempt.status for attempt in job.attempts] == [AttemptStatus.STOPPED] * 3
    assert job.stream.rows_in == len(feeder.posted.rows)


def test_scheduled_job_runs_until_it_is_stopped(workers: Fleet) -> None:
    workers.running_worker()
    job, feeder = submitted(workers, "every-second", "incremental", schedule={"every": "1s"})
    for _ in range(3):
        feeder.feed(2)
        wait_until_exact(workers, job, feeder)
        # The second run from here on has no new rows.
        job.wait_for_attempt(after=job.row.fence + 1)
    job.stop()
    assert job.row.next_run_at is None
    assert groups(workers, job) == feeder.posted.groups()
    assert {attempt.status for attempt in job.attempts} == {AttemptStatus.STOPPED}


@pytest.mark.parametrize("mode", ["continuous", pytest.param("incremental", marks=pytest.mark.full)])
def test_bad_file_stops_a_stream_until_it_is_repaired(workers: Fleet, mode: str) -> None:
    workers.running_worker()
    directory = workers.data / f"bad-{mode}"
    directory.mkdir()
    add(directory, "1.csv", "a,1\nb,2\n")
    table = {"format": "csv", "path": f"{directory.name}/", "schema": "k STRING, v BIGINT"}
    settings = {"mini_batch": {"allow_latency": "200ms"}, "state": {"partitions": 2}}
    spec = {
        "name": "bad",
        "mode": mode,
        "tables": {"t": table},
        "sql": "SELECT k, SUM(v) AS s FROM t GROUP BY k",
        "settings": settings,
    }
    job = job_of(workers, spec)
    job.wait_for_batch()
    add(directory, "2.csv", "a,10\nb,many\n")
    if mode == "incremental":
        job.wait(JobStatus.STOPPED)
        job.resume()
    job.wait_for("the stop of the job", lambda: job.row.status == JobStatus.STOPPED and job.row.error is not None)
    assert job.stream.stopped_because == StreamStopReason.FAILED
    error = job.row.error
    assert error is not None
    assert "2.csv" in error["detail"], error
    assert sorted(rows_of(workers, job)) == [["a", 1], ["b", 2]]
    # Without a change, it fails again.
    job.resume()
    job.wait_for("the stop of the job", lambda: job.row.status == JobStatus.STOPPED and job.row.error is not None)
    add(directory, "2.csv", "a,10\nb,20\n")
    add(directory, "3.csv", "c,3\n")
    job.resume()
    job.wait_for("the result", lambda: sorted(rows_of(workers, job)) == [["a", 11], ["b", 22], ["c", 3]])
    if mode == "continuous":
        job.stop()
    else:
        job.wait(JobStatus.STOPPED)
    assert job.row.error is None


def add(directory: Path, name: str, text: str) -> None:
    """Adds a file atomically."""
    hidden = directory / f".{name}"
    hidden.write_text(text)
    hidden.rename(directory / name)
