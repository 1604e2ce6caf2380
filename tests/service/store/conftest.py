"""Jobs in a database with a clock that tests set."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from service.contract.enums import Mode, Queue
from service.store.session import Database
from tests.support import lifecycle
from tests.support.clocks import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    """Begins at 1,000,000 ms."""
    return ManualClock()


@pytest.fixture
def add_job(database: Database) -> Callable[..., str]:
    """Adds a QUEUED job of the default tenant and returns its id: `add_job("a", max_attempts=2)`."""

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
        more = {"limits": {"failure_retries": failure_retries}} if failure_retries else {}
        return lifecycle.insert(
            database,
            job_id,
            name="a job",
            kind=kind,
            tenant=tenant,
            spec={"sql": "SELECT 1"} | more,
            max_attempts=max_attempts,
            timeout_ms=timeout_ms,
            queue=queue,
            mode=mode,
        )

    return add


@pytest.fixture
def job_id(add_job: Callable[..., str]) -> str:
    """A QUEUED job that may lose two attempts, with a time limit of a minute."""
    return add_job("job-1")


@pytest.fixture
def stream_id(add_job: Callable[..., str]) -> str:
    """A QUEUED continuous job that may lose two attempts."""
    return add_job("stream-1", mode=Mode.CONTINUOUS, timeout_ms=0)
