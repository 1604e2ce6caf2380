"""A database with a clock that tests set, and jobs in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from service.store.jobs import NewJob, insert_job
from service.store.session import Database
from service.store.tables import Base


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
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    """SQLite in a file, since several connections must see the same one."""
    database = Database(f"sqlite:///{tmp_path / 'evenkeel.db'}", clock)
    Base.metadata.create_all(database.engine)
    yield database
    database.close()


@pytest.fixture
def add_job(database: Database) -> Callable[..., str]:
    """Adds a QUEUED job of the default tenant and gives its id: `add_job("a", max_attempts=2)`."""

    def add(job_id: str, *, max_attempts: int = 2, kind: str = "run") -> str:
        job = NewJob(
            id=job_id,
            tenant="default",
            kind=kind,
            name="a job",
            spec={"sql": "SELECT 1"},
            request_id=None,
            max_attempts=max_attempts,
            timeout_ms=60_000,
        )
        with database.write() as session:
            insert_job(session, job, database.now(session))
        return job_id

    return add


@pytest.fixture
def job_id(add_job: Callable[..., str]) -> str:
    """A QUEUED job that may lose two attempts and has a minute."""
    return add_job("job-1")
