"""Classification of the errors that drivers raise. `test_session.py` has real errors."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg.errors
import pytest
from sqlalchemy import text
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from service.config.settings import DatabaseSettings
from service.store.session import CommitUnknownError, Database, Fault, fault_of, first_line


@pytest.mark.parametrize(
    ("kind", "cause", "fault"),
    [
        (OperationalError, psycopg.errors.SerializationFailure(), Fault.CONFLICT),
        (OperationalError, psycopg.errors.DeadlockDetected(), Fault.CONFLICT),
        (OperationalError, psycopg.errors.LockNotAvailable(), Fault.BUSY),
        (OperationalError, psycopg.errors.QueryCanceled(), Fault.BUSY),
        (OperationalError, psycopg.errors.AdminShutdown(), Fault.LOST),
        (OperationalError, psycopg.errors.CannotConnectNow(), Fault.LOST),
        (OperationalError, psycopg.errors.TooManyConnections(), Fault.LOST),
        (OperationalError, psycopg.OperationalError("connection refused"), Fault.LOST),
        (InterfaceError, psycopg.InterfaceError("the connection is closed"), Fault.LOST),
        (InternalError, psycopg.errors.ReadOnlySqlTransaction(), Fault.LOST),
        (ProgrammingError, psycopg.errors.UndefinedTable(), Fault.LOST),
        (OperationalError, sqlite3.OperationalError("disk I/O error"), Fault.LOST),
        (CommitUnknownError, psycopg.OperationalError("consuming input failed"), Fault.LOST),
        (IntegrityError, psycopg.errors.UniqueViolation(), None),
        (ProgrammingError, psycopg.errors.SyntaxError(), None),
        (InternalError, psycopg.errors.InFailedSqlTransaction(), None),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
def test_errors_of_drivers(kind: type[DBAPIError], cause: Exception, fault: Fault | None) -> None:
    assert fault_of(kind("SELECT 1", None, cause)) is fault


def test_a_pool_without_a_free_connection_is_busy() -> None:
    assert fault_of(PoolTimeoutError("all connections are taken")) is Fault.BUSY


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), KeyboardInterrupt()])
def test_other_errors_are_no_faults(error: BaseException) -> None:
    assert fault_of(error) is None


def test_a_locked_sqlite_file_is_busy(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'locked.db'}"
    with (
        closing(Database(url)) as one,
        closing(Database(url, settings=DatabaseSettings(lock_timeout_seconds=0.1))) as other,
        one.write() as writing,
    ):
        writing.execute(text("SELECT 1"))  # begins
        with pytest.raises(OperationalError, match="database is locked") as caught, other.write() as session:
            session.execute(text("SELECT 1"))
        assert fault_of(caught.value) is Fault.BUSY


def test_the_first_line_of_the_message() -> None:
    error = OperationalError("INSERT INTO jobs", {"spec": "secret"}, Exception("server closed\nthe connection"))
    assert first_line(error) == "server closed"
    assert first_line(RuntimeError()) == "RuntimeError"
