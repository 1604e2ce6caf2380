"""Migrates the database's schema to the revision of this code, and checks which revision it has.

The revisions are in `migrations/` at the top of a checkout; in an installed wheel, in `_migrations` in this
package.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import structlog
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import OperationalError

from service.store.session import Database, remove_time_limits, sqlstate
from service.store.tables import Base, CompatibleRevisionRow

_ADVISORY_LOCK = 0x65766B6C
"""An arbitrary number, the same in every process: the process that has this lock migrates."""

_LOCK_MS = 2000
"""How long a migration waits for a table. Statements that need the table later wait with it."""

_TRIES = 40
_LONGEST_PAUSE_SECONDS = 8.0
_RETRYABLE = frozenset({"55P03", "40P01"})
"""lock_not_available, deadlock_detected."""

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class SchemaMismatchError(Exception):
    """The database's schema does not work with this code. The message says what to do."""


class SchemaState(StrEnum):
    """How a database's schema compares with this code."""

    EMPTY = "empty"
    OUTDATED = "outdated"
    CURRENT = "current"
    COMPATIBLE = "compatible"
    """Newer than the code, and listed in the database as compatible with it."""
    TOO_NEW = "too_new"


@dataclass(frozen=True)
class Schema:
    """A database's revision, None for an empty one, and how it compares with this code."""

    revision: str | None
    state: SchemaState


def read_schema(database: Database) -> Schema:
    """Returns the database's revision and how it compares with this code."""
    with database.read() as session:
        return _schema(session.connection())


def upgrade(database: Database, *, pause: Callable[[float], object] = time.sleep) -> Schema:
    """Applies every missing revision in one transaction, one process at a time. Returns the schema before.

    If another transaction uses a table (a backup reads all of them), the migration tries again for some minutes, with
    pauses in which others can use the table. A newer database that is compatible stays as it is. Raises
    SchemaMismatchError for one that is not.
    """

    def apply(connection: Connection) -> Schema:
        found = _schema(connection)
        _refuse_too_new(found)
        if found.state is not SchemaState.COMPATIBLE:
            command.upgrade(alembic_config(connection), "head")
        return found

    return _run_exclusively(database, apply, pause)


def downgrade(database: Database, revision: str, *, pause: Callable[[float], object] = time.sleep) -> None:
    """Reverts every revision after `revision` in one transaction, with the data of their tables and columns; `base`
    reverts all. Waits for tables as `upgrade` does.

    Raises SchemaMismatchError if `revision` is not older than the database's, or this code does not have the latter.
    """

    def revert(connection: Connection) -> None:
        found = _schema(connection).revision
        if found is not None and not is_known(found):
            raise SchemaMismatchError(
                f"The database is at revision {found}, which only the newer version of Evenkeel that created it can "
                "revert: run its `evenkeel migrate --downgrade`."
            )
        older = _older(found)
        if revision not in older:
            known = ", ".join(older) or "none"
            raise SchemaMismatchError(
                f"The database is at revision {found or 'base'} and cannot go back to {revision}. Older revisions: "
                f"{known}."
            )
        command.downgrade(alembic_config(connection), revision)

    _run_exclusively(database, revert, pause)


def head_revision() -> str:
    """Returns the revision of this code."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None  # noqa: S101 - there is a first revision
    return head


def is_known(revision: str) -> bool:
    """Returns whether this code has the revision: it is this version's own, or older."""
    return revision in {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def current_revision(database: Database) -> str | None:
    """Returns the database's revision; None for an empty one."""
    with database.read() as session:
        return _revision(session.connection())


def require_current(database: Database) -> None:
    """Raises SchemaMismatchError unless the database is at this code's revision, or at a newer compatible one."""
    found = read_schema(database)
    _refuse_too_new(found)
    if found.state in (SchemaState.EMPTY, SchemaState.OUTDATED):
        what = "has no tables yet" if found.revision is None else f"is at revision {found.revision}"
        raise SchemaMismatchError(f"The database {what}; this version needs {head_revision()}: run `evenkeel migrate`.")


def check_drift(database: Database) -> list[str]:
    """Returns the differences between a migrated database and the declared tables; empty if there are none."""
    with database.read() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"compare_type": True, "compare_server_default": True}
        )
        return [str(difference) for difference in compare_metadata(context, Base.metadata)]


def alembic_config(connection: Connection) -> Config:
    """Returns the configuration for Alembic's commands on `connection`, inside its transaction."""
    config = _config()
    config.attributes["connection"] = connection
    return config


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_script_directory()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option(
        "file_template",
        "%%(year)d_%%(month).2d_%%(day).2d_%%(slug)s",  # sorted by date
    )
    return config


def _script_directory() -> Path:
    packaged = Path(__file__).with_name("_migrations")
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "migrations"


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _schema(connection: Connection) -> Schema:
    revision, head = _revision(connection), head_revision()
    if revision is None:
        return Schema(None, SchemaState.EMPTY)
    if revision == head:
        return Schema(revision, SchemaState.CURRENT)
    if is_known(revision):
        return Schema(revision, SchemaState.OUTDATED)
    return Schema(revision, SchemaState.COMPATIBLE if _is_compatible(connection, head) else SchemaState.TOO_NEW)


def _is_compatible(connection: Connection, head: str) -> bool:
    table = CompatibleRevisionRow.__table__
    if not inspect(connection).has_table(CompatibleRevisionRow.__tablename__):
        return False
    found = select(table.c.revision).where(table.c.revision == head)
    return connection.execute(found).scalar_one_or_none() is not None


def _refuse_too_new(found: Schema) -> None:
    if found.state is SchemaState.TOO_NEW:
        raise SchemaMismatchError(
            f"The database is at revision {found.revision}, which is not compatible with this version: it was "
            "migrated by a newer version of Evenkeel. Upgrade this installation, or downgrade the database with the "
            f"newer version's `evenkeel migrate --downgrade {head_revision()}`."
        )


def _older(revision: str | None) -> list[str]:
    """Returns the revisions to which a database at `revision` can be downgraded, newest first."""
    if revision is None:
        return []
    older = ScriptDirectory.from_config(_config()).iterate_revisions(revision, "base")
    return [*(script.revision for script in older if script.revision != revision), "base"]


def _run_exclusively(database: Database, work: Callable[[Connection], T], pause: Callable[[float], object]) -> T:
    for tried in range(_TRIES):
        try:
            with database.write() as session:
                connection = session.connection()
                _lock_migrations(connection)
                return work(connection)
        except OperationalError as error:
            if sqlstate(error) not in _RETRYABLE or tried == _TRIES - 1:
                raise
            _log.warning("migration_waits_for_table", tries=tried + 1)
        pause(min(2.0**tried, _LONGEST_PAUSE_SECONDS))
    raise AssertionError("the last try returns or raises")


def _lock_migrations(connection: Connection) -> None:
    # On SQLite, the write transaction itself is the lock.
    if connection.dialect.name == "postgresql":
        # Another process's migration may take long, and so may this one.
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        remove_time_limits(connection)
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        # Statements that need a table for which a migration waits have to wait too, even if they only read.
        connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_MS}"))
