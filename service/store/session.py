"""What went wrong between us and the database, by what may be done about it.

Which databases a URL may name, and how it is told that it names none. No message repeats any part of a URL that may
be a password.

PostgreSQL ends statements that take too long, and cannot where it is itself stalled: its processes hang in a disk, a
virtual machine is paused. Its kernel still takes what is sent, so no option of TCP tells. Here connections give up.

Looks whether a pooled connection to PostgreSQL is still there before it is used.

A round trip for every use would be the dearest part of a poll. A server that ended a connection has said so: its last
words, or the end of the stream, wait to be read, which costs no round trip. One that vanished without a word is found
by asking, of connections that have rested a while.

Connections, transactions and the clock. Nobody commits but `Database.write`.
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
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, Connection, ExceptionContext, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, InvalidatePoolError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.orm import Session

from service.config.settings import DatabaseSettings

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


_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
_DRIVERS = {
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
}
"""What may be given, and what SQLAlchemy is given for it: by itself it would take psycopg 2 for PostgreSQL."""

_EXAMPLES = "Write postgresql://user:password@host:5432/database, or sqlite:////path/to/file.db."

_UNREADABLE = (
    "the database's URL cannot be read: special characters in user and password are written as %XX, and the port is a "
    f"number. {_EXAMPLES}"
)


class DatabaseUrlError(ValueError):
    """A URL that names no database which this code can use; the message says what to write."""


def read_url(url: str) -> URL:
    """The parsed URL, with the driver that this code uses. Raises DatabaseUrlError."""
    scheme = _SCHEME.match(url)
    if scheme is None:
        raise DatabaseUrlError(f"the database's URL has no scheme. {_EXAMPLES}")
    driver = _DRIVERS.get(scheme[1].lower())
    if driver is None:
        raise DatabaseUrlError(
            f"the database's URL begins with {scheme[1]}:, which is neither PostgreSQL (with psycopg) nor SQLite. "
            f"{_EXAMPLES}"
        )
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise DatabaseUrlError(_UNREADABLE) from None
    if driver != "sqlite" and not parsed.database:
        raise DatabaseUrlError(f"the database's URL names no database. {_EXAMPLES}")
    return parsed.set(drivername=driver)


T = TypeVar("T")


class BoundedConnection(psycopg.Connection[Any]):
    """Closes itself where an answer takes more than `seconds`, None for no limit; what waited for that gets an
    OperationalError."""

    seconds: float | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """As psycopg's own, through which go all statements, commits and pings."""
        if self.seconds is None:
            return super().wait(gen, *args, **options)
        return super().wait(self._bounded(gen, self.seconds), *args, **options)

    def _bounded(self, gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
        deadline = monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                # Several times a second nothing is ready.
                ready = yield wanted
                if not ready and monotonic() >= deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(f"the server gave no answer for {seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            result: T = end.value
            return result


def bound(engine: Engine, seconds: float) -> None:
    """Lets no answer to a connection of the engine, which is one to PostgreSQL, take more than `seconds`."""

    def connect(_dialect: Any, _record: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> BoundedConnection:
        connection = BoundedConnection.connect(*arguments, **options)
        connection.seconds = seconds
        return connection

    def limit_again(connection: BoundedConnection | None, _record: Any) -> None:
        if connection is not None:
            connection.seconds = seconds

    event.listen(engine, "do_connect", connect)
    event.listen(engine, "checkin", limit_again)


def take_any_time(connection: Connection) -> None:
    """No statement of this transaction, on PostgreSQL, has a limit of time, neither there nor here."""
    connection.execute(text("SET LOCAL statement_timeout = 0"))
    raw = connection.connection.dbapi_connection
    if isinstance(raw, BoundedConnection):
        raw.seconds = None


RESTED_SECONDS = 1.0
"""A connection that was used more lately is not asked."""

_RESTS_SINCE = "evenkeel_rests_since"


def check_before_use(engine: Engine, clock: Callable[[], float] = monotonic) -> None:
    """No transaction on the engine, which is one to PostgreSQL, begins with a connection known to be broken: it and all
    that were opened before are opened anew. `clock` gives seconds."""

    def rest(_connection: Any, record: Any) -> None:
        record.info[_RESTS_SINCE] = clock()

    def check(connection: Any, record: Any, _fairy: Any) -> None:
        rests_since = record.info.get(_RESTS_SINCE)
        if rests_since is None:
            return  # just opened
        if clock() - rests_since <= RESTED_SECONDS and not _has_something_to_say(connection):
            return
        if not _answers(engine, connection):
            raise InvalidatePoolError

    event.listen(engine, "checkin", rest)
    event.listen(engine, "checkout", check)


def _has_something_to_say(connection: Any) -> bool:
    """Whether anything came that nobody asked for: as a rule the news that the server ends the connection."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _answers(engine: Engine, connection: Any) -> bool:
    try:
        engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        # Whatever it was: a new connection tells what it is about, in the words of whoever asked for one.
        return False
    return True


_WRITES = "evenkeel_writes"
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_SWITCH_AGAIN_SECONDS = 0.01
_POSTGRESQL_OPTIONS: Mapping[str, str | int] = {
    # A server that went away without a word must not keep a thread, and with it a lease or a request.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    # What `pg_stat_activity` shows.
    "application_name": "evenkeel",
}

NO_SYNC: Mapping[str, bool] = {"synchronize_session": False}
"""Execution options of statements that change rows of which the session holds no objects."""

Clock = Callable[[Session], int]
"""Milliseconds since the epoch, as the database sees them; tests inject their own."""


# Julian days, since unixepoch() gives whole seconds before SQLite 3.42.
_SQLITE_NOW = text("SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)")
_POSTGRESQL_NOW = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)")


def database_clock(session: Session) -> int:
    """The database's own time, so that processes on machines with different clocks agree on leases."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    return int(session.execute(_SQLITE_NOW if is_sqlite else _POSTGRESQL_NOW).scalar_one())


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
        """Opens nothing yet. Keeps `connections` open, by default as many as `settings` say.

        Raises DatabaseUrlError for a URL of no database that this code can use.
        """
        self.settings = settings or DatabaseSettings()
        self.engine = _create_engine(read_url(url), connections or self.settings.pool_size, self.settings)
        self._writing = self.engine.execution_options(**{_WRITES: True})
        self._looking = self.engine
        if self.engine.dialect.name == "postgresql":
            self._looking = self.engine.execution_options(isolation_level="AUTOCOMMIT")
        self._clock = clock

    def now(self, session: Session) -> int:
        """Milliseconds since the epoch by the injected clock."""
        return self._clock(session)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that writes: committed at the end of the block, rolled back when it raises.

        Raises CommitUnknownError where the connection broke during the commit. After any other error, nothing was
        changed.
        """
        committing = False
        try:
            with Session(self._writing, expire_on_commit=False) as session, session.begin():
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
        """For what is asked hundreds of times a second: on PostgreSQL, statements without a transaction around them,
        which would cost two more round trips and promise nothing more to those that only read.
        """
        with Session(self._looking, expire_on_commit=False) as session:
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads: on SQLite from one snapshot, on PostgreSQL each statement from one."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Closes every pooled connection."""
        self.engine.dispose()


def json_text(value: object) -> str:
    """JSON for a column. U+0000, which PostgreSQL stores in no text, becomes U+FFFD."""
    return _NUL.sub(r"\1\\ufffd", json.dumps(value))


def _create_engine(url: URL, connections: int, settings: DatabaseSettings) -> Engine:
    # Jobs' texts, and whatever else is stored, are for no log.
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
            pool_recycle=1800,
            connect_args=connect_options(url, settings),
        )
        event.listen(engine, "handle_error", _leave_standbys)
        check_before_use(engine)
        if settings.statement_timeout_seconds and "options" not in url.query:
            # The server's own limit comes first, by as much as a new connection may take.
            bound(engine, settings.statement_timeout_seconds + settings.connect_timeout_seconds)
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
    """What psycopg is told beside the URL, whose own options stay."""
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


def _leave_standbys(context: ExceptionContext) -> None:
    # After a failover, connections to the server that was the primary stay open and refuse to write for ever.
    if getattr(context.original_exception, "sqlstate", None) == READ_ONLY:
        context.is_disconnect = True


def _prepare_sqlite(connection: Any, busy_timeout_ms: int) -> None:
    # Without this, the driver opens transactions by itself, and only before writes.
    connection.isolation_level = None
    cursor = connection.cursor()
    # busy_timeout first: reading the journal mode takes a lock too.
    cursor.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
    _switch_to_wal(cursor, busy_timeout_ms)
    # A 202 is a promise that survives a power cut.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _switch_to_wal(cursor: Any, busy_timeout_ms: int) -> None:
    """Raises OperationalError where others hold the file for longer than `busy_timeout_ms`."""
    deadline = time.monotonic() + busy_timeout_ms / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            # Of two that switch a new file at once, SQLite refuses one without waiting: each waits for the other.
            if time.monotonic() >= deadline:
                raise
            time.sleep(_SWITCH_AGAIN_SECONDS)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that turns writer fails at once when another writer came between, busy_timeout or not.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
