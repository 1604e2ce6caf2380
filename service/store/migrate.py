"""Brings the database's schema to the one that this code was written for, and says when it is another.

The revisions are in `migrations/` at the top of a checkout; in an installed wheel, in `_migrations` beside this module.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import text
from sqlalchemy.engine import Connection

from service.store.session import Database
from service.store.tables import Base

_ADVISORY_LOCK = 0x65766B6C
"""Any number, the same in every process: who holds it migrates."""


class SchemaMismatchError(Exception):
    """The database's schema is not the one that this code was written for; the message says what to do."""


def upgrade(database: Database) -> None:
    """Applies every missing revision in one transaction. Processes that do so at once take turns.

    Raises SchemaMismatchError when the database is newer than the code.
    """
    with database.write() as session:
        connection = session.connection()
        _wait_for_turn(connection)
        _refuse_unknown(_revision(connection))
        command.upgrade(alembic_config(connection), "head")


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
    """Raises SchemaMismatchError unless the database is at this code's revision."""
    current = current_revision(database)
    _refuse_unknown(current)
    if current != head_revision():
        found = "has no tables yet" if current is None else f"is at revision {current}"
        raise SchemaMismatchError(
            f"The database {found}; this version needs {head_revision()}: run `evenkeel migrate`."
        )


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


def _refuse_unknown(revision: str | None) -> None:
    if revision is None:
        return
    try:
        ScriptDirectory.from_config(_config()).get_revision(revision)
    except CommandError as error:
        raise SchemaMismatchError(
            f"The database is at revision {revision}, which this version does not know: it was migrated by a newer "
            "version of Evenkeel. Upgrade this installation."
        ) from error


def _wait_for_turn(connection: Connection) -> None:
    # On SQLite the write transaction itself, begun immediately, is the lock.
    if connection.dialect.name == "postgresql":
        # Another process's upgrade may take its time, and so may this one.
        connection.execute(text("SET LOCAL lock_timeout = 0"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
