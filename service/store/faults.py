"""What went wrong between us and the database, by what may be done about it."""

from __future__ import annotations

import sqlite3
from enum import StrEnum

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

_CONFLICTS = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected."""

_BUSY = frozenset({"55P03", "57014"})
"""lock_not_available, query_canceled: a time limit has passed."""

READ_ONLY = "25006"
"""read_only_sql_transaction: the server that we are connected to has become a standby of another."""

_ELSEWHERE = frozenset({READ_ONLY, "25P03", "42P01", "42703"})
"""Neither OperationalError nor InterfaceError for psycopg, and still no fault of the statement: also
idle_in_transaction_session_timeout, and tables or columns that are missing, since somebody migrates."""

_SQLITE_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class Fault(StrEnum):
    """Why the database did not do what was asked, where the statement itself is not to blame."""

    LOST = "lost"
    """There is no connection, or none that may write: worth trying again until the database is back."""
    CONFLICT = "conflict"
    """Two transactions were in each other's way, and this one was rolled back: worth trying again at once."""
    BUSY = "busy"
    """All connections or locks were taken for too long: trying again at once would make that worse."""


class CommitUnknownError(OperationalError):
    """The connection broke while it committed: the transaction may have been done, or not."""


def fault_of(error: BaseException) -> Fault | None:
    """What kind of fault `error` tells of; None where the database answered and the statement is wrong."""
    if isinstance(error, PoolTimeoutError):
        return Fault.BUSY
    if not isinstance(error, DBAPIError):
        return None
    if error.connection_invalidated:
        return Fault.LOST
    state = sqlstate(error)
    if state in _CONFLICTS:
        return Fault.CONFLICT
    if state in _BUSY or _is_locked(error.orig):
        return Fault.BUSY
    if isinstance(error, OperationalError | InterfaceError) or state in _ELSEWHERE:
        return Fault.LOST
    return None


def sqlstate(error: DBAPIError) -> str:
    """PostgreSQL's code of the error; empty where there is none."""
    return str(getattr(error.orig, "sqlstate", None) or "")


def _is_locked(error: BaseException | None) -> bool:
    # The low byte is the code, what is above it tells more.
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_BUSY


def first_line(error: BaseException) -> str:
    """What the database or its driver said, in one line and without the statement."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
