"""The parts of a worker without its threads, with the test suite's Spark session."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx

from service.config.settings import Settings
from service.contract.enums import Mode, Queue
from service.contract.job import JobSpec
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle
from tests.support.processes import wait_for
from workers.jobs.attempt import Attempt, RunningAttempts, StopReason
from workers.jobs.cancellation import cancel_stopped
from workers.process.job_runner import JobRunner

if TYPE_CHECKING:
    from workers.driver.driver import Driver


class SharedDriver:
    """Provides the driver of the test suite's session."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def driver(self) -> Driver:
        """Returns the same driver each time."""
        return self._driver


class Bench:
    """A worker without its threads; tests call the steps of the threads."""

    def __init__(self, settings: Settings, database: Database, driver: Driver) -> None:
        self.settings = settings
        self.database = database
        self.driver = driver
        self.running_attempts = RunningAttempts()
        self.announced: list[str] = []
        self.runner = JobRunner(
            settings, database, SharedDriver(driver), self.running_attempts, lifecycle.WORKER, self.announce
        )
        self._submitted = 0

    def announce(self, job_id: str, _queue: str) -> None:
        """Records a message that a broker would receive."""
        self.announced.append(job_id)

    def submit(self, spec: Mapping[str, Any], *, kind: str = "run", timeout_ms: int = 600_000) -> str:
        """Stores a QUEUED job without checks and returns its id."""
        self._submitted += 1
        checked = JobSpec.model_validate(spec)
        is_continuous = checked.mode is Mode.CONTINUOUS
        return lifecycle.insert(
            self.database,
            f"job-{self._submitted}",
            name=checked.name,
            kind=kind,
            spec=checked.model_dump(mode="json", by_alias=True),
            max_attempts=2,
            timeout_ms=0 if is_continuous else timeout_ms,
            queue=Queue.STREAM if is_continuous else Queue.SHORT,
            mode=checked.mode,
        )

    def job(self, job_id: str) -> JobRow:
        """Returns the row of a job."""
        return lifecycle.row_of(self.database, job_id)

    @contextmanager
    def running(self, job_id: str) -> Iterator[Attempt]:
        """Runs an endless job in a thread. Its Spark tasks run during the block; afterwards, it is cancelled."""
        thread = threading.Thread(target=self.runner.run, args=(job_id,), name=f"run {job_id}")
        thread.start()
        try:
            yield wait_for("tasks of the job", lambda: self._at_its_tasks(job_id), 60)
        finally:
            for attempt in self.running_attempts.all():
                attempt.stop(StopReason.CANCELLED)
            # Repeatedly, like the worker's loop: a cancellation between two Spark jobs affects neither.
            wait_for("the end of the job", lambda: self._has_ended(thread), 60)

    def _has_ended(self, thread: threading.Thread) -> bool:
        cancel_stopped(self.running_attempts.all())
        thread.join(0.05)
        return not thread.is_alive()

    def _at_its_tasks(self, job_id: str) -> Attempt | None:
        for attempt in self.running_attempts.all():
            if attempt.claim.job_id == job_id and self.job(job_id).status == "RUNNING":
                with suppress(httpx.TimeoutException):  # The first response of the web server is slow.
                    return attempt if self.driver.monitor.progress(attempt.tag).tasks_total else None
        return None
