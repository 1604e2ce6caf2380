"""The hourly retention: one worker runs it, an hour after the first worker was started."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select, update

from service.config.settings import RetentionSettings
from service.store.jobs import KEY_KEPT_MS, SubmissionKey, save_idempotency_keys
from service.store.session import Database
from service.store.tables import IdempotencyKeyRow, JobRow
from tests.support import lifecycle
from tests.support.clocks import ManualClock
from workers.driver.driver import new_probe
from workers.process.maintenance import RETENTION_PERIOD_MS, RetentionStep

DAY_MS = 24 * 3600 * 1000


@pytest.fixture
def clock() -> ManualClock:
    """Begins 1,000 days after the epoch."""
    return ManualClock(1_000 * DAY_MS)


@pytest.fixture
def database_with_jobs(sqlite_database: Database, clock: ManualClock) -> Database:
    """With job-0, which is QUEUED, and job-1, which failed ten days ago."""
    for number in range(2):
        lifecycle.insert(sqlite_database, f"job-{number}")
    with sqlite_database.write() as session:
        ended = clock.ms - 10 * DAY_MS
        session.execute(update(JobRow).where(JobRow.id == "job-1").values(status="FAILED", finished_at=ended))
    return sqlite_database


def jobs(database: Database) -> list[str]:
    with database.read() as session:
        return list(session.scalars(select(JobRow.id).order_by(JobRow.id)))


def step(database: Database, results: Path, days: int, *, goes_on: bool = True) -> RetentionStep:
    return RetentionStep(
        database, "w1", RetentionSettings(jobs_days=days), results, results / "streams", lambda: goes_on
    )


def test_the_first_hour_is_for_second_thoughts(
    database_with_jobs: Database, clock: ManualClock, tmp_path: Path
) -> None:
    own = step(database_with_jobs, tmp_path, days=9)
    own.step()
    clock.ms += RETENTION_PERIOD_MS - 1
    own.step()
    assert jobs(database_with_jobs) == ["job-0", "job-1"]
    clock.ms += 1
    own.step()
    assert jobs(database_with_jobs) == ["job-0"]


@pytest.mark.parametrize("days", [0, 11])
def test_what_is_to_be_kept_stays(database_with_jobs: Database, clock: ManualClock, tmp_path: Path, days: int) -> None:
    own = step(database_with_jobs, tmp_path, days=days)
    own.step()
    clock.ms += RETENTION_PERIOD_MS
    own.step()
    assert jobs(database_with_jobs) == ["job-0", "job-1"]


def test_expired_idempotency_keys_go_though_everything_else_is_kept(
    database_with_jobs: Database, clock: ManualClock, tmp_path: Path
) -> None:
    with database_with_jobs.write() as session:
        for key, at in (("old", clock.ms - KEY_KEPT_MS), ("new", clock.ms)):
            save_idempotency_keys(session, [SubmissionKey("default", key, "", "job-0")], now=at)
    own = step(database_with_jobs, tmp_path, days=0)
    own.step()
    clock.ms += RETENTION_PERIOD_MS
    own.step()
    with database_with_jobs.read() as session:
        assert session.scalars(select(IdempotencyKeyRow.key)).all() == ["new"]


def test_one_worker_does_it_for_all(database_with_jobs: Database, clock: ManualClock, tmp_path: Path) -> None:
    keeps, removes = step(database_with_jobs, tmp_path, days=11), step(database_with_jobs, tmp_path, days=9)
    keeps.step()
    clock.ms += RETENTION_PERIOD_MS
    keeps.step()
    removes.step()
    assert jobs(database_with_jobs) == ["job-0", "job-1"], "this hour's turn was the other's"
    clock.ms += RETENTION_PERIOD_MS
    removes.step()
    assert jobs(database_with_jobs) == ["job-0"]


def test_what_a_killed_worker_left_of_its_probe_is_removed(
    database_with_jobs: Database, clock: ManualClock, tmp_path: Path
) -> None:
    left = new_probe(tmp_path)
    left.mkdir()
    (left / "part-0.parquet").write_bytes(b"rows")
    changed = left.stat().st_mtime
    times = iter((changed + 3600, changed + 3601))
    own = RetentionStep(
        database_with_jobs,
        "w1",
        RetentionSettings(jobs_days=0),
        tmp_path,
        tmp_path / "streams",
        lambda: True,
        times.__next__,
    )
    own.step()
    for _ in range(2):
        assert left.exists()
        clock.ms += RETENTION_PERIOD_MS
        own.step()
    assert not left.exists()
