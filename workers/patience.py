"""The database may be away for a moment: what is worth waiting for it is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

_log = structlog.get_logger(__name__)

T = TypeVar("T")

AWAY = (OperationalError, InterfaceError, PoolTimeoutError)
"""What SQLAlchemy raises where the database is away, locked, or all its connections are taken."""

_TRIES = 8


def patiently(write: Callable[[int], T], *, pause: Callable[[float], object] = time.sleep) -> T:
    """What `write` gives, tried for a minute while the database is away; then its last error is raised.

    `write` gets how often it was tried before: a try whose answer was lost may have been the one that did it.
    """
    for tried in range(_TRIES - 1):
        try:
            return write(tried)
        except AWAY as error:
            _log.warning("database_away", tries=tried + 1, error=type(error).__name__)
            pause(0.5 * 2**tried)
    return write(_TRIES - 1)
