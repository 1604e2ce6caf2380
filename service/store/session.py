"""Connections, transactions and the clock. Nobody commits but `Database.write`."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import URL, Connection, ExceptionContext
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service.settings import DatabaseSettings
from service.store.deadlines import bound
from service.store.faults import READ_ONLY, CommitUnknownError, Fault, fault_of
from service.store.pool_checks import check_before_use
from service.store.urls import read_url

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
