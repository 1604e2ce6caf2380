"""Streaming jobs in end-to-end tests: their worker and progress, stop and resume, and kills."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

import psutil
from sqlalchemy import func, select

from service.contract.enums import JobStatus
from service.jobs.views import require_job
from service.store import streaming_jobs
from service.store.attempts import attempts_of
from service.store.session import Database
from service.store.streaming_state import Stream, find_stream
from service.store.tables import AttemptRow, JobRow, StreamBatchRow
from tests.support.feeding import SQL
from tests.support.processes import wait_for
from tests.support.production import Part, Production
from tests.support.worker import jvm_of, stands_still

T = TypeVar("T")

TENANT = "default"

ENVIRONMENT = {
    "EVENKEEL_SPARK_MASTER": "local[2]",
    "EVENKEEL_SPARK_DRIVER_MEMORY": "512m",
    "EVENKEEL_WORKER_CONCURRENCY": "2",
    "EVENKEEL_WORKER_LEASE_SECONDS": "3",
    "EVENKEEL_WORKER_HEARTBEAT_SECONDS": "0.5",
    "EVENKEEL_WORKER_SWEEP_SECONDS": "0.3",
    "EVENKEEL_WORKER_RING_AGAIN_SECONDS": "1",
    "EVENKEEL_WORKER_DRAIN_SECONDS": "0",
}
"""Settings of workers that are killed: another worker takes over within seconds."""

_WAIT_SECONDS = 180.0
_LOOK_AGAIN_SECONDS = 2.0
_INSTANT_SECONDS = 0.001


def stream_job(name: str, stream: str, mode: str = "continuous", **further: Any) -> dict[str, Any]:
    """Returns a job that runs `SQL` over posted rows, with short mini-batches and many attempts."""
    return {
        "name": name,
        "mode": mode,
        "tables": {"t": {"format": "stream", "stream": stream, "event_time": {"column": "at", "delay": "10s"}}},
        "sql": SQL,
        "settings": {"mini_batch": {"allow_latency": "200ms"}, "state": {"partitions": 2}},
        "limits": {"max_attempts": 10},
        **further,
    }


class StreamJob:
    """A streaming job in a database that test and service share. A failed wait reports the job's state."""

    def __init__(self, database: Database, job_id: str, logs: Callable[[], str]) -> None:
        self.id = job_id
        self.database = database
        self._logs = logs

    @property
    def row(self) -> JobRow:
        """Returns the job's row."""
        with self.database.read() as session:
            return session.get_one(JobRow, self.id)

    @property
    def name(self) -> str:
        """The job's name."""
        return str(self.row.name)

    @property
    def stream(self) -> Stream:
        """Returns the stream's progress."""
        found = self.known
        assert found is not None, self.describe()
        return found

    @property
    def known(self) -> Stream | None:
        """Returns the stream's progress; None before the first attempt."""
        with self.database.read() as session:
            return find_stream(session, self.id)

    @property
    def attempts(self) -> Sequence[AttemptRow]:
        """Returns the attempts, oldest first."""
        with self.database.read() as session:
            return attempts_of(session, self.id)

    def committed(self, fence: int | None = None) -> int:
        """Counts the committed mini-batches of an attempt or of all."""
        return self._batches(fence, StreamBatchRow.committed_at.is_not(None))

    def begun(self, fence: int) -> int:
        """Counts the mini-batches that an attempt has started."""
        return self._batches(fence)

    def wait(self, *statuses: JobStatus, seconds: float = _WAIT_SECONDS) -> JobRow:
        """Waits for one of these statuses."""

        def look() -> JobRow | None:
            row = self.row
            assert row.finished_at is None or row.status in statuses, self.describe()
            return row if row.status in statuses else None

        return self.wait_for(" or ".join(statuses), look, seconds)

    def wait_for(self, what: str, probe: Callable[[], T | None], seconds: float = _WAIT_SECONDS) -> T:
        """Waits until `probe` returns a true value."""
        try:
            return wait_for(what, probe, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.describe()}\n{self._logs()}") from None

    def wait_for_batch(self, seconds: float = _WAIT_SECONDS) -> None:
        """Waits until the current attempt has committed a mini-batch."""
        self.wait_for("a mini-batch", lambda: self.committed(self.row.fence), seconds)

    def wait_for_attempt(self, after: int, seconds: float = _WAIT_SECONDS) -> None:
        """Waits until an attempt later than `after` runs the job."""
        self.wait_for("another attempt", lambda: self.row.fence > after, seconds)

    def wait_for_rest(self, fence: int, seconds: float = _WAIT_SECONDS) -> JobRow:
        """Waits until the job is stopped and its attempt `fence` has ended."""

        def look() -> JobRow | None:
            row = self.row
            return row if row.status == JobStatus.STOPPED and row.fence >= fence else None

        return self.wait_for(f"stop after attempt {fence}", look, seconds)

    def stop(self) -> None:
        """Requests a stop and waits until the job is stopped."""
        with self.database.write() as session:
            row = require_job(session, TENANT, self.id, for_change=True)
            streaming_jobs.request_stop(session, row, self.database.now(session))
        row = self.wait(JobStatus.STOPPED)
        assert row.error is None, self.describe()

    def resume(self, *, from_scratch: bool = False) -> None:
        """Resumes the job; the workers' sweeper finds it."""
        with self.database.write() as session:
            row = require_job(session, TENANT, self.id, for_change=True)
            assert row.status == JobStatus.STOPPED, self.describe()
            streaming_jobs.request_resume(session, row, self.database.now(session), from_scratch=from_scratch)

    def describe(self) -> str:
        """Describes the job's state, for the message of a failed test."""
        row = self.row
        attempts = [(one.fence, one.status, one.worker, (one.error or {}).get("code")) for one in self.attempts]
        with self.database.read() as session:
            stream = find_stream(session, self.id)
        return f"{row.status} {row.error} attempts={attempts} {stream}"

    def _batches(self, fence: int | None, *conditions: Any) -> int:
        of = () if fence is None else (StreamBatchRow.fence == fence,)
        counted = select(func.count()).where(StreamBatchRow.job_id == self.id, *of, *conditions)
        with self.database.read() as session:
            return session.execute(counted).scalar_one()


