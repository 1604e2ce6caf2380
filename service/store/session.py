"""Connections, transactions and the clock. Nobody commits but `Database.write`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.engine import URL, Connection
from sqlalchemy.orm import Session

_WRITES = "evenkeel_writes"
_BUSY_TIMEOUT_MS = 10_000
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_POSTGRESQL_OPTIONS: Mapping[str, str | int] = {
    # A server that went away without a word must not keep a thread, and with it a lease or a request.
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "options": "-c statement_timeout=30000 -c lock_timeout=10000",
}

NO_SYNC: Mapping[str, bool] = {"synchronize_session": False}
"""Execution options of statements that change rows of which the session holds no objects."""

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

    def __init__(self, url: str, clock: Clock = database_clock, *, connections: int = 5) -> None:
        """Keeps `connections` open; ten more for a moment where all are taken."""
        self.engine = _create_engine(url, connections)
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


def json_text(value: object) -> str:
    """JSON for a column. U+0000, which PostgreSQL stores in no text, becomes U+FFFD."""
    return _NUL.sub(r"\1\\ufffd", json.dumps(value))


def _create_engine(url: str, connections: int) -> Engine:
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return create_engine(
            parsed,
            pool_size=connections,
            pool_pre_ping=True,
            pool_recycle=1800,
            connect_args=connect_options(parsed),
            json_serializer=json_text,
        )
    if parsed.database and parsed.database != ":memory:":
        Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(parsed, pool_size=connections, json_serializer=json_text)
    else:
        engine = create_engine(parsed, json_serializer=json_text)
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def connect_options(url: URL) -> dict[str, str | int]:
    """What psycopg is told beside the URL, whose own options stay; nothing for other drivers."""
    if url.get_driver_name() != "psycopg":
        return {}
    return {name: value for name, value in _POSTGRESQL_OPTIONS.items() if name not in url.query}


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
