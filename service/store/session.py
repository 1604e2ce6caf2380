"""The database: its URL, faults, connections, transactions and clock. Only `Database.write` commits.

Errors of the database are classified by what the caller can do about them (`Fault`). No message repeats a part of a URL
that may be a password.

PostgreSQL ends statements that take too long, but not if the server itself hangs: its disk does not answer, or its
virtual machine is paused. Its kernel still accepts what is sent, so no option of TCP detects that. `BoundedConnection`
limits the wait for each answer instead.

Before a transaction, a pooled connection to PostgreSQL is checked. A round trip for each use would be the largest cost
of a poll. A server that ended a connection has sent a message or closed the stream, which can be read without a round
trip. A server that vanished is detected by a ping, only of connections that have been idle for a while.
"""

from __future__ import annotations

import json
import re
import select
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import psycopg
from pydantic import BaseModel
from sqlalchemy import Engine, create_engine, event, null, text
from sqlalchemy.engine import URL, Connection, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import ORMExecuteState, Session

from service.config.settings import DatabaseSettings
from service.store.grouped_writes import GroupedWrites

_CONFLICTS = frozenset({"40001", "40P01"})
"""serialization_failure, deadlock_detected."""

_BUSY = frozenset({"55P03", "57014"})
"""lock_not_available, query_canceled: a time limit was exceeded."""

READ_ONLY = "25006"
"""read_only_sql_transaction: the server has become a standby."""

_UNAVAILABLE = frozenset({READ_ONLY, "25P03", "42P01", "42703"})
"""Codes for which psycopg raises neither OperationalError nor InterfaceError although the statement is correct: also
idle_in_transaction_session_timeout, and tables or columns that a migration has not created yet."""

_SQLITE_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)

_URL_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_URL_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
}
"""Scheme of a URL -> driver for SQLAlchemy, whose default for PostgreSQL is psycopg 2."""

_URL_EXAMPLES = "Write postgresql://user:password@host:5432/database, or sqlite:////path/to/file.db."
_UNREADABLE_URL = (
    "the database's URL cannot be parsed: write special characters in user and password as %XX, and the port as a "
    f"number. {_URL_EXAMPLES}"
)

RECYCLE_SECONDS = 1800
"""After this time, a connection to PostgreSQL is replaced."""

IDLE_SECONDS = 1.0
"""A connection that has been idle for less is not pinged."""

_IDLE_SINCE = "evenkeel_idle_since"
_WRITES = "evenkeel_writes"
_AUTOCOMMITS = "evenkeel_autocommits"
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_WAL_RETRY_SECONDS = 0.01
_POSTGRESQL_OPTIONS: Mapping[str, str | int] = {
    # A server that vanished must not block a thread, and with it a lease or a request.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    # Shown by `pg_stat_activity`.
    "application_name": "evenkeel",
}
_POSTGRESQL_NOW = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"

T = TypeVar("T")

Clock = Callable[[Session], int]
"""Returns milliseconds since the epoch. Tests inject their own clock."""


class Fault(StrEnum):
    """Why a correct statement failed."""

    LOST = "lost"
    """There is no connection, or none that can write: try again until the database is available."""
    CONFLICT = "conflict"
    """The transaction conflicted with another one and was rolled back: try again at once."""
    BUSY = "busy"
    """All connections or locks were in use for too long: to try again at once would make that worse."""


class CommitUnknownError(OperationalError):
    """The connection broke during a commit: the transaction may be committed, or not."""


def fault_of(error: BaseException) -> Fault | None:
    """Returns the kind of fault of `error`; None if the statement is wrong."""
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
    if isinstance(error, OperationalError | InterfaceError) or state in _UNAVAILABLE:
        return Fault.LOST
    return None


def sqlstate(error: DBAPIError) -> str:
    """Returns PostgreSQL's code of the error; empty if it has none."""
    return str(getattr(error.orig, "sqlstate", None) or "")


def _is_locked(error: BaseException | None) -> bool:
    # The low byte is the code; the others are details.
    return isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_BUSY


