"""Purging: old jobs with their files, old results alone, what is left over; everything else stays as it is."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import insert, select, update
from structlog.testing import capture_logs

from service.config.settings import RetentionSettings, Settings
from service.contract.enums import JobStatus
from service.contract.errors import JobNotFoundError, ResultMissingError
from service.jobs.read_result import ResultDirectories, find_result
from service.results import directories
from service.results import purge as purge_jobs
from service.results.directories import OWNER
from service.results.purge import Limits, Purged, purge, purge_with_pauses, would_purge
from service.store.jobs import SubmissionKey, save_idempotency_keys
from service.store.session import Database
from service.store.tables import JobRow
from tests.support import lifecycle

ROWS = pa.table({"uid": pa.array([1, 2, 3], pa.int64())})
DAY_MS = 24 * 3600 * 1000


def finished(database: Database, settings: Settings, days_ago: int) -> str:
    """A job with a result that ended so many days ago."""
    job_id = lifecycle.insert(database)
    lifecycle.run_whole(database, job_id, settings.results_dir, ROWS)
    with database.write() as session:
        ended = JobRow.finished_at - days_ago * DAY_MS
        session.execute(update(JobRow).where(JobRow.id == job_id).values(finished_at=ended))
    return job_id


def age(path: Path, days: int) -> None:
    seconds = path.stat().st_mtime - days * 24 * 3600
    os.utime(path, (seconds, seconds))


def left(settings: Settings) -> set[str]:
    return {path.name for path in settings.results_dir.iterdir() if path.name != OWNER}


def result_of(database: Database, settings: Settings, job_id: str) -> int:
    return find_result(
        database, ResultDirectories(settings.results_dir, settings.streams_dir), lifecycle.TENANT, job_id
    ).files.rows


def test_days_of_the_settings() -> None:
    assert Limits.of(RetentionSettings(jobs_days=90, results_days=0)) == Limits(90 * DAY_MS, None)
    assert Limits.of(RetentionSettings(jobs_days=0, results_days=1)) == Limits(None, DAY_MS)


def test_old_results_go_and_then_the_jobs(database: Database, settings: Settings) -> None:
    young, older, old = (finished(database, settings, days) for days in (1, 40, 100))
    size = sum(path.stat().st_size for path in settings.results_dir.glob("*/*/*"))
    limits = Limits(90 * DAY_MS, 30 * DAY_MS)
    expected = Purged(jobs=1, results=2, bytes=size * 2 // 3)
    assert would_purge(database, settings.results_dir, settings.streams_dir, limits) == expected
    assert left(settings) == {young, older, old}
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits) == expected
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits).is_nothing
    assert left(settings) == {young}
    assert result_of(database, settings, young) == 3
    with pytest.raises(ResultMissingError, match="has been removed because"):
        result_of(database, settings, older)
    with pytest.raises(JobNotFoundError):
        result_of(database, settings, old)


def test_for_ever(database: Database, settings: Settings) -> None:
    job_id = finished(database, settings, 3000)
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, Limits(None, None)).is_nothing
    assert result_of(database, settings, job_id) == 3


def test_jobs_at_work_keep_their_files(database: Database, settings: Settings) -> None:
    held = lifecycle.claim(database, lifecycle.insert(database))
    lifecycle.run(database, held)
    directory = settings.results_dir / held.job_id
    (directory / "attempt-1").mkdir(parents=True)
    age(directory, days=30)
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, Limits(0, 0)).is_nothing
    assert (directory / "attempt-1").is_dir()


def test_jobs_in_a_state_of_a_newer_version_keep_their_files(database: Database, settings: Settings) -> None:
    job_id = finished(database, settings, 100)
    (settings.results_dir / job_id / "attempt-7").mkdir()
    age(settings.results_dir / job_id, days=30)
    with database.write() as session:
        session.execute(update(JobRow).values(status="PAUSED", finished_at=None))
    paths = (settings.results_dir, settings.streams_dir)
    assert would_purge(database, *paths, Limits(0, 0)).is_nothing
    assert purge_with_pauses(database, *paths, Limits(0, 0)).is_nothing
    assert len(list((settings.results_dir / job_id).iterdir())) == 2


def test_what_a_killed_purge_left_is_found_a_day_later(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, forgotten, kept = (finished(database, settings, days) for days in (100, 40, 1))
    limits = Limits(90 * DAY_MS, 30 * DAY_MS)
    with monkeypatch.context() as patched:
        # As if it were killed between the commit and the files.
        patched.setattr(directories, "remove_job_directory", lambda results, job_id: False)
        purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits)
    assert left(settings) == {removed, forgotten, kept}
    with pytest.raises(ResultMissingError):
        result_of(database, settings, forgotten)
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits).is_nothing, (
        "they might be being written"
    )
    for job_id in (removed, forgotten, kept):
        age(settings.results_dir / job_id, days=2)
    assert would_purge(database, settings.results_dir, settings.streams_dir, limits).leftovers == 2
    purged = purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits)
    assert (purged.jobs, purged.leftovers) == (0, 2)
    assert purged.bytes > 0
    assert left(settings) == {kept}
    assert result_of(database, settings, kept) == 3


def kept_state(settings: Settings, job_id: str) -> Path:
    """What a streaming job keeps, as its worker writes it."""
    directory = settings.streams_dir / job_id
    (directory / "g1" / "checkpoint").mkdir(parents=True)
    (directory / "g1" / "checkpoint" / "metadata").write_text("state")
    return directory


def test_the_state_of_a_stream_goes_with_its_job(database: Database, settings: Settings) -> None:
    old, resting = (finished(database, settings, 100) for _ in range(2))
    gone, kept = kept_state(settings, old), kept_state(settings, resting)
    posted = settings.streams_dir / "input" / "default"
    posted.mkdir(parents=True)
    with database.write() as session:
        # However long ago it came to rest.
        session.execute(update(JobRow).where(JobRow.id == resting).values(status="STOPPED", finished_at=None))
    for path in (kept, posted, posted.parent):
        age(path, days=200)
    purged = purge_with_pauses(database, settings.results_dir, settings.streams_dir, Limits(90 * DAY_MS, 30 * DAY_MS))
    assert (purged.jobs, purged.leftovers, gone.exists()) == (1, 0, False)
    assert (kept / "g1" / "checkpoint" / "metadata").read_text() == "state"
    assert posted.is_dir()


def test_state_that_a_killed_purge_left_is_found_a_day_later(database: Database, settings: Settings) -> None:
    directory = kept_state(settings, "11111111-2222-4333-8444-555555555555")
    limits = Limits(None, None)
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits).is_nothing
    age(directory, days=2)
    assert would_purge(database, settings.results_dir, settings.streams_dir, limits) == Purged(leftovers=1, bytes=5)
    (settings.streams_dir / OWNER).write_text("another installation")
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits).is_nothing
    assert would_purge(database, settings.results_dir, settings.streams_dir, limits) == Purged()
    (settings.streams_dir / OWNER).unlink()
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits) == Purged(
        leftovers=1, bytes=5
    )
    assert not directory.exists()


def test_files_of_other_attempts_go_after_a_day(database: Database, settings: Settings) -> None:
    job_id = finished(database, settings, 1)
    (settings.results_dir / job_id / "attempt-7").mkdir()
    age(settings.results_dir / job_id, days=2)
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, Limits(None, None)) == Purged(
        leftovers=1
    )
    assert result_of(database, settings, job_id) == 3


def test_files_that_somebody_removed_before_are_no_trouble(database: Database, settings: Settings) -> None:
    job_id = finished(database, settings, 40)
    shutil.rmtree(settings.results_dir / job_id)
    assert (
        purge_with_pauses(database, settings.results_dir, settings.streams_dir, Limits(None, 30 * DAY_MS)).results == 1
    )


def test_files_of_another_installation_stay(database: Database, settings: Settings) -> None:
    """Such as of the one whose backup was restored here, on the same share."""
    old = finished(database, settings, 100)
    newer = settings.results_dir / "11111111-2222-4333-8444-555555555555"
    (newer / "attempt-1").mkdir(parents=True)
    age(newer, days=2)
    (settings.results_dir / OWNER).write_text("another")
    limits = Limits(90 * DAY_MS, None)
    assert would_purge(database, settings.results_dir, settings.streams_dir, limits) == Purged(jobs=1)
    with capture_logs() as logs:
        assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits) == Purged(jobs=1)
    assert [entry["event"] for entry in logs] == ["results_of_another_installation"]
    assert left(settings) == {old, newer.name}
    (settings.results_dir / OWNER).unlink()
    age(settings.results_dir / old, days=2)
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits).leftovers == 2
    assert left(settings) == set()


@pytest.mark.parametrize("foreign", [(), ("results",), ("streams",), ("results", "streams")], ids="+".join)
def test_what_is_counted_before_is_what_is_removed(
    database: Database, settings: Settings, foreign: tuple[str, ...]
) -> None:
    folders = {"results": settings.results_dir, "streams": settings.streams_dir}
    old, older_result, young = (finished(database, settings, days) for days in (100, 40, 1))
    for job_id in (old, older_result, young):
        (settings.results_dir / job_id / "attempt-7").mkdir()
        (settings.results_dir / job_id / "attempt-7" / "part").write_text("abandoned")
        kept_state(settings, job_id)
    for folder in folders.values():
        (folder / "11111111-2222-4333-8444-555555555555" / "attempt-1").mkdir(parents=True)
        (folder / "11111111-2222-4333-8444-555555555555" / "attempt-1" / "part").write_text("left over")
        for path in folder.iterdir():
            age(path, days=2)
    with database.write() as session:
        for key, job_id in (("a", old), ("b", older_result), ("c", young)):
            save_idempotency_keys(session, [SubmissionKey("default", key, "", job_id)], now=1)
    for name in foreign:
        (folders[name] / OWNER).write_text("another installation")
    paths = (settings.results_dir, settings.streams_dir)
    limits = Limits(90 * DAY_MS, 30 * DAY_MS)
    expected = would_purge(database, *paths, limits)
    assert (expected.jobs, expected.keys) == (1, 3)
    assert expected.results == (0 if "results" in foreign else 2)
    assert expected.leftovers == (0 if "results" in foreign else 2) + (0 if "streams" in foreign else 1)
    assert purge_with_pauses(database, *paths, limits) == expected
    assert would_purge(database, *paths, limits).is_nothing
    assert purge_with_pauses(database, *paths, limits).is_nothing


def test_what_could_not_be_removed_is_not_counted(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, other = finished(database, settings, 100), finished(database, settings, 100)
    remove = directories.remove_job_directory
    monkeypatch.setattr(
        directories, "remove_job_directory", lambda results, job_id: job_id != stuck and remove(results, job_id)
    )
    size = directories.size_of(settings.results_dir / other)
    limits = Limits(90 * DAY_MS, None)
    assert purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits) == Purged(
        jobs=2, results=1, bytes=size
    )


def test_sound_directories_are_passed_in_portions_too(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_jobs, "_JOBS_PER_STEP", 1)
    for _ in range(3):
        age(settings.results_dir / finished(database, settings, 1), days=2)
    assert list(purge(database, settings.results_dir, settings.streams_dir, Limits(None, None))) == [Purged()] * 3
    answers = iter([True, False])
    purge_with_pauses(database, settings.results_dir, settings.streams_dir, Limits(None, None), lambda: next(answers))
    assert next(answers, None) is None, "both were asked for, and no third"


def test_expired_keys_are_counted_before_they_go(database: Database, settings: Settings) -> None:
    job_id = lifecycle.insert(database)
    with database.write() as session:
        for key, at in (("c", database.now(session)), ("a", 1), ("b", 1)):
            save_idempotency_keys(session, [SubmissionKey("default", key, "", job_id)], now=at)
    for purged in (would_purge, purge_with_pauses):
        assert purged(database, settings.results_dir, settings.streams_dir, Limits(None, None)) == Purged(keys=2)


def many(database: Database, count: int) -> None:
    """Jobs that failed long ago."""
    lifecycle.insert(database)
    with database.read() as session:
        found = session.execute(select(JobRow.__table__)).mappings().one()
        like = {column.key: found[column] for column in JobRow.__table__.columns}
    rows = [
        {**like, "id": f"old-{number}", "status": JobStatus.FAILED.value, "finished_at": 1 + number // 7}
        for number in range(count)
    ]
    with database.write() as session:
        session.execute(insert(JobRow), rows)


def test_many_jobs_go_in_batches_and_others_write_in_between(database: Database, settings: Settings) -> None:
    many(database, 450)
    sizes = []
    for step in purge(database, settings.results_dir, settings.streams_dir, Limits(DAY_MS, None)):
        sizes.append(step.jobs)
        lifecycle.beat(database)
    assert sizes == [200, 200, 50]
    with database.read() as session:
        assert session.scalars(select(JobRow.status)).all() == ["QUEUED"]


def test_whoever_stops_asking_stops_it(database: Database, settings: Settings) -> None:
    many(database, 450)
    answers = iter([True, False])
    assert (
        purge_with_pauses(
            database, settings.results_dir, settings.streams_dir, Limits(DAY_MS, None), lambda: next(answers)
        ).jobs
        == 400
    )


def test_two_at_once_remove_each_job_once(database: Database, settings: Settings) -> None:
    many(database, 1500)
    removed: list[Purged] = []

    def run() -> None:
        removed.append(purge_with_pauses(database, settings.results_dir, settings.streams_dir, Limits(DAY_MS, None)))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # One that met only rows that the other had at hand left the rest to it.
    assert sum(one.jobs for one in removed) == 1500
