"""The command `purge`. Workers purge every hour by the retention settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from service.client.terminal import CliError, ExitCode, prints_errors

if TYPE_CHECKING:
    from service.config.settings import Settings
    from service.results.purge import Limits, Purged

OlderThan = Annotated[
    str | None,
    typer.Option(help="Remove jobs that ended longer ago, such as 30d or 12h. Default: retention settings."),
]
ResultsOnly = Annotated[bool, typer.Option("--results-only", help="Remove results and keep the jobs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be removed, and remove nothing.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object instead of a line.")]


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
    from service.cli.database import opened_database
    from service.results.purge import purge_politely, would_purge
    from service.store.migrate import require_current

    with opened_database(settings) as database:
        require_current(database)
        if dry_run:
            return would_purge(database, settings.results_dir, settings.streams_dir, limits)
        return purge_politely(database, settings.results_dir, settings.streams_dir, limits)


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
    from service.client.terminal import amount, size

    return (
        f"{verb} {amount(purged.jobs, 'job')}, {amount(purged.results, 'result')}, "
        f"{amount(purged.leftovers, 'leftover directory', 'leftover directories')} ({size(purged.bytes)}) "
        f"and {amount(purged.keys, 'expired key')}."
    )
