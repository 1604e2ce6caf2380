"""The commands `migrate` and `purge`, and the database for the other commands: opening it, its schema, and advice on
its errors.

`up` and `demo` migrate the database themselves. Workers purge every hour by the retention settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.terminal import CliError, ExitCode, prints_errors

if TYPE_CHECKING:
    from service.config.settings import Settings
    from service.results.purge import Limits, Purged
    from service.store.session import Database

_URL = "EVENKEEL_DATABASE_URL"
_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("password authentication failed", "no password supplied", 'role "'),
        f"Correct user and password in {_URL} (special characters as %XX), or EVENKEEL_DATABASE_PASSWORD.",
    ),
    (("pg_hba.conf",), "Add a line to the server's pg_hba.conf that allows this user to connect from this machine."),
    (("does not exist",), f"Create the database (CREATE DATABASE …), or correct its name in {_URL}."),
    (("connection refused",), f"Start PostgreSQL, or correct host and port in {_URL}."),
    (
        ("invalid response", "expected authentication request", "unsupported protocol"),
        f"The server at this address is probably not PostgreSQL: correct host and port in {_URL}.",
    ),
    (
        ("timeout expired", "server closed the connection"),
        f"Check that the server is PostgreSQL and accepts connections, or correct {_URL}.",
    ),
    (("resolve host", "translate host name", "name or service"), f"Correct the host's name in {_URL}."),
    (
        ("too many clients", "remaining connection slots"),
        "Raise max_connections of the server, or run fewer processes.",
    ),
    (("permission denied",), "Make the user the owner of the database, or allow it to create tables in its schema."),
    (("unable to open database file",), f"Create its directory, writable for this user, or correct {_URL}."),
    (("file is not a database",), f"Move the file away, or correct {_URL}."),
    (("lock timeout",), "Another session, such as a backup, holds a lock on a table: try again after it has ended."),
    (("readonly", "read-only"), "Make it writable for this user."),
)
"""Advice by words of the driver's message; the first match is used."""

_OTHER_ADVICE = f"Check {_URL}, or leave it unset for SQLite in the state directory."

OlderThan = Annotated[
    str | None,
    typer.Option(help="Remove jobs that ended longer ago, such as 30d or 12h. Default: retention settings."),
]
ResultsOnly = Annotated[bool, typer.Option("--results-only", help="Remove results and keep the jobs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a line.")]


@prints_errors
def migrate(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit with 1 if the schema is incomplete or differs.")
    ] = False,
    back_to: Annotated[
        str,
        typer.Option("--downgrade", metavar="REVISION", help="Revert migrations after REVISION; base: all."),
    ] = "",
    yes: Annotated[
        bool, typer.Option("--yes", help="With --downgrade: accept the loss of data that REVISION cannot store.")
    ] = False,
) -> None:
    """Migrate the database to the current schema."""
    from service.cli.preparation import read_settings

    if check and back_to:
        raise CliError("--check conflicts with --downgrade", "Leave one of them out.", code=ExitCode.USAGE)
    settings = read_settings()
    if check:
        typer.echo(check_schema(settings))
    elif back_to:
        typer.echo(downgrade_database(settings, back_to, sure=yes))
    else:
        typer.echo(upgrade_database(settings))


def upgrade_database(settings: Settings) -> str:
    """Applies missing migrations and returns a message with the revision.

    Raises CliError if the database is unreachable, or if its schema is newer and incompatible with this version.
    """
    from service.store.migrate import SchemaState, head_revision, upgrade

    with opened_database(settings) as database:
        found = upgrade(database)
    if found.state is SchemaState.COMPATIBLE:
        return _newer(found.revision, head_revision())
    return f"The database is at revision {head_revision()}."


def downgrade_database(settings: Settings, revision: str, *, sure: bool) -> str:
    """Reverts every later migration and returns a message with the revision. Raises CliError, also unless `sure`."""
    from service.store.migrate import downgrade

    if not sure:
        raise CliError(
            f"the downgrade to {revision} deletes "
            + ("all data" if revision == "base" else "the data that only later revisions store"),
            "Stop the service, make a backup (`evenkeel backup`), then repeat the command with --yes.",
            code=ExitCode.USAGE,
        )
    with opened_database(settings) as database:
        downgrade(database, revision)
    return "The database is empty." if revision == "base" else f"The database is at revision {revision}."


