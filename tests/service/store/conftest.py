"""A database with a clock that tests set, and jobs in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy.orm import Session

from service.spec.modes import Mode
from service.spec.queues import Queue
from service.store.jobs import NewJob, insert_job
from service.store.session import Database


class ManualClock:
    """Milliseconds that pass only when told to."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self, _session: Session) -> int:
        return self.ms


@pytest.fixture
def clock() -> ManualClock:
    """Begins at 1,000,000 ms."""
    return ManualClock()


@pytest.fixture
def database(database_url: str, clock: ManualClock) -> Iterator[Database]:
    """Of either kind, with the test's clock."""
    with closing(Database(database_url, clock)) as database:
        yield database


@pytest.fixture
def add_job(database: Database) -> Callable[..., str]:
    """Adds a QUEUED job of the default tenant and gives its id: `add_job("a", max_attempts=2)`."""

    def add(
        job_id: str,
        *,
        max_attempts: int = 2,
        kind: str = "run",
        queue: Queue = Queue.SHORT,
        mode: Mode = Mode.BATCH,
        timeout_ms: int = 60_000,
        tenant: str = "default",
        failure_retries: int = 0,
    ) -> str:
        job = NewJob(
            id=job_id,
            tenant=tenant,
            kind=kind,
            name="a job",
            spec={"sql": "SELECT 1"} | ({"limits": {"failure_retries": failure_retries}} if failure_retries else {}),
            request_id=None,
            max_attempts=max_attempts,
            timeout_ms=timeout_ms,
            queue=queue,
            mode=mode,
        )
        with database.write() as session:
            insert_job(session, job, database.now(session))
        return job_id

    return add


@pytest.fixture
def job_id(add_job: Callable[..., str]) -> str:
    """A QUEUED job that may lose two attempts and has a minute."""
    return add_job("job-1")


@pytest.fixture
def stream_id(add_job: Callable[..., str]) -> str:
    """A QUEUED continuous job that may lose two attempts."""
    return add_job("stream-1", mode=Mode.CONTINUOUS, timeout_ms=0)
