"""Ends batch jobs whose result outgrows what a result may take, while it is being written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import structlog

from workers.attempt import AttemptsAtHand, StopReason
from workers.cancellation import cancel_stopped
from workers.result_files import directories_of

_log = structlog.get_logger(__name__)


class ResultLimit:
    """A step for a thread: looks at what each attempt has written so far. `most_bytes` is 0 for any size."""

    def __init__(self, at_hand: AttemptsAtHand, results: Path, most_bytes: int) -> None:
        self._at_hand = at_hand
        self._results = results
        self._most_bytes = most_bytes

    def step(self) -> None:
        """Marks what is too large and cancels its Spark jobs; `workers.cancellation` sees to their end."""
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
