"""Where attempts write: `<results>/<job id>/attempt-<number>`, so that two of them never touch the same file."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from service.store.leases import Claim

# The operator names the results directory: what else is in it is none of ours.
_JOB = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT = re.compile(r"attempt-\d+")


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


def jobs_unchanged_since(results: Path, seconds: float) -> Sequence[str]:
    """Ids of the jobs whose directories have had no new attempt since that time, in seconds since the epoch."""
    if not results.is_dir():
        return ()
    return [path.name for path in results.iterdir() if _JOB.fullmatch(path.name) and _is_older(path, seconds)]


def remove_unpublished(results: Path, job_id: str, published: str | None) -> None:
    """Removes what attempts of a job left there, but for the published one; the directory too, when that empties it."""
    for path in (results / job_id).glob("attempt-*"):
        if _ATTEMPT.fullmatch(path.name) and f"{job_id}/{path.name}" != published:
            shutil.rmtree(path, ignore_errors=True)
    _remove_if_empty(results / job_id)


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return path.stat().st_mtime < seconds
    except OSError:
        # Just removed with its job.
        return False


def _remove_if_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        # Not empty, or never made: both are fine.
        return