def check_schema(settings: Settings) -> str:
    """Returns a message that the schema is correct. Raises CliError if it is incomplete or differs, or if the database
    is unreachable.
    """
    from service.store.migrate import SchemaMismatchError, SchemaState, check_drift, head_revision, read_schema
    from service.store.migrate import require_current as require

    with opened_database(settings) as database:
        try:
            require(database)
        except SchemaMismatchError as error:
            raise CliError(str(error), code=ExitCode.FAILED) from None
        found = read_schema(database)
        if found.state is SchemaState.COMPATIBLE:
            return _newer(found.revision, head_revision())
        drift = check_drift(database)
    if drift:
        raise CliError(
            f"the tables of the database differ from its revision {found.revision}",
            "They were changed manually. Undo the changes, or restore a backup.",
            code=ExitCode.FAILED,
            details="\n".join(drift),
        )
    return f"The database is at revision {found.revision}, and its tables match."


def require_schema(settings: Settings) -> None:
    """Raises CliError unless the database answers and its schema is compatible with this version."""
    from service.store.migrate import require_current

    with opened_database(settings) as database:
        require_current(database)


@contextmanager
def opened_database(settings: Settings) -> Iterator[Database]:
    """Opens the database and closes it at the end of the block. Raises database errors of the block as CliError."""
    from service.store.session import Database

    try:
        with closing(Database(settings.database_url, settings=settings.database)) as database:
            yield database
    except database_errors() as error:
        raise CliError(*explain_database_error(error), code=ExitCode.MISSING) from None


def database_errors() -> tuple[type[Exception], ...]:
    """Returns the errors of opening and querying a database that the operator can fix."""
    from sqlalchemy.exc import SQLAlchemyError

    from service.store.migrate import SchemaMismatchError
    from service.store.session import DatabaseUrlError

    return SQLAlchemyError, OSError, SchemaMismatchError, DatabaseUrlError


def explain_database_error(error: Exception) -> tuple[str, str]:
    """Returns what is wrong with the database, and advice; the advice is empty if the message contains it."""
    from sqlalchemy.exc import DBAPIError

    from service.store.migrate import SchemaMismatchError
    from service.store.session import DatabaseUrlError, sqlstate

    if isinstance(error, SchemaMismatchError):
        return str(error), ""
    if isinstance(error, DatabaseUrlError):
        return str(error), f"Correct {_URL}."
    cause, state = (error.orig, sqlstate(error)) if isinstance(error, DBAPIError) else (None, "")
    lines = str(cause or error).strip().splitlines() or [type(error).__name__]
    reason = f"{lines[0]} ({state})" if state else lines[0]
    words = reason.lower()
    advice = next((advice for parts, advice in _ADVICE if any(part in words for part in parts)), _OTHER_ADVICE)
    return f"the database cannot be used: {reason}", advice


def _newer(revision: str | None, head: str) -> str:
    return (
        f"The database is at revision {revision} of a newer version of Evenkeel, which is compatible with this version "
        f"({head}). Nothing was changed."
    )


@prints_errors
def purge(
    older_than: OlderThan = None, results_only: ResultsOnly = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Remove finished jobs, results and expired keys that are past their retention. Running jobs are kept."""
    import json
    from dataclasses import asdict

    from service.cli.preparation import read_settings

    settings = read_settings()
    purged = run_purge(settings, _limits(settings, older_than, results_only), dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps({**asdict(purged), "dry_run": dry_run}))
    else:
        typer.echo(_sentence(purged, "Would remove" if dry_run else "Removed"))


def run_purge(settings: Settings, limits: Limits, *, dry_run: bool) -> Purged:
    """Removes or, with `dry_run`, only counts, and returns the totals.

    Raises CliError if the database is unreachable or has another version's schema.
    """
    from service.results.purge import purge_with_pauses, would_purge
    from service.store.migrate import require_current

    with opened_database(settings) as database:
        require_current(database)
        if dry_run:
            return would_purge(database, settings.results_dir, settings.streams_dir, limits)
        return purge_with_pauses(database, settings.results_dir, settings.streams_dir, limits)


def _limits(settings: Settings, older_than: str | None, results_only: bool) -> Limits:
    from service.contract.model import parse_duration
    from service.results.purge import Limits

    configured = Limits.of(settings.retention)
    if older_than is None:
        return Limits(None, configured.results_ms) if results_only else configured
    try:
        milliseconds = round(parse_duration(older_than).total_seconds() * 1000)
    except ValueError as error:
        raise CliError(f"--older-than {older_than}: {error}", code=ExitCode.USAGE) from None
    return Limits(None, milliseconds) if results_only else Limits(milliseconds, None)


def _sentence(purged: Purged, verb: str) -> str:
    from service.client.text import amount, size

    return (
        f"{verb} {amount(purged.jobs, 'job')}, {amount(purged.results, 'result')}, "
        f"{amount(purged.leftovers, 'leftover directory', 'leftover directories')} ({size(purged.bytes)}) "
        f"and {amount(purged.keys, 'expired key')}."
    )
