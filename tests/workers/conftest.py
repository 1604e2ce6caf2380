"""A worker's parts around the suite's Spark session, with a database and data of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from sqlalchemy import select

from service.settings import Settings
from service.spec.job import JobSpec
from service.spec.modes import Mode
from service.spec.queues import Queue
from service.store.jobs import NewJob, insert_job
from service.store.session import Database
from service.store.tables import Base, JobRow
from tests.support.processes import wait_for
from tests.support.tables import write_endless, write_orders
from workers.attempt import Attempt, AttemptsAtHand, StopReason
from workers.cancellation import cancel_stopped
from workers.runner import JobRunner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from workers.engine.spark.driver import Driver

WORKER = "w1"


class SharedDriver:
    """Hands out the driver of the suite's session."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def driver(self) -> Driver:
        """Always the same."""
        return self._driver


class Bench:
    """A worker without its threads: tests call their steps."""

    def __init__(self, settings: Settings, database: Database, driver: Driver) -> None:
        self.settings = settings
        self.database = database
        self.driver = driver
        self.at_hand = AttemptsAtHand()
        self.rung: list[str] = []
        self.runner = JobRunner(settings, database, SharedDriver(driver), self.at_hand, WORKER, self.ring)
        self._submitted = 0

    def ring(self, job_id: str, _queue: str) -> None:
        """What a broker would take."""
        self.rung.append(job_id)

    def submit(self, spec: Mapping[str, Any], *, kind: str = "run", timeout_ms: int = 600_000) -> str:
        """A QUEUED job; nothing of it is checked."""
        self._submitted += 1
        job_id = f"job-{self._submitted}"
        checked = JobSpec.model_validate(spec)
        job = NewJob(
            id=job_id,
            tenant="default",
            kind=kind,
            name=checked.name,
            spec=checked.model_dump(mode="json", by_alias=True),
            request_id=None,
            max_attempts=2,
            timeout_ms=0 if checked.mode is Mode.CONTINUOUS else timeout_ms,
            queue=Queue.STREAM if checked.mode is Mode.CONTINUOUS else Queue.SHORT,
            mode=checked.mode,
        )
        with self.database.write() as session:
            insert_job(session, job, self.database.now(session))
        return job_id

    def job(self, job_id: str) -> JobRow:
        """The job as it stands."""
        with self.database.read() as session:
            return session.scalars(select(JobRow).where(JobRow.id == job_id)).one()

    @contextmanager
    def running(self, job_id: str) -> Iterator[Attempt]:
        """Runs an endless job in a thread of its own; inside, it is at its Spark tasks. The test tells it to stop."""
        thread = threading.Thread(target=self.runner.run, args=(job_id,), name=f"run {job_id}")
        thread.start()
        try:
            yield wait_for("tasks of the job", lambda: self._at_its_tasks(job_id), 60)
        finally:
            for attempt in self.at_hand.all():
                attempt.stop(StopReason.CANCELLED)
            # Over and over, as the worker's own loop: a cancellation between two of Spark's jobs reaches neither.
            wait_for("the end of the job", lambda: self._has_ended(thread), 60)

    def _has_ended(self, thread: threading.Thread) -> bool:
        cancel_stopped(self.at_hand.all())
        thread.join(0.05)
        return not thread.is_alive()

    def _at_its_tasks(self, job_id: str) -> Attempt | None:
        for attempt in self.at_hand.all():
            if attempt.claim.job_id == job_id and self.job(job_id).status == "RUNNING":
                with suppress(httpx.TimeoutException):  # of the web server's slow first answer
                    return attempt if self.driver.monitor.progress(attempt.tag).tasks_total else None
        return None


@pytest.fixture(scope="session")
def driver(spark: SparkSession) -> Driver:
    """The suite's Spark session as the workers see it."""
    from pyspark import SparkContext

    from workers.engine.spark.driver import Driver
    from workers.engine.spark.stage_metrics import SparkMonitor

    context = spark.sparkContext
    gateway = SparkContext._gateway
    assert gateway is not None
    process = gateway.proc
    assert isinstance(process, Popen)
    return Driver(spark, context, process, slots=2, shuffle_partitions=4, monitor=SparkMonitor(context))


@pytest.fixture
def bench(tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Tables `orders/`, `users/` and `one_key/`, and a worker that no thread of its own drives."""
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path / "state"))
    settings = Settings()
    data = settings.state_dir / "data"
    data.mkdir(parents=True)
    write_orders(data)
    write_endless(data)
    database = Database(settings.database_url)
    Base.metadata.create_all(database.engine)
    yield Bench(settings, database, driver)
    database.close()
