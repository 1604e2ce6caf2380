"""Retries while the database is unavailable; the tests do not wait."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from psycopg.errors import ReadOnlySqlTransaction
from sqlalchemy.exc import DataError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from workers.jobs.claims import retry_on_database_fault


def failing(*errors: Exception) -> Callable[[int], int]:
    """Raises one error after the other, then gives how often it was tried."""
    left = list(errors)

    def write(tried: int) -> int:
        if left:
            raise left.pop(0)
        return tried

    return write


CAUSE = ValueError("away")
LOCKED = OperationalError("UPDATE", None, CAUSE)


def test_each_fault_of_the_database_is_retried() -> None:
    pauses: list[float] = []
    errors = (
        LOCKED,
        InterfaceError("UPDATE", None, CAUSE),
        PoolTimeoutError("all connections are taken"),
        InternalError("UPDATE", None, ReadOnlySqlTransaction("a standby")),
    )
    assert retry_on_database_fault(failing(*errors), pause=pauses.append) == 4
    assert pauses == [0.5, 1, 2, 4]


def test_retries_end_with_the_last_error_after_a_minute() -> None:
    pauses: list[float] = []
    with pytest.raises(OperationalError):
        retry_on_database_fault(failing(*[LOCKED] * 8), pause=pauses.append)
    assert sum(pauses) == 63.5


def test_retries_end_after_the_given_seconds() -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += seconds

    with pytest.raises(OperationalError):
        retry_on_database_fault(failing(*[LOCKED] * 8), pause=pause, seconds=5, clock=lambda: now[0])
    assert now == [5.0]
    assert retry_on_database_fault(failing(*[LOCKED] * 4), pause=pause, seconds=5, clock=lambda: now[0]) == 4


def test_other_errors_are_raised_at_once() -> None:
    pauses: list[float] = []
    with pytest.raises(DataError):
        retry_on_database_fault(failing(DataError("INSERT", None, CAUSE)), pause=pauses.append)
    assert pauses == []
