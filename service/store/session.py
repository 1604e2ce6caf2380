"""Connections, transactions and the clock. Nobody commits but `Database.write`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

_WRITES = "evenkeel_writes"
_BUSY_TIMEOUT_MS = 10_000

Clock = Callable[[Session], int]
"""Milliseconds since the epoch, as the database sees them; tests inject their own."""


def database_clock(session: Session) -> int:
    """The database's own time, so that processes on machines with different clocks agree on leases."""
    if session.get_bind().dialect.name == "sqlite":
        # Julian days, since unixepoch() gives whole seconds before SQLite 3.42.
        statement = "SELECT CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
    else:
        statement = "SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)"
    return int(session.execute(text(statement)).scalar_one())


class Database:
    """A pool of connections and its transactions. Safe to share between threads."""

    def __init__(self, url: str, clock: Clock = database_clock) -> None:
        self.engine = _create_engine(url)
        self._writing = self.engine.execution_options(**{_WRITES: True})
        self._clock = clock

    def now(self, session: Session) -> int:
        """Milliseconds since the epoch by the injected clock."""
        return self._clock(session)

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A transaction that writes: committed at the end of the block, rolled back when it raises."""
        with Session(self._writing, expire_on_commit=False) as session, session.begin():
            yield session

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A transaction that only reads, from one snapshot."""
        with Session(self.engine, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Closes every pooled connection."""
        self.engine.dispose()


def _create_engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(parsed, pool_pre_ping=True, pool_recycle=1800)
    if parsed.database and parsed.database != ":memory:":
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(parsed)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # Without this, the driver opens transactions by itself, and only before writes.
    connection.isolation_level = None
    cursor = connection.cursor()
    # busy_timeout first: switching to WAL takes a lock too.
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    # A 202 is a promise that survives a power cut.
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A deferred transaction that turns writer fails at once when another writer came between, busy_timeout or not.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
