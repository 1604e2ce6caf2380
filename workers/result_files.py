"""Where attempts write: `<results>/<job id>/attempt-<number>`, so that two of them never touch the same file.

A query that ran again in the same attempt wrote into `attempt-<number>-2`: a task of the first run that Spark is still
ending may commit late, and Spark would take its rows for some of the second.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from service.results.directories import remove_if_empty
from service.store.leases import Claim

_RUNS = (1, 2)


def relative_path(claim: Claim, run: int = 1) -> str:
    """The directory of a run of the attempt, relative to the results directory: what is stored and published."""
    return f"{claim.job_id}/{_name(claim.fence, run)}"


def directories_of(results: Path, claim: Claim) -> Iterator[Path]:
    """Where the attempt writes, as far as it has begun to."""
    directories = (results / relative_path(claim, run) for run in _RUNS)
    return (directory for directory in directories if directory.is_dir())


def remove_attempt(results: Path, claim: Claim) -> None:
    """Removes what an attempt wrote that will not be published; the job's directory too, when that leaves it empty."""
    for run in _RUNS:
        shutil.rmtree(results / relative_path(claim, run), ignore_errors=True)
    remove_if_empty(results / claim.job_id)


def remove_older_attempts(results: Path, claim: Claim, published: str | None = None) -> None:
    """Removes what earlier attempts left behind: they can publish no more; and the first run of this one, where
    `published` is the path of the second.
    """
    older = [_name(number, run) for number in range(1, claim.fence) for run in _RUNS]
    if published == relative_path(claim, run=2):
        older.append(_name(claim.fence, 1))
    for name in older:
        shutil.rmtree(results / claim.job_id / name, ignore_errors=True)
    remove_if_empty(results / claim.job_id)


def _name(fence: int, run: int) -> str:
    return f"attempt-{fence}" if run == 1 else f"attempt-{fence}-{run}"