class Moment(Enum):
    """The event after which an attempt is killed, with a random delay."""

    CLAIMED = "claimed"
    BEGUN = "begun"
    COMMITTED = "committed"


@dataclass(frozen=True)
class Instant:
    """A recurring state of a job that lasts for milliseconds. `number` returns its mini-batch, or None outside of the
    state. `meanwhile` runs during the state.
    """

    job: StreamJob
    what: str
    number: Callable[[], int | None]
    meanwhile: Callable[[], object]


class Strikes:
    """Kills the workers of jobs, one after the other, at random moments by `seed`."""

    def __init__(self, production: Production, jobs: Sequence[StreamJob], seed: int) -> None:
        self._production = production
        self._jobs = jobs
        self._random = random.Random(seed)
        self._turn = 0
        self._struck = dict.fromkeys((job.id for job in jobs), 0)
        self.kills: list[str] = []
        """Descriptions of the kills."""

    def kill_worker(self) -> None:
        """Kills a worker process, whose JVM ends too, and starts a new worker."""
        part = self._wait_for_moment("worker")
        self._production.kill(part)
        self._note(part)
        self._production.start_worker()

    def kill_jvm(self) -> None:
        """Kills only the JVM of a worker."""
        part = self._wait_for_moment("jvm")
        jvm = jvm_of(part.process)
        jvm.kill()
        jvm.wait(30)
        self._note(part)

    def kill_worker_at(self, instant: Instant) -> int:
        """Kills a worker process and its JVM together during an instant, and starts a new worker. Returns the number of
        the attempt.
        """
        part, jvm, fence = self._catch(instant, "worker")
        jvm.kill()
        self._production.kill(part)
        self._note(part)
        self._production.start_worker()
        return fence

    def kill_jvm_at(self, instant: Instant) -> int:
        """Kills only the JVM of a worker during an instant. Returns the number of the attempt."""
        part, jvm, fence = self._catch(instant, "jvm")
        jvm.kill()
        part.process.send_signal(signal.SIGCONT)
        jvm.wait(30)
        self._note(part)
        return fence

    def wait_for_the_last(self) -> None:
        """Waits until each job has progressed after its last kill."""
        for job in self._jobs:
            job.wait_for_attempt(after=self._struck[job.id])
            job.wait_for_batch()

    def _note(self, part: Part) -> None:
        """Records the kill for all jobs of a worker."""
        for job in self._jobs:
            row = job.row
            if row.lease_owner is not None and pid_of(row.lease_owner) == part.process.pid:
                self._struck[job.id] = row.fence

    def _wait_for_moment(self, what: str) -> Part:
        job = self._jobs[self._turn % len(self._jobs)]
        (moment,) = self._random.choices(list(Moment), (1, 2, 3))
        delay = self._random.uniform(0.0, 2.0)

        def look() -> Part | None:
            row = job.row
            if row.fence <= self._struck[job.id] or row.lease_owner is None:
                return None
            if moment is Moment.BEGUN and not job.begun(row.fence):
                return None
            if moment is Moment.COMMITTED and not job.committed(row.fence):
                return None
            return self.part_of(row.lease_owner)

        job.wait_for(f"a moment to kill: {moment.value}", look)
        # The delay is random: the attempt may be at any step by then.
        time.sleep(delay)
        row = job.row
        part = None if row.lease_owner is None else self.part_of(row.lease_owner)
        if part is None:
            # The attempt lost the job meanwhile, on a slow machine: try again.
            return self._wait_for_moment(what)
        self._turn += 1
        self._struck[job.id] = row.fence
        self.kills.append(f"{what} of attempt {row.fence} of {job.name} {delay:.2f} s after it had {moment.value}")
        return part

    def _catch(self, instant: Instant, what: str) -> tuple[Part, psutil.Process, int]:
        """Freezes a worker and its JVM during an instant, in an attempt that has progressed."""
        job = instant.job

        def look() -> tuple[Part, psutil.Process, int] | None:
            row = job.row
            fence = row.fence
            if fence <= self._struck[job.id] or row.lease_owner is None or not job.committed(fence):
                return None
            part = self.part_of(row.lease_owner)
            if part is None:
                return None
            jvm = jvm_of(part.process)
            return (part, jvm, fence) if self._is_caught(instant, part, jvm) else None

        part, jvm, fence = job.wait_for(f"an instant to kill: {instant.what}", look)
        self._struck[job.id] = fence
        self.kills.append(f"{what} of attempt {fence} of {job.name} as {instant.what} {instant.number()}")
        instant.meanwhile()
        return part, jvm, fence

    @staticmethod
    def _is_caught(instant: Instant, part: Part, jvm: psutil.Process) -> bool:
        """Whether both are frozen during the instant. If the instant has passed, both are resumed."""
        end = time.monotonic() + _LOOK_AGAIN_SECONDS
        while instant.number() is None:
            if time.monotonic() > end:
                return False
            time.sleep(_INSTANT_SECONDS)
        part.process.send_signal(signal.SIGSTOP)
        jvm.suspend()
        pids = (part.process.pid, jvm.pid)
        wait_for("both processes to be frozen", lambda: all(map(stands_still, pids)), 10, every=_INSTANT_SECONDS)
        if instant.number() is not None:
            return True
        jvm.resume()
        part.process.send_signal(signal.SIGCONT)
        return False

    def part_of(self, worker: str) -> Part | None:
        """Returns the process of a worker; None if it has ended."""
        pid = pid_of(worker)
        return next((part for part in self._production.workers if part.is_running and part.process.pid == pid), None)


def pid_of(worker: str) -> int:
    """Returns the process id in a worker's id."""
    return int(worker.split("-")[-2])
