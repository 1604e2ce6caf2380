"""`evenkeel migrate`: brings the database's schema up to date. `up` and `demo` do so by themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from service.cli.errors import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.settings import Settings


@told_plainly
def migrate() -> None:
    """Bring the database's schema up to date."""
    from service.cli.configuration import read_settings

    typer.echo(f"The database is at revision {upgrade_database(read_settings())}.")


def upgrade_database(settings: Settings) -> str:
    """Applies what is missing and gives the revision. Raises CliError where the database is away or newer than this
    code."""
    from sqlalchemy.exc import SQLAlchemyError

    from service.store import migrate as schema
    from service.store.session import Database

    try:
        database = Database(settings.database_url)
        try:
            schema.upgrade(database)
        finally:
            database.close()
    except schema.SchemaMismatchError as error:
        raise CliError(str(error), code=ExitCode.MISSING) from None
    except (SQLAlchemyError, OSError) as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        raise CliError(
            f"the database cannot be used: {reason}",
            "Check EVENKEEL_DATABASE_URL, or leave it unset for SQLite in the state directory.",
            code=ExitCode.MISSING,
        ) from None
    return schema.head_revision()
