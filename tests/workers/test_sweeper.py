"""The sweeper: one of many workers keeps jobs moving, rings after the commit and removes useless files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from service.settings import WorkerSettings
from service.store import leases
from service.store.jobs import NewJob, insert_job
from service.store.session import Database
from service.store.tables import Base, JobRow
from workers.sweeper import Sweeper

SETTINGS = WorkerSettings(lease_seconds=30, sweep_seconds=5, ring_again_seconds=10)


class ManualClock:
    """Milliseconds that pass only when told to."""

    ms = 1_000_000

    def __call__(self, _session: Session) -> int:
        return self.ms


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def database(tmp_path: Path, clock: ManualClock) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'evenkeel.db'}", clock)
    Base.metadata.create_all(database.engine)
    yield database
    database.close()


def add(database: Database, *, kind: str = "run", max_attempts: int = 1) -> None:
    job = NewJob("job-1", "default", kind, "a job", {}, None, max_attempts, 60_000)
    with database.write() as session:
        insert_job(session, job, database.now(session))


def take(database: Database) -> None:
    with database.write() as session:
        assert leases.claim(session, "job-1", "w9", database.now(session), 30_000) is not None


def status(database: Database) -> str | None:
    with database.read() as session:
        row = session.get(JobRow, "job-1")
        return None if row is None else row.status


def test_a_lost_job_is_announced_after_the_commit(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database, max_attempts=2)
    take(database)
    clock.ms += 30_000
    seen: list[tuple[str, str | None]] = []
    Sweeper(database, "w1", SETTINGS, tmp_path, lambda job_id: seen.append((job_id, status(database)))).step()
    assert seen == [("job-1", "QUEUED")]


def test_a_job_without_attempts_left_leaves_no_files(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    take(database)
    (tmp_path / "job-1" / "attempt-1").mkdir(parents=True)
    (tmp_path / "job-2" / "attempt-1").mkdir(parents=True)
    clock.ms += 30_000
    rung: list[str] = []
    Sweeper(database, "w1", SETTINGS, tmp_path, rung.append).step()
    assert (status(database), rung) == ("CRASHED", [])
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["job-2"]


def test_one_sweeps_for_all_and_is_replaced(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database)
    rung: list[str] = []
    first = Sweeper(database, "w1", SETTINGS, tmp_path, lambda _job: rung.append("w1"))
    second = Sweeper(database, "w2", SETTINGS, tmp_path, lambda _job: rung.append("w2"))
    first.step()
    clock.ms += 10_000
    second.step()
    assert rung == [], "the first one leads, though it found nothing yet"
    first.step()
    assert rung == ["w1"]
    first.resign()
    clock.ms += 10_000
    second.step()
    assert rung == ["w1", "w2"]
    clock.ms += 12_500
    first.step()
    clock.ms += 20_000
    first.step()
    assert rung == ["w1", "w2", "w1"]


def test_forgotten_explanations_are_removed(database: Database, clock: ManualClock, tmp_path: Path) -> None:
    add(database, kind="explain")
    sweeper = Sweeper(database, "w1", SETTINGS, tmp_path, lambda _job: None)
    sweeper.step()
    assert status(database) == "QUEUED"
    clock.ms += 11 * 60_000
    sweeper.step()
    assert status(database) is None
