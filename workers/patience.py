"""The database may be away for a moment: what is worth waiting for it is tried again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.store.faults import fault_of

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_TRIES = 8


def patiently(write: Callable[[int], T], *, pause: Callable[[float], object] = time.sleep) -> T:
    """What `write` gives, tried for a minute while the database is away, locked, or has no connection left; then its
    last error is raised.

    `write` gets how often it was tried before: a try whose answer was lost may have been the one that did it.
    """
    for tried in range(_TRIES - 1):
        try:
            return write(tried)
        except SQLAlchemyError as error:
            fault = fault_of(error)
            if fault is None:
                raise
            _log.warning("database_away", fault=fault.value, tries=tried + 1, error=type(error).__name__)
            pause(0.5 * 2**tried)
    return write(_TRIES - 1)
