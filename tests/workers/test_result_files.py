"""Attempts have directories of their own; what is not published is removed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from service.store.leases import Claim
from workers.result_files import (
    jobs_unchanged_since,
    relative_path,
    remove_attempt,
    remove_job,
    remove_older_attempts,
    remove_unpublished,
)

CLAIM = Claim(
    job_id="job-1",
    tenant="default",
    kind="run",
    name="a job",
    spec={},
    fence=3,
    worker="w1",
    claimed_at=0,
    started_at=0,
    timeout_ms=1,
)


def write(results: Path, *fences: int) -> None:
    for fence in fences:
        directory = results / relative_path(replace(CLAIM, fence=fence))
        directory.mkdir(parents=True)
        (directory / "part-0.parquet").write_bytes(b"rows")


def left(results: Path) -> list[str]:
    return sorted(str(path.relative_to(results)) for path in results.glob("*/*"))


def test_publication_leaves_the_newest_alone(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 3, 4)
    remove_older_attempts(tmp_path, CLAIM)
    assert left(tmp_path) == ["job-1/attempt-3", "job-1/attempt-4"]


def test_the_last_attempt_takes_the_directory_along(tmp_path: Path) -> None:
    write(tmp_path, 2, 3)
    remove_attempt(tmp_path, CLAIM)
    assert left(tmp_path) == ["job-1/attempt-2"]
    remove_attempt(tmp_path, replace(CLAIM, fence=2))
    assert list(tmp_path.iterdir()) == []
    remove_attempt(tmp_path, CLAIM)


def test_a_job_without_a_result_keeps_nothing(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    remove_job(tmp_path, "job-1")
    assert list(tmp_path.iterdir()) == []


def test_only_jobs_are_found_and_only_old_ones(tmp_path: Path) -> None:
    old, new = "11111111-2222-4333-8444-555555555555", "66666666-2222-4333-8444-555555555555"
    for name, changed in ((old, 1_000), (new, 2_000), ("reports", 1_000)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (changed, changed))
    assert jobs_unchanged_since(tmp_path, 2_000) == [old]
    assert jobs_unchanged_since(tmp_path / "nothing yet", 2_000) == ()


def test_the_published_attempt_stays(tmp_path: Path) -> None:
    write(tmp_path, 1, 2, 3)
    (tmp_path / "job-1" / "attempt-notes").mkdir()
    remove_unpublished(tmp_path, "job-1", "job-1/attempt-2")
    assert left(tmp_path) == ["job-1/attempt-2", "job-1/attempt-notes"]
    (tmp_path / "job-1" / "attempt-notes").rmdir()
    remove_unpublished(tmp_path, "job-1", None)
    assert list(tmp_path.iterdir()) == []
