"""Where attempts write: `<results>/<job id>/attempt-<number>`, so that two of them never touch the same file.

A query that ran again in the same attempt wrote into `attempt-<number>-2`: a task of the first run that Spark is still
ending may commit late, and Spark would take its rows for some of the second.

Ends batch jobs whose result outgrows what a result may take, while it is being written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from service.results.directories import remove_if_empty
from service.store.leases import Claim
from workers.jobs.attempt import AttemptsAtHand, StopReason
from workers.jobs.cancellation import cancel_stopped

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


_log = structlog.get_logger(__name__)


class ResultLimit:
    """A step for a thread: looks at what each attempt has written so far. `most_bytes` is 0 for any size."""

    def __init__(self, at_hand: AttemptsAtHand, results: Path, most_bytes: int) -> None:
        self._at_hand = at_hand
        self._results = results
        self._most_bytes = most_bytes

    def step(self) -> None:
        """Marks what is too large and cancels its Spark jobs; `workers.jobs.cancellation` sees to their end."""
        if not self._most_bytes:
            return
        # What a stream writes is its own, and comes in mini-batches.
        going = [attempt for attempt in self._at_hand.all() if attempt.reason is None and not attempt.streams]
        for attempt in going:
            size = sum(_sizes(directories_of(self._results, attempt.claim)))
            if size > self._most_bytes and attempt.stop(StopReason.RESULT_TOO_LARGE):
                _log.info("result_too_large", job_id=attempt.claim.job_id, bytes=size)
                cancel_stopped((attempt,))


def _sizes(directories: Iterator[Path]) -> Iterator[int]:
    for directory in directories:
        for path in directory.rglob("*"):
            # Spark renames and removes files meanwhile.
            with suppress(OSError):
                yield path.stat().st_size if path.is_file() else 0
