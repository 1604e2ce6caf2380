"""Where attempts write: `<results>/<job id>/attempt-<number>`, so that two of them never touch the same file."""

from __future__ import annotations

import shutil
from pathlib import Path

from service.results.directories import remove_if_empty
from service.store.leases import Claim


def relative_path(claim: Claim) -> str:
    """The attempt's directory, relative to the results directory: what is stored and published."""
    return f"{claim.job_id}/attempt-{claim.fence}"


def remove_attempt(results: Path, claim: Claim) -> None:
    """Removes what an attempt wrote that will not be published; the job's directory too, when that leaves it empty."""
    shutil.rmtree(results / relative_path(claim), ignore_errors=True)
    remove_if_empty(results / claim.job_id)


def remove_older_attempts(results: Path, claim: Claim) -> None:
    """Removes what earlier attempts left behind: they can publish no more."""
    for number in range(1, claim.fence):
        shutil.rmtree(results / claim.job_id / f"attempt-{number}", ignore_errors=True)
    remove_if_empty(results / claim.job_id)
