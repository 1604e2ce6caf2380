"""Where attempts write: `<results>/<job id>/attempt-<number>`, so that two of them never touch the same file."""

from __future__ import annotations

import shutil
from pathlib import Path

from service.store.leases import Claim


def relative_path(claim: Claim) -> str:
    """The attempt's directory, relative to the results directory: what is stored and published."""
    return f"{claim.job_id}/attempt-{claim.fence}"


def remove_attempt(results: Path, claim: Claim) -> None:
    """Removes what an attempt wrote that will not be published; the job's directory too, when that leaves it empty."""
    shutil.rmtree(results / relative_path(claim), ignore_errors=True)
    _remove_if_empty(results / claim.job_id)


def remove_older_attempts(results: Path, claim: Claim) -> None:
    """Removes what earlier attempts left behind: they can publish no more."""
    for number in range(1, claim.fence):
        shutil.rmtree(results / claim.job_id / f"attempt-{number}", ignore_errors=True)
    _remove_if_empty(results / claim.job_id)


def remove_job(results: Path, job_id: str) -> None:
    """Removes everything that attempts of a job wrote that ended without a result."""
    shutil.rmtree(results / job_id, ignore_errors=True)


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        # Not empty, or never made: both are fine.
        return
