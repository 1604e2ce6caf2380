"""`evenkeel migrate`: brings the database's schema up to date, or back. `up` and `demo` bring it up by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.errors import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.settings import Settings
    from service.store.session import Database


@told_plainly
def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit 1 where something is missing or differs.")
    ] = False,
    back_to: Annotated[
        str, typer.Option("--downgrade", metavar="REVISION", help="Take back what came after REVISION; base: all.")
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="With --downgrade: lose the data that it has no room for.")
    ] = False,
) -> None:
    """Bring the database's schema up to date."""
    from service.cli.configuration import read_settings

    if check and back_to:
        raise CliError("--check changes nothing, and --downgrade does", "Give one of them.", code=ExitCode.USAGE)
    settings = read_settings()
    if check:
        typer.echo(check_schema(settings))
    elif back_to:
        typer.echo(downgrade_database(settings, back_to, sure=yes))
    else:
        typer.echo(upgrade_database(settings))


def upgrade_database(settings: Settings) -> str:
    """Applies what is missing and says where the database is then. Raises CliError where it is away, or newer than
    this code and of no use to it."""
    from service.store.migrate import Standing, head_revision, upgrade

    with opened_database(settings) as database:
        found = upgrade(database)
    if found.standing is Standing.SERVED:
        return _newer(found.revision, head_revision())
    return f"The database is at revision {head_revision()}."


def downgrade_database(settings: Settings, revision: str, *, sure: bool) -> str:
    """Takes back every later revision and says where the database is then. Raises CliError, also unless `sure`."""
    from service.store.migrate import downgrade

    if not sure:
        raise CliError(
            f"going back to {revision} loses what is stored only in later revisions"
            + (", which is everything" if revision == "base" else ""),
            "Stop the service, make a backup (`evenkeel backup`), and repeat this with --yes.",
            code=ExitCode.USAGE,
        )
    with opened_database(settings) as database:
        downgrade(database, revision)
    return "The database is empty." if revision == "base" else f"The database is at revision {revision}."


def check_schema(settings: Settings) -> str:
    """Says that all is well. Raises CliError with what is missing or differs, and where the database is away."""
    from service.store.migrate import SchemaMismatchError, Standing, check_drift, head_revision, read_schema
    from service.store.migrate import require_current as require

    with opened_database(settings) as database:
        try:
            require(database)
        except SchemaMismatchError as error:
            raise CliError(str(error), code=ExitCode.FAILED) from None
        found = read_schema(database)
        if found.standing is Standing.SERVED:
            return _newer(found.revision, head_revision())
        drift = check_drift(database)
    if drift:
        raise CliError(
            f"the database is at revision {found.revision}, and yet its tables differ from what that makes",
            "Somebody has changed them by hand. Change them back, or restore a backup.",
            code=ExitCode.FAILED,
            details="\n".join(drift),
        )
    return f"The database is at revision {found.revision}, and its tables are as they should be."


def require_schema(settings: Settings) -> None:
    """Raises CliError unless the database answers and has a schema that this code can work on."""
    from service.store.migrate import require_current

    with opened_database(settings) as database:
        require_current(database)


@contextmanager
def opened_database(settings: Settings) -> Iterator[Database]:
    """The database, closed at the end of the block. What is wrong with it there is raised as CliError."""
    from service.cli.database_faults import WORTH_TELLING, explain
    from service.store.session import Database

    try:
        with closing(Database(settings.database_url, settings=settings.database)) as database:
            yield database
    except WORTH_TELLING as error:
        raise CliError(*explain(error), code=ExitCode.MISSING) from None


def _newer(revision: str | None, head: str) -> str:
    return (
        f"The database is at revision {revision} of a newer version of Evenkeel, and serves this version ({head}) too: "
        "nothing was changed."
    )
