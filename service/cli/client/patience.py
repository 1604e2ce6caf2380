"""How long one request is tried again."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_SECONDS = re.compile(r"\d{1,6}")


class Patience:
    """For one request: pauses that double, until `seconds` have gone since the first try."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + seconds
        self._tried = 0

    def pause(self, asked: float | None = None) -> float | None:
        """Seconds until the next try, at least those that the service asked for; None where there is to be none."""
        wait = max(min(_FIRST_PAUSE * 2**self._tried, _LONGEST_PAUSE), asked or 0)
        self._tried += 1
        return wait if self._clock() + wait <= self._until else None


def seconds_asked(header: str | None) -> float | None:
    """What Retry-After asks for in seconds; None for a date, or nothing."""
    return float(header) if header is not None and _SECONDS.fullmatch(header.strip()) else None
