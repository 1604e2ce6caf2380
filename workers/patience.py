"""The database may be away for a moment: what is worth waiting for it is tried again."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.store.faults import fault_of
from workers.attempt import Attempt

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_TRIES = 8


def patiently(
    write: Callable[[int], T],
    *,
    pause: Callable[[float], object] = time.sleep,
    seconds: float = math.inf,
    clock: Callable[[], float] = time.monotonic,
) -> T:
    """What `write` gives, tried for a minute while the database is away, locked, or has no connection left; then its
    last error is raised. The last try begins after `seconds` at the latest.

    `write` gets how often it was tried before: a try whose answer was lost may have been the one that did it.
    """
    until = clock() + seconds
    for tried in range(_TRIES - 1):
        try:
            return write(tried)
        except SQLAlchemyError as error:
            fault = fault_of(error)
            left = until - clock()
            if fault is None or left <= 0:
                raise
            _log.warning("database_away", fault=fault.value, tries=tried + 1, error=type(error).__name__)
            pause(min(0.5 * 2**tried, left))
    return write(_TRIES - 1)


def patiently_aside(attempt: Attempt, write: Callable[[], T], pause: Callable[[float], object]) -> T:
    """As `patiently`, for an attempt that is told to stop meanwhile, perhaps: it is not deaf for its driver's sake."""
    with attempt.aside():
        return patiently(lambda _: write(), pause=pause)
