"""Empty migrated databases, one for each test: copies of a database that is migrated once in a test run.

To copy and drop a database, PostgreSQL needs 0.2 s of processor time. Therefore, a database is emptied after a test and
used again, unless its schema or its settings changed.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from sqlalchemy import event, func, select
from sqlalchemy.engine import Connection

from service.store.migrate import upgrade
from service.store.session import Database
from service.store.tables import Base
from tests.support.servers import PostgresServer

SQLITE = "sqlite"
POSTGRESQL = "postgresql"

_TEMPLATE = "migrated_template"

_SHAPE = """
WITH tables AS (SELECT * FROM pg_class WHERE relnamespace = 'public'::regnamespace)
SELECT md5(string_agg(part, E'\\n' ORDER BY part)) FROM (
    SELECT concat_ws(' ', relname, relkind, relowner, relacl, reloptions, relpersistence, relrowsecurity) FROM tables
    UNION ALL SELECT concat_ws(' ', attrelid, attnum, attname, atttypid, atttypmod, attnotnull, attisdropped, attacl)
        FROM pg_attribute WHERE attnum > 0 AND attrelid IN (SELECT oid FROM tables)
    UNION ALL SELECT concat_ws(' ', adrelid, adnum, pg_get_expr(adbin, adrelid)) FROM pg_attrdef
    UNION ALL SELECT concat_ws(' ', conrelid, conname, convalidated, pg_get_constraintdef(oid)) FROM pg_constraint
        WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT concat_ws(' ', indisvalid, pg_get_indexdef(indexrelid)) FROM pg_index
        WHERE indexrelid IN (SELECT oid FROM tables)
    UNION ALL SELECT concat_ws(' ', tgrelid, tgname, tgenabled, pg_get_triggerdef(oid)) FROM pg_trigger
    UNION ALL SELECT concat_ws(' ', seqrelid, seqtypid, seqstart, seqincrement, seqmax, seqmin) FROM pg_sequence
    UNION ALL SELECT concat_ws(' ', nspname, nspowner, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_(toast_)?temp_'
    UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT concat_ws(' ', datdba, datacl, datconnlimit, datallowconn) FROM pg_database
        WHERE datname = current_database()
    UNION ALL SELECT concat_ws(' ', setrole, setconfig) FROM pg_db_role_setting
        WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
) AS parts (part)
"""
"""Returns a hash of everything in a database except its rows: schema, owners, privileges and settings."""


class SqliteDatabases:
    """Copies of a migrated SQLite file."""

    def __init__(self, directory: Path) -> None:
        self._template = directory / "template.db"
        _migrate(f"sqlite:///{self._template}")

    @contextmanager
    def new(self, directory: Path) -> Iterator[str]:
        """Yields the URL of a new database at `state/evenkeel.db` below `directory`, the default for a state directory
        `state`."""
        path = directory / "state" / "evenkeel.db"
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(self._template, path)
        yield f"sqlite:///{path}"


class PostgresDatabases:
    """Clones of a migrated database of a server, each with a unique name."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._names = (f"test_{number}" for number in itertools.count(1))
        self._emptied: list[str] = []
        _migrate(server.create_database(_TEMPLATE))
        with server.connect(_TEMPLATE) as connection:
            self._shape = _shape(connection)
            self._rows = {table: _rows(connection, table) for table in _tables(connection)}

    @contextmanager
    def new(self) -> Iterator[str]:
        """Yields the URL of an empty database. Its name is never used again, even if a process still uses it."""
        if self._emptied:
            name = self._emptied.pop()
            url = self._server.url(name)
        else:
            name = next(self._names)
            url = self._server.create_database(name, _TEMPLATE)
        try:
            yield url
        finally:
            self._take_back(name)

    def _take_back(self, name: str) -> None:
        # Renamed first, so that a process that still has the old name cannot write into another test's database.
        left = next(self._names)
        try:
            self._server.rename_database(name, left)
        except (psycopg.errors.ObjectInUse, psycopg.errors.InvalidCatalogName):
            # A process has reconnected, or the test has dropped the database.
            self._server.drop_database(name)
            return
        if self._is_emptied(left):
            self._emptied.append(left)
        else:
            self._server.drop_database(left)

    def _is_emptied(self, name: str) -> bool:
        """Restores the rows of the template; False if the database differs in anything else."""
        with self._server.connect(name) as connection:
            if _shape(connection) != self._shape:
                return False
            for table in _tables(connection, "pg_relation_size(oid) > 0"):
                rows = self._rows[table]
                if not rows or _rows(connection, table) != rows:
                    _fill(connection, table, rows)
            connection.execute("SELECT setval(seqrelid, seqstart, false) FROM pg_sequence")
        return True


def count_rows(database: Database, table: type[Base]) -> int:
    """Counts the rows of a table."""
    with database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def lose_answer_of_commit(database: Database, *, done: bool = True) -> None:
    """Closes the connection of the next commit: after the server has committed if `done`, otherwise before."""

    def lose(connection: Connection) -> None:
        if done:
            connection.connection.commit()
        connection.connection.dbapi_connection.close()  # type: ignore[union-attr]

    event.listen(database.engine, "commit", lose, once=True)


def _shape(connection: psycopg.Connection) -> Any:
    return connection.execute(_SHAPE).fetchall()


def _tables(connection: psycopg.Connection, condition: LiteralString = "true") -> list[str]:
    found = connection.execute(
        f"SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND {condition}"
    )
    return [name for (name,) in found]


def _rows(connection: psycopg.Connection, table: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table))).fetchall()


def _fill(connection: psycopg.Connection, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Replaces the rows of a table by `rows`."""
    connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(sql.Identifier(table)))
    for row in rows:
        values = sql.SQL(", ").join(map(sql.Literal, row))
        connection.execute(sql.SQL("INSERT INTO {} VALUES ({})").format(sql.Identifier(table), values))


def _migrate(url: str) -> None:
    with closing(Database(url)) as database:
        upgrade(database)
