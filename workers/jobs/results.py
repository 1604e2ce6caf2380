"""The result directories of attempts, and the limit of a result's size.

An attempt writes to `<results>/<job id>/attempt-<number>`, so two attempts never write the same file. The second run of
a query in the same attempt writes to `attempt-<number>-2`: a task of the first run may commit late, and Spark would
include its rows in the second result.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from service.results.directories import remove_if_empty
from service.store.attempts import Claim
from workers.jobs.attempt import RunningAttempts, StopReason
from workers.jobs.cancellation import cancel_stopped

_RUNS = (1, 2)

_log = structlog.get_logger(__name__)


def relative_path(claim: Claim, run: int = 1) -> str:
    """Returns the directory of a run of the attempt, relative to the results directory. It is stored in this form."""
    return f"{claim.job_id}/{_name(claim.fence, run)}"


def directories_of(results: Path, claim: Claim) -> Iterator[Path]:
    """Returns the existing directories of the attempt."""
    directories = (results / relative_path(claim, run) for run in _RUNS)
    return (directory for directory in directories if directory.is_dir())


def remove_attempt(results: Path, claim: Claim) -> None:
    """Removes the unpublished result of an attempt, and the job's directory if it is empty then."""
    for run in _RUNS:
        shutil.rmtree(results / relative_path(claim, run), ignore_errors=True)
    remove_if_empty(results / claim.job_id)


def remove_older_attempts(results: Path, claim: Claim, published: str | None = None) -> None:
    """Removes the results of earlier attempts, which cannot publish any more, and that of the first run of this attempt
    if `published` is the path of the second.
    """
    older = [_name(number, run) for number in range(1, claim.fence) for run in _RUNS]
    if published == relative_path(claim, run=2):
        older.append(_name(claim.fence, 1))
    for name in older:
        shutil.rmtree(results / claim.job_id / name, ignore_errors=True)
    remove_if_empty(results / claim.job_id)


def _name(fence: int, run: int) -> str:
    return f"attempt-{fence}" if run == 1 else f"attempt-{fence}-{run}"


class ResultLimit:
    """Stops batch jobs whose result exceeds `most_bytes` while it is being written; 0 means no limit."""

    def __init__(self, running_attempts: RunningAttempts, results: Path, most_bytes: int) -> None:
        self._running_attempts = running_attempts
        self._results = results
        self._most_bytes = most_bytes

    def step(self) -> None:
        """Stops attempts whose result is too large, and cancels their Spark jobs; `CancellationWatch` repeats that."""
        if not self._most_bytes:
            return
        # The limit does not apply to streams, which write elsewhere and in mini-batches.
        for attempt in self._running_attempts.all():
            if attempt.reason is not None or attempt.streams:
                continue
            size = sum(_sizes(directories_of(self._results, attempt.claim)))
            if size > self._most_bytes and attempt.stop(StopReason.RESULT_TOO_LARGE):
                _log.info("result_too_large", job_id=attempt.claim.job_id, bytes=size)
                cancel_stopped((attempt,))


def _sizes(directories: Iterator[Path]) -> Iterator[int]:
    for directory in directories:
        for path in directory.rglob("*"):
            # Spark may rename or remove the file meanwhile.
            with suppress(OSError):
                yield path.stat().st_size if path.is_file() else 0
