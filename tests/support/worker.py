"""Worker processes without an API: jobs are submitted with the use case that the API calls."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow.parquet as pq

from service.broker.dispatch import Dispatcher, JobAnnouncer
from service.cli.processes import worker_command
from service.config.settings import Settings
from service.contract.job import JobSpec
from service.jobs.known_jobs import JobKey, KnownJobs
from service.jobs.lifecycle import cancel_job
from service.jobs.submit_job import Submission, submit_job
from service.jobs.views import Job
from service.store import migrate
from service.store.attempts import attempts_of
from service.store.session import Database
from service.store.tables import AttemptRow, JobRow, WorkerRow
from tests.support.processes import start_python, wait_for, wait_until_gone

TENANT = "default"


class Fleet:
    """A database, an embedded broker and their workers. Settings come from the environment."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings()
        self.database = Database(self.settings.database_url)
        migrate.upgrade(self.database)
        self.data = self.settings.state_dir / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._dispatcher = Dispatcher(self.settings)
        self._announcer = JobAnnouncer(self.database, self._dispatcher)
        self._directory = directory
        self._workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts a worker and waits until it consumes messages."""
        arguments = worker_command(self.settings)[1:]
        process = start_python(
            arguments[1:] if arguments[0] == "-P" else arguments,
            environment=environment,
            log=self._log(len(self._workers)),
            cwd=self._directory,
        )
        self._workers.append(process)
        wait_for("the worker", lambda: self._is_listening(process), 60)
        return process

    def running_worker(self) -> subprocess.Popen[bytes]:
        """Returns a running worker, or starts one."""
        return next(iter(self.running()), None) or self.start_worker()

    def running(self) -> list[subprocess.Popen[bytes]]:
        """Returns the workers that have not ended."""
        return [worker for worker in self._workers if worker.poll() is None]

    def submit(self, spec: Mapping[str, Any], tenant: str = TENANT) -> str:
        """Submits a job as the API does and returns its id."""
        submission = Submission(tenant, JobSpec.model_validate(spec), "", None)
        return submit_job(self.database, self._announcer, self.settings, submission).job.id

    def announce(self, job_id: str, queue: str) -> None:
        """Sends another message for a job."""
        assert self._dispatcher.announce([job_id], queue)

    def cancel(self, job_id: str) -> None:
        """Cancels a job as the API does."""
        cancel_job(self.database, self.settings, self.job(job_id).tenant, job_id)

    def job(self, job_id: str) -> JobRow:
        """Returns the row of a job."""
        with self.database.read() as session:
            return session.get_one(JobRow, job_id)

    def shown(self, job_id: str) -> Job:
        """Returns a job as the API shows it."""
        key = JobKey(TENANT, job_id)
        return KnownJobs().read(self.database, self.settings, {key})[key]

    def attempts(self, job_id: str) -> Sequence[AttemptRow]:
        """Returns the attempts of a job, oldest first."""
        with self.database.read() as session:
            return attempts_of(session, job_id)

    def wait(self, job_id: str, status: str, seconds: float = 120) -> JobRow:
        """Waits for a status."""

        def look() -> JobRow | None:
            job = self.job(job_id)
            if job.finished_at is not None and job.status != status:
                raise AssertionError(f"{job.status} instead of {status}: {job.error}\n{self.logs()}")
            return job if job.status == status else None

        try:
            return wait_for(f"{status} of the job", look, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def wait_for_tasks(self, job_id: str, seconds: float = 120) -> JobRow:
        """Waits until Spark runs tasks of the job."""
        self.wait(job_id, "RUNNING", seconds)

        def look() -> JobRow | None:
            job = self.job(job_id)
            return job if job.progress and job.progress["tasks_total"] else None

        return wait_for("tasks of the job", look, seconds)

    def rows(self, job_id: str) -> list[dict[str, Any]]:
        """Returns the rows of the result."""
        path = self.job(job_id).result_path
        assert path is not None
        rows: list[dict[str, Any]] = pq.read_table(self.settings.results_dir / path).to_pylist()
        return rows

    def log(self, worker: subprocess.Popen[bytes]) -> str:
        """Returns the log of a worker."""
        return self._log(self._workers.index(worker)).read_text()

    def log_events(self) -> Iterator[dict[str, Any]]:
        """Yields the events in the workers' logs."""
        for log in sorted(self._directory.glob("*.log")):
            for line in log.read_text().splitlines():
                # Spark and Celery write other lines.
                with suppress(ValueError):
                    entry = json.loads(line)
                    if isinstance(entry, dict) and "event" in entry:
                        yield entry

    def logs(self) -> str:
        """Returns the end of the workers' logs."""
        return "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in sorted(self._directory.glob("*.log")))

    def close(self) -> None:
        """Kills every worker with its JVM."""
        families = [[process.pid, *(child.pid for child in _children(process.pid))] for process in self._workers]
        for process in self._workers:
            process.kill()
            process.wait()
        for family in families:
            wait_until_gone(family)
        self._announcer.close()
        self.database.close()

    def _log(self, number: int) -> Path:
        return self._directory / f"worker-{number}.log"

    def _is_listening(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is not None:
            raise AssertionError(f"the worker ended with {process.returncode}:\n{self.logs()}")
        with self.database.read() as session:
            return any(f"-{process.pid}-" in row.id for row in session.query(WorkerRow))


def jvm_of(process: subprocess.Popen[bytes]) -> psutil.Process:
    """Returns the JVM of a worker's Spark driver. Raises ValueError if there is none."""
    (jvm,) = (child for child in _children(process.pid) if _is_driver(child))
    return jvm


def _is_driver(process: psutil.Process) -> bool:
    """Whether the process is the JVM itself, and not a child that it forks to run `chmod`."""
    try:
        parent = process.parent()
        return process.name() == "java" and parent is not None and parent.name() != "java"
    except psutil.NoSuchProcess:
        return False


def active_tasks(process: subprocess.Popen[bytes]) -> int:
    """Returns the number of running tasks that Spark's driver of a worker reports."""
    for connection in jvm_of(process).net_connections():
        if connection.status == psutil.CONN_LISTEN:
            address = f"http://127.0.0.1:{connection.laddr.port}/api/v1/applications"
            try:
                # The first response takes seconds.
                (application,) = httpx.get(address, timeout=60, trust_env=False).json()
            except (httpx.HTTPError, ValueError):
                continue
            executors = httpx.get(f"{address}/{application['id']}/executors", timeout=60, trust_env=False).json()
            return sum(int(executor["activeTasks"]) for executor in executors)
    raise AssertionError("the driver has no web server")


def pause(workers: Fleet, worker: subprocess.Popen[bytes]) -> bool:
    """Freezes a worker. Returns False if that was within a transaction, which would lock SQLite for all processes."""
    worker.send_signal(signal.SIGSTOP)
    # A thread stops when it leaves the kernel; until then, it may still acquire the lock.
    wait_for("its threads to stop", lambda: stands_still(worker.pid), 10, every=0.001)
    with closing(sqlite3.connect(workers.settings.state_dir / "evenkeel.db", timeout=0.5)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            worker.send_signal(signal.SIGCONT)
            return False
    return True


@contextmanager
def fleet(directory: Path, environment: Mapping[str, str]) -> Iterator[Fleet]:
    """Runs workers below `directory`. The environment also applies to this process."""
    before = dict(os.environ)
    os.environ.update({**environment, "EVENKEEL_STATE_DIR": str(directory / "state")})
    try:
        own = Fleet(directory)
        try:
            yield own
        finally:
            own.close()
    finally:
        os.environ.clear()
        os.environ.update(before)


def stands_still(pid: int) -> bool:
    """Whether every thread of a process is stopped."""
    stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
