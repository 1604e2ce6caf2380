"""Attempts have their own directories; unpublished results are removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from service.store.attempts import Claim
from tests.support.lifecycle import attempts_left, write_attempts
from workers.jobs.results import relative_path, remove_attempt, remove_older_attempts

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


def test_publication_leaves_the_newest_alone(tmp_path: Path) -> None:
    write_attempts(tmp_path, "job-1", 1, 2, 3, 4)
    remove_older_attempts(tmp_path, CLAIM)
    assert attempts_left(tmp_path) == ["job-1/attempt-3", "job-1/attempt-4"]


def test_publication_of_a_second_run_leaves_it_alone(tmp_path: Path) -> None:
    write_attempts(tmp_path, "job-1", 1, 3)
    for fence in (1, 3):
        (tmp_path / relative_path(replace(CLAIM, fence=fence), run=2)).mkdir()
    remove_older_attempts(tmp_path, CLAIM, relative_path(CLAIM, run=2))
    assert attempts_left(tmp_path) == ["job-1/attempt-3-2"]
    remove_attempt(tmp_path, CLAIM)
    assert list(tmp_path.iterdir()) == []


def test_the_last_attempt_takes_the_directory_along(tmp_path: Path) -> None:
    write_attempts(tmp_path, "job-1", 2, 3)
    remove_attempt(tmp_path, CLAIM)
    assert attempts_left(tmp_path) == ["job-1/attempt-2"]
    remove_attempt(tmp_path, replace(CLAIM, fence=2))
    assert list(tmp_path.iterdir()) == []
    remove_attempt(tmp_path, CLAIM)