def first_line(error: BaseException) -> str:
    """Returns the first line of the database's or driver's message, without the statement."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


class DatabaseUrlError(ValueError):
    """A URL that is not that of a supported database. The message says what to write."""


def read_url(url: str) -> URL:
    """Parses the URL and sets the driver. Raises DatabaseUrlError."""
    scheme = _URL_SCHEME.match(url)
    if scheme is None:
        raise DatabaseUrlError(f"the database's URL has no scheme. {_URL_EXAMPLES}")
    driver = _URL_DRIVERS.get(scheme[1].lower())
    if driver is None:
        raise DatabaseUrlError(
            f"the database's URL begins with {scheme[1]}:, which is neither PostgreSQL (with psycopg) nor SQLite. "
            f"{_URL_EXAMPLES}"
        )
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise DatabaseUrlError(_UNREADABLE_URL) from None
    if driver != "sqlite" and not parsed.database:
        raise DatabaseUrlError(f"the database's URL names no database. {_URL_EXAMPLES}")
    return parsed.set(drivername=driver)


class BoundedConnection(psycopg.Connection[Any]):
    """Closes itself and raises OperationalError if an answer takes longer than `seconds`; None for no limit."""

    seconds: float | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Overrides psycopg's method for all statements, commits and pings."""
        if self.seconds is None:
            return super().wait(gen, *args, **options)
        return super().wait(self._bounded(gen, self.seconds), *args, **options)

    def _bounded(self, gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
        deadline = monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                # psycopg resumes this several times a second even if nothing is ready.
                ready = yield wanted
                if not ready and monotonic() >= deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server did not answer for {seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


def limit_answers(engine: Engine, seconds: float) -> None:
    """Makes the connections of an engine for PostgreSQL wait at most `seconds` for each answer."""

    def connect(_dialect: Any, _record: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> BoundedConnection:
        connection = BoundedConnection.connect(*arguments, **options)
        connection.seconds = seconds
        return connection

    def restore_limit(connection: BoundedConnection | None, _record: Any) -> None:
        if connection is not None:
            connection.seconds = seconds

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkin", restore_limit)


def remove_time_limits(connection: Connection) -> None:
    """Removes the time limits of this transaction's statements, those of PostgreSQL and of `BoundedConnection`."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    raw = connection.connection.dbapi_connection
    if isinstance(raw, BoundedConnection):
        raw.seconds = None


def check_on_checkout(engine: Engine, clock: Callable[[], float] = monotonic) -> None:
    """Makes an engine for PostgreSQL check pooled connections before use. If one is broken, it and all connections that
    were opened before are replaced. `clock` returns seconds."""

    def record_time(_connection: Any, record: Any) -> None:
        record.info[_IDLE_SINCE] = clock()

    def check(connection: Any, record: Any, _fairy: Any) -> None:
        idle_since = record.info.get(_IDLE_SINCE)
        if idle_since is None:
            return  # just opened
        if clock() - idle_since <= IDLE_SECONDS and not _has_input(connection):
            return
        if not _answers(engine, connection):
            raise InvalidatePoolError

    event.listen(engine, "checkin", record_time)
    event.listen(engine, "checkout", check)


def _has_input(connection: Any) -> bool:
    """Returns whether the server has sent anything: usually that it ends the connection."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _answers(engine: Engine, connection: Any) -> bool:
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        # Any error: if the fault persists, opening a new connection reports it.
        return False
    return True


def database_clock(session: Session) -> int:
    """Returns the database's time, so that processes on machines with different clocks agree on leases."""
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        # The clock that SQLite itself reads, without the cost of a statement.
        return time.time_ns() // 1_000_000
    return int(connection.exec_driver_sql(_POSTGRESQL_NOW).scalar_one())


class _Session(Session):
    """A session whose UPDATE and DELETE statements leave its objects as they are: no caller reads objects of rows that
    it has changed by a statement, and to synchronize them would cost a query."""


@event.listens_for(_Session, "do_orm_execute")
def _do_not_synchronize(state: ORMExecuteState) -> None:
    if state.is_update or state.is_delete:
        state.update_execution_options(synchronize_session=False)


class Database:
    """A pool of connections and its transactions. Safe to share between threads."""

    def __init__(
        self,
        url: str,
        clock: Clock = database_clock,
        *,
        connections: int | None = None,
        settings: DatabaseSettings | None = None,
    ) -> None:
        """Does not connect yet. `connections` is the size of the pool, by default that of `settings`.

        Raises DatabaseUrlError for a URL that is not that of a supported database.
        """
        self.settings = settings or DatabaseSettings()
        self.engine = _create_engine(read_url(url), connections or self.settings.pool_size, self.settings)
        self._writing = self.engine.execution_options(**{_WRITES: True})
        if self.engine.dialect.name == "postgresql":
            self._autocommit = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        else:
            self._autocommit = self.engine.execution_options(**{_AUTOCOMMITS: True})
        self._clock = clock
        self.grouped = GroupedWrites()
        """For writes of concurrent requests that share transactions."""

    def now(self, session: Session) -> int:
        """Returns milliseconds since the epoch by the injected clock."""
        return self._clock(session)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """Opens a transaction that writes, committed at the end of the block and rolled back if that raises.

        Raises CommitUnknownError if the connection breaks during the commit. After any other error, nothing has
        changed.
        """
        committing = False
        try:
            with _Session(self._writing, expire_on_commit=False) as session, session.begin():
                yield session
                session.flush()
                committing = True
        except DBAPIError as error:
            if committing and fault_of(error) is Fault.LOST:
                raise CommitUnknownError(
                    "COMMIT", None, error.orig or error, connection_invalidated=error.connection_invalidated
                ) from error
            raise

    @contextmanager
    def look(self) -> Iterator[Session]:
        """Opens a session for statements that run hundreds of times a second: without a transaction, which on
        PostgreSQL would cost two round trips more and give readers no further guarantee.
        """
        with _Session(self._autocommit, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Opens a transaction that only reads: on SQLite one snapshot, on PostgreSQL one for each statement."""
        with _Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Closes every pooled connection."""
        self.engine.dispose()


def json_text(value: object) -> str:
    """Returns JSON for a column. U+0000, which PostgreSQL cannot store, becomes U+FFFD."""
    written = json.dumps(value)
    return _NUL.sub(r"\1\\ufffd", written) if "\\u0000" in written else written


def json_or_null(model: BaseModel | None) -> Any:
    """Returns a column's value: the model as JSON, or NULL for None, which would be stored as JSON's `null`."""
    return null() if model is None else model.model_dump(mode="json")


def _create_engine(url: URL, connections: int, settings: DatabaseSettings) -> Engine:
    # Values of columns, such as the queries of jobs, must not be logged.
    common: dict[str, Any] = {"json_serializer": json_text, "hide_parameters": True}
    pool = {
        "pool_size": connections,
        "max_overflow": settings.pool_overflow,
        "pool_timeout": settings.pool_timeout_seconds,
    }
    if url.get_backend_name() == "postgresql":
        engine = create_engine(
            url,
            **common,
            **pool,
            pool_recycle=RECYCLE_SECONDS,
            connect_args=connect_options(url, settings),
        )
        event.listen(engine, "handle_error", _disconnect_from_standby)
        check_on_checkout(engine)
        if settings.statement_timeout_seconds and "options" not in url.query:
            # Longer than the server's own limit, by the time that a new connection may take.
            limit_answers(engine, settings.statement_timeout_seconds + settings.connect_timeout_seconds)
        return engine
    if url.database and url.database != ":memory:":
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, **common, **pool)
    else:
        engine = create_engine(url, **common)
    busy_ms = round(settings.lock_timeout_seconds * 1000)
    event.listen(engine, "connect", lambda connection, _record: _prepare_sqlite(connection, busy_ms))
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def connect_options(url: URL, settings: DatabaseSettings) -> dict[str, str | int]:
    """Returns options for psycopg. Options in the URL have precedence."""
    limits = {
        "statement_timeout": round(settings.statement_timeout_seconds * 1000),
        "lock_timeout": round(settings.lock_timeout_seconds * 1000),
    }
    options = {
        **_POSTGRESQL_OPTIONS,
        "connect_timeout": settings.connect_timeout_seconds,
        "options": " ".join(f"-c {name}={milliseconds}" for name, milliseconds in limits.items()),
    }
    return {name: value for name, value in options.items() if name not in url.query}


def _disconnect_from_standby(context: ExceptionContext) -> None:
    # After a failover, connections to the former primary stay open, and every write on them fails.
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def _prepare_sqlite(connection: Any, busy_timeout_ms: int) -> None:
    # Otherwise the driver opens transactions by itself, and only before writes.
    connection.isolation_level = None
    cursor = connection.cursor()
    # busy_timeout first: reading the journal mode needs a lock too.
    cursor.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
    _switch_to_wal(cursor, busy_timeout_ms)
    # A job that was answered with 202 must survive a power failure.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _switch_to_wal(cursor: Any, busy_timeout_ms: int) -> None:
    """Raises OperationalError if others lock the file for longer than `busy_timeout_ms`."""
    deadline = time.monotonic() + busy_timeout_ms / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            # If two processes switch a new file at once, SQLite refuses one without waiting, to avoid a deadlock.
            if time.monotonic() >= deadline:
                raise
            time.sleep(_WAL_RETRY_SECONDS)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that begins to write fails at once, without busy_timeout, if another one has written since.
    options = connection.get_execution_options()
    if not options.get(_AUTOCOMMITS, False):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get(_WRITES, False) else "BEGIN")
