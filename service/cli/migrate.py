"""`evenkeel migrate`: brings the database's schema up to date. `up` and `demo` do so by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import typer

from service.cli.errors import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.session import Database


@told_plainly
def migrate() -> None:
    """Bring the database's schema up to date."""
    from service.cli.configuration import read_settings

    typer.echo(f"The database is at revision {upgrade_database(read_settings())}.")


def upgrade_database(settings: Settings) -> str:
    """Applies what is missing and gives the revision. Raises CliError where the database is away or newer than this
    code."""
    from service.store.migrate import head_revision, upgrade

    with opened_database(settings) as database:
        upgrade(database)
    return head_revision()


def require_schema(settings: Settings) -> None:
    """Raises CliError unless the database answers and has the schema that this code was written for."""
    from service.store.migrate import require_current

    with opened_database(settings) as database:
        require_current(database)


@contextmanager
def opened_database(settings: Settings) -> Iterator[Database]:
    """The database, closed at the end of the block. What is wrong with it there is raised as CliError."""
    from sqlalchemy.exc import SQLAlchemyError

    from service.store.migrate import SchemaMismatchError
    from service.store.session import Database

    try:
        with closing(Database(settings.database_url)) as database:
            yield database
    except SchemaMismatchError as error:
        raise CliError(str(error), code=ExitCode.MISSING) from None
    except (SQLAlchemyError, OSError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise CliError(
            f"the database cannot be used: {reason}",
            "Check EVENKEEL_DATABASE_URL, or leave it unset for SQLite in the state directory.",
            code=ExitCode.MISSING,
        ) from None
