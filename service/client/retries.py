"""The pauses between the tries of a request."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_FIRST_PAUSE = 0.2
_MAX_PAUSE = 5.0
_RETRY_AFTER = re.compile(r"\d{1,6}")


class RetryBudget:
    """The pauses between the tries of one request. They double, until `seconds` have passed since the first try."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._tries = 0

    def next_pause(self, at_least: float | None = None) -> float | None:
        """Returns the seconds until the next try, at least those that the service requested; None to give up."""
        pause = max(min(_FIRST_PAUSE * 2**self._tries, _MAX_PAUSE), at_least or 0)
        self._tries += 1
        return pause if self._clock() + pause <= self._until else None


def retry_after_seconds(header: str | None) -> float | None:
    """Returns the seconds in a `Retry-After` header; None for a date or without the header."""
    return float(header) if header is not None and _RETRY_AFTER.fullmatch(header.strip()) else None
