"""Brings the database's schema to the one that this code was written for, and says when it is another.

The revisions are in `migrations/` at the top of a checkout; in an installed wheel, in `_migrations` beside this module.
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

from service.store.session import Database, sqlstate, take_any_time
from service.store.tables import Base, CompatibleRevisionRow

_ADVISORY_LOCK = 0x65766B6C
"""Any number, the same in every process: who holds it migrates."""

_LOCK_MS = 2000
"""How long a migration waits for a table, and with it everybody who comes later."""

_TRIES = 40
_LONGEST_PAUSE_SECONDS = 8.0
_IN_THE_WAY = frozenset({"55P03", "40P01"})
"""lock_not_available, deadlock_detected."""

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class SchemaMismatchError(Exception):
    """The database's schema is not one that this code can work on; the message says what to do."""


class Standing(StrEnum):
    """How a database's schema and this code go together."""

    EMPTY = "empty"
    BEHIND = "behind"
    CURRENT = "current"
    SERVED = "served"
    """Newer than the code, and says itself that it serves this code still."""
    TOO_NEW = "too_new"


@dataclass(frozen=True)
class Schema:
    """The revision that a database is at, None for an empty one, and what that means to this code."""

    revision: str | None
    standing: Standing


def read_schema(database: Database) -> Schema:
    """How the database stands to this code."""
    with database.read() as session:
        return _schema(session.connection())


def upgrade(database: Database, *, pause: Callable[[float], object] = time.sleep) -> Schema:
    """Applies every missing revision in one transaction; gives what was found before. Processes take turns.

    A table that somebody else is at (a backup reads all of them) is tried again for some minutes, with pauses in which
    others get at it. Leaves a newer database that serves this code as it is. Raises SchemaMismatchError for one that
    does not.
    """

    def apply(connection: Connection) -> Schema:
        found = _schema(connection)
        _refuse_too_new(found)
        if found.standing is not Standing.SERVED:
            command.upgrade(alembic_config(connection), "head")
        return found

    return _in_turn(database, apply, pause)


def downgrade(database: Database, revision: str, *, pause: Callable[[float], object] = time.sleep) -> None:
    """Takes back, in one transaction, every revision after `revision`, with the data that only they have room for;
    `base` takes back all. Waits for tables as `upgrade` does.

    Raises SchemaMismatchError where `revision` is not behind the database's, or this code does not know how.
    """

    def take_back(connection: Connection) -> None:
        found = _schema(connection).revision
        if found is not None and not is_known(found):
            raise SchemaMismatchError(
                f"The database is at revision {found}, which only the newer version of Evenkeel that made it can take "
                "back: run its `evenkeel migrate --downgrade`."
            )
        behind = _behind(found)
        if revision not in behind:
            known = ", ".join(behind) or "none"
            raise SchemaMismatchError(
                f"The database is at revision {found or 'base'} and cannot go back to {revision}. Behind it: {known}."
            )
        command.downgrade(alembic_config(connection), revision)

    _in_turn(database, take_back, pause)


def head_revision() -> str:
    """The revision that this code was written for."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None  # noqa: S101 - there is a first revision
    return head


def is_known(revision: str) -> bool:
    """Whether this code has the revision: it is this version's own, or older."""
    return revision in {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def current_revision(database: Database) -> str | None:
    """The revision that the database is at; None for an empty one."""
    with database.read() as session:
        return _revision(session.connection())


def require_current(database: Database) -> None:
    """Raises SchemaMismatchError unless this code can work on the database: it is at this code's revision, or at a
    newer one that serves this code."""
    found = read_schema(database)
    _refuse_too_new(found)
    if found.standing in (Standing.EMPTY, Standing.BEHIND):
        what = "has no tables yet" if found.revision is None else f"is at revision {found.revision}"
        raise SchemaMismatchError(f"The database {what}; this version needs {head_revision()}: run `evenkeel migrate`.")


def check_drift(database: Database) -> list[str]:
    """What a migrated database lacks of the declared tables, or has beyond them; empty when they agree."""
    with database.read() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"compare_type": True, "compare_server_default": True}
        )
        return [str(difference) for difference in compare_metadata(context, Base.metadata)]


def alembic_config(connection: Connection) -> Config:
    """What Alembic's commands take, to work on `connection` and inside its transaction."""
    config = _config()
    config.attributes["connection"] = connection
    return config


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_script_directory()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option(
        "file_template",
        "%%(year)d_%%(month).2d_%%(day).2d_%%(slug)s",  # sorted by date, named by what they do
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
        return Schema(None, Standing.EMPTY)
    if revision == head:
        return Schema(revision, Standing.CURRENT)
    if is_known(revision):
        return Schema(revision, Standing.BEHIND)
    return Schema(revision, Standing.SERVED if _serves(connection, head) else Standing.TOO_NEW)


def _serves(connection: Connection, head: str) -> bool:
    table = CompatibleRevisionRow.__table__
    if not inspect(connection).has_table(CompatibleRevisionRow.__tablename__):
        return False
    found = select(table.c.revision).where(table.c.revision == head)
    return connection.execute(found).scalar_one_or_none() is not None


def _refuse_too_new(found: Schema) -> None:
    if found.standing is Standing.TOO_NEW:
        raise SchemaMismatchError(
            f"The database is at revision {found.revision}, which does not serve this version any more: it was "
            "migrated by a newer version of Evenkeel. Upgrade this installation, or take the database back with the "
            f"newer one's `evenkeel migrate --downgrade {head_revision()}`."
        )


def _behind(revision: str | None) -> list[str]:
    """Where a database at `revision` can go back to, nearest first."""
    if revision is None:
        return []
    older = ScriptDirectory.from_config(_config()).iterate_revisions(revision, "base")
    return [*(script.revision for script in older if script.revision != revision), "base"]


def _in_turn(database: Database, work: Callable[[Connection], T], pause: Callable[[float], object]) -> T:
    for tried in range(_TRIES):
        try:
            with database.write() as session:
                connection = session.connection()
                _wait_for_turn(connection)
                return work(connection)
        except OperationalError as error:
            if sqlstate(error) not in _IN_THE_WAY or tried == _TRIES - 1:
                raise
            _log.warning("migration_waits_for_a_table", tries=tried + 1)
        pause(min(2.0**tried, _LONGEST_PAUSE_SECONDS))
    raise AssertionError("the last try returns or raises")


def _wait_for_turn(connection: Connection) -> None:
    # On SQLite the write transaction itself, begun immediately, is the lock.
    if connection.dialect.name == "postgresql":
        # Another process's upgrade may take its time, and so may this one.
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        take_any_time(connection)
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        # Whoever comes later, if only to read, waits behind a migration that waits for a table.
        connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_MS}"))
