"""Attempt directories below a directory of results."""

from __future__ import annotations

from pathlib import Path


def write_attempts(results: Path, job_id: str, *fences: int) -> None:
    """Writes a directory with one file for each of these attempts of a job."""
    for fence in fences:
        directory = results / job_id / f"attempt-{fence}"
        directory.mkdir(parents=True)
        (directory / "part-0.parquet").write_bytes(b"rows")


def attempts_left(results: Path) -> list[str]:
    """Returns the paths in the directories of jobs, relative to `results`."""
    return sorted(str(path.relative_to(results)) for path in results.glob("*/*"))
