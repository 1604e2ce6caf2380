"""Directories of jobs: found in portions, removed but for what is published, nothing else touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from service.results.directories import (
    Freed,
    jobs_unchanged_since,
    remove_job_directory,
    remove_unpublished,
    size_of,
    unpublished,
)
from tests.support.lifecycle import attempts_left, write_attempts

JOB = "11111111-2222-4333-8444-555555555555"


def refuse(path: Path, ignore_errors: bool = False) -> None:
    if not ignore_errors:
        raise PermissionError(13, "Permission denied", str(path))


def test_a_second_run_of_an_attempt_is_told_from_the_first(tmp_path: Path) -> None:
    write_attempts(tmp_path, JOB, 1, 2)
    (tmp_path / JOB / "attempt-2-2").mkdir()
    (tmp_path / JOB / "attempt-2-other").mkdir()
    remove_unpublished(tmp_path, JOB, f"{JOB}/attempt-2-2")
    assert attempts_left(tmp_path) == [f"{JOB}/attempt-2-2", f"{JOB}/attempt-2-other"]
    remove_unpublished(tmp_path, JOB, f"{JOB}/attempt-2")
    assert attempts_left(tmp_path) == [f"{JOB}/attempt-2-other"]


def test_a_whole_job(tmp_path: Path) -> None:
    write_attempts(tmp_path, JOB, 1, 2)
    assert remove_job_directory(tmp_path, JOB)
    assert list(tmp_path.iterdir()) == []
    assert remove_job_directory(tmp_path, JOB), "nothing is left of it"


def test_a_job_that_cannot_be_removed_at_once_is_left_over_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_attempts(tmp_path, JOB, 1)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", refuse)
        assert not remove_job_directory(tmp_path, JOB)
    assert not (tmp_path / JOB).exists(), "readers find nothing rather than a part"
    ((left_over,),) = jobs_unchanged_since(tmp_path, 2**40, at_once=2)
    remove_unpublished(tmp_path, left_over, None)
    assert list(tmp_path.iterdir()) == []


def test_only_jobs_are_found_only_old_ones_and_a_few_at_a_time(tmp_path: Path) -> None:
    old = [f"{number}1111111-2222-4333-8444-555555555555" for number in range(5)]
    new = "66666666-2222-4333-8444-555555555555"
    for name, changed in (*((name, 1_000) for name in old), (new, 2_000), ("reports", 1_000)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (changed, changed))
    portions = list(jobs_unchanged_since(tmp_path, 2_000, at_once=2))
    assert [len(portion) for portion in portions] == [2, 2, 1]
    assert sorted(name for portion in portions for name in portion) == old
    assert list(jobs_unchanged_since(tmp_path / "nothing yet", 2_000, at_once=2)) == []


def test_the_published_attempt_stays(tmp_path: Path) -> None:
    write_attempts(tmp_path, JOB, 1, 2, 3)
    (tmp_path / JOB / "attempt-notes").mkdir()
    assert len(unpublished(tmp_path, JOB, f"{JOB}/attempt-2")) == 2
    assert remove_unpublished(tmp_path, JOB, f"{JOB}/attempt-2") == Freed(2, 8)
    assert attempts_left(tmp_path) == [f"{JOB}/attempt-2", f"{JOB}/attempt-notes"]
    (tmp_path / JOB / "attempt-notes").rmdir()
    assert remove_unpublished(tmp_path, JOB, None) == Freed(1, 4)
    assert list(tmp_path.iterdir()) == []


def test_what_stays_is_not_counted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_attempts(tmp_path, JOB, 1)
    monkeypatch.setattr("shutil.rmtree", refuse)
    with capture_logs() as logs:
        assert remove_unpublished(tmp_path, JOB, None) == Freed(0, 0)
    (told,) = logs
    assert (told["event"], told["log_level"], told["errno"]) == ("files_not_removed", "warning", 13)


def test_a_directory_that_cannot_be_moved_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_to_move(path: Path, _target: Path) -> Path:
        raise PermissionError(13, "Permission denied", str(path))

    write_attempts(tmp_path, JOB, 1)
    monkeypatch.setattr(Path, "rename", refuse_to_move)
    with capture_logs() as logs:
        assert not remove_job_directory(tmp_path, JOB)
    assert [entry["event"] for entry in logs] == ["files_not_removed"]


def test_the_size_of_what_is_not_there(tmp_path: Path) -> None:
    assert size_of(tmp_path / "never made") == 0
