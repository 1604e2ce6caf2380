"""Reads of a few columns that run all the time, on a connection that stays open and with prepared statements. A
connection from the pool and a session would cost several times what such a read costs.

SQLite is a local file, and its readers wait for no writer: the event loop runs these reads itself, since a thread would
cost more. PostgreSQL answers over a network, so its reads need a thread. There, one statement reads many jobs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import psycopg
from sqlalchemy import BigInteger, Select, String, any_, bindparam, cast, func
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import psycopg as psycopg_dialect
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.store.jobs import STATE_OF_ONE, STATES
from service.store.session import RECYCLE_SECONDS, Database
from service.store.tables import JobRow
from service.store.workers import LISTENED_TO, names_in


@dataclass(slots=True)
class JobState:
    """The columns of a job that decide whether it has changed, as `service.store.jobs.STATE_OF_ONE` returns them."""

    id: str
    tenant: str
    version: int
    updated_at: int
    status: str
    queue: str
    lease_expires_at: int | None
    next_run_at: int | None


class _Prepared:
    """A statement in the SQL of SQLite. Its values are text and integers, which need no conversion."""

    def __init__(self, statement: Select[*tuple[Any, ...]]) -> None:
        compiled = statement.compile(dialect=sqlite.dialect(), compile_kwargs={"render_postcompile": True})
        self._sql = str(compiled)
        self._constants = compiled.params
        self._names = tuple(compiled.positiontup or ())

    def run(self, connection: sqlite3.Connection, **given: int | str) -> list[Any]:
        values = {**self._constants, **given}
        return connection.execute(self._sql, [values[name] for name in self._names]).fetchall()


_STATE = _Prepared(STATE_OF_ONE)
_QUEUES = _Prepared(LISTENED_TO)


class QuickReads:
    """An open connection for such reads. A read that would wait for a lock raises instead. Belongs to one thread.

    All reads raise errors of sqlite3.
    """

    def __init__(self, database: Database, session: Session, connection: sqlite3.Connection) -> None:
        self.session = session
        """The session of the connection, for statements that are not prepared."""
        self._database = database
        self._connection = connection

    def now(self) -> int:
        """Returns milliseconds since the epoch by the database's clock."""
        return self._database.now(self.session)

    def changes(self) -> int:
        """Returns a number that differs from that of an earlier call if another connection has committed meanwhile."""
        (number,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(number)

    def job_state(self, job_id: str) -> JobState | None:
        """Returns the state of a job of any tenant; None if it does not exist."""
        rows = _STATE.run(self._connection, job_id=job_id)
        return JobState(*rows[0]) if rows else None

    def queues_listened_to(self, since: int) -> frozenset[str]:
        """Returns the same as `service.store.workers.queues_listened_to`."""
        return names_in(queues for (queues,) in _QUEUES.run(self._connection, since=since))


class _PostgresStatement:
    """A statement in the SQL of PostgreSQL. psycopg prepares it after a few executions."""

    def __init__(self, statement: Select[*tuple[Any, ...]]) -> None:
        dialect = psycopg_dialect.dialect()  # type: ignore[no-untyped-call]
        compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
        self._sql = str(compiled).encode()
        self._constants = compiled.params

    def run(self, connection: psycopg.Connection[Any], **given: Any) -> list[Any]:
        return connection.execute(self._sql, {**self._constants, **given}).fetchall()


_POSTGRES_STATES = _PostgresStatement(
    STATES.add_columns(
        cast(func.extract("epoch", func.clock_timestamp()) * 1000, BigInteger), func.pg_is_in_recovery()
    ).where(JobRow.id == any_(bindparam("job_ids", type_=ARRAY(String))))
)
_POSTGRES_QUEUES = _PostgresStatement(LISTENED_TO)


class PostgresReads:
    """A connection to PostgreSQL for such reads, opened with the first one. For one thread at a time.

    All reads raise errors of psycopg and SQLAlchemy. After an error, the next read opens a new connection.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._open = ExitStack()
        self._connection: psycopg.Connection[Any] | None = None
        self._opened = 0.0

    def job_states(self, job_ids: Collection[str]) -> tuple[list[JobState], int]:
        """Returns the states of those of these jobs that exist, of any tenant, and the database's time in milliseconds;
        no state and 0 if none exists.
        """
        rows = self._rows(_POSTGRES_STATES, job_ids=list(job_ids))
        if any(row[-1] for row in rows):
            # The server has become a standby, which may not have the last changes of its primary.
            self.close()
            return [], 0
        return [JobState(*row[:-2]) for row in rows], rows[0][-2] if rows else 0

    def queues_listened_to(self, since: int) -> frozenset[str]:
        """Returns the same as `service.store.workers.queues_listened_to`."""
        return names_in(queues for (queues,) in self._rows(_POSTGRES_QUEUES, since=since))

    def close(self) -> None:
        """Closes the connection. The next read opens another one."""
        self._connection = None
        self._open.close()

    def _rows(self, statement: _PostgresStatement, **values: Any) -> list[Any]:
        try:
            return statement.run(self._connected(), **values)
        except (psycopg.Error, SQLAlchemyError):
            self.close()
            raise

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is not None and monotonic() - self._opened > RECYCLE_SECONDS:
            self.close()
        if self._connection is None:
            session = self._open.enter_context(self._database.look())
            # No longer a connection of the pool, which may be small; closed together with the session.
            session.connection().detach()
            connection = session.connection().connection.dbapi_connection
            if not isinstance(connection, psycopg.Connection):
                raise TypeError(f"not a connection of psycopg: {connection!r}")
            self._connection, self._opened = connection, monotonic()
        return self._connection


@contextmanager
def open_quick_reads(database: Database) -> Iterator[QuickReads | None]:
    """Opens the connection, and closes it at the end of the block. None on PostgreSQL."""
    if database.engine.dialect.name != "sqlite":
        yield None
        return
    with database.look() as session:
        # No longer a connection of the pool, which may be small; closed together with the session.
        session.connection().detach()
        connection = session.connection().connection.dbapi_connection
        if not isinstance(connection, sqlite3.Connection):
            raise TypeError(f"not a connection of sqlite3: {connection!r}")
        connection.execute("PRAGMA busy_timeout = 0")
        yield QuickReads(database, session, connection)
