"""The commands `backup`, which works while the service runs, and `restore`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.terminal import CliError, ExitCode, prints_errors

if TYPE_CHECKING:
    from service.backup.manifest import Manifest
    from service.config.settings import Settings

Directory = Annotated[Path, typer.Argument(help="A new or empty directory.", show_default=False)]


@prints_errors
def backup(directory: Directory) -> None:
    """Copy the database and its results, with checksums. The service may run during the backup."""
    from service.backup.backup import make_backup
    from service.cli.database import opened_database
    from service.cli.preparation import read_settings
    from service.client.text import amount

    settings = read_settings()
    with opened_database(settings) as database, errors_as_cli_errors():
        manifest = make_backup(database, settings.results_dir, directory.absolute(), settings.backup.postgresql_bin)
    typer.echo(f"Copied {description(manifest)} to {directory}.")
    removed = manifest.results_missing - manifest.results_lost
    if removed:
        typer.echo(f"Results that were removed before they could be copied: {removed:,}.")
    streams = manifest.rows.get("streams", 0)
    if streams:
        typer.echo(
            f"State and results of {amount(streams, 'streaming job')} were not copied: after a restore, these jobs are "
            "stopped, and start from scratch when they are resumed."
        )
    if manifest.results_lost:
        raise CliError(
            f"{amount(manifest.results_lost, 'result')} of jobs not found in {settings.results_dir}",
            "Check that this is the results directory of the service. The backup is complete except for them.",
            code=ExitCode.FAILED,
        )


@contextmanager
def errors_as_cli_errors() -> Iterator[None]:
    """Converts errors of backups and of the file system into CliError."""
    from service.backup.manifest import BackupError, DamagedBackupError

    try:
        yield
    except DamagedBackupError as error:
        raise CliError(str(error), error.advice, code=ExitCode.FAILED) from None
    except BackupError as error:
        raise CliError(str(error), error.advice, code=ExitCode.MISSING) from None
    except OSError as error:
        raise CliError(f"{error.filename or 'the copy'}: {error.strerror or error}", code=ExitCode.MISSING) from None


def description(manifest: Manifest) -> str:
    """Returns a short description of a backup's content."""
    from service.client.text import amount, size

    jobs, results = amount(manifest.rows["jobs"], "job"), amount(manifest.results, "result")
    return f"{jobs} and {results} ({size(manifest.results_bytes)}) at revision {manifest.revision} ({manifest.tool})"


BackupDirectory = Annotated[Path, typer.Argument(help="Directory of the backup.", show_default=False)]
Check = Annotated[bool, typer.Option("--check", help="Only check that the backup is complete and undamaged.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a database that contains jobs.")]


@prints_errors
def restore(directory: BackupDirectory, check: Check = False, force: Force = False) -> None:
    """Restore database and results. Stop the API and all workers first. A damaged backup changes nothing."""
    from service.backup.backup import check_backup
    from service.cli.preparation import read_settings

    settings = read_settings()
    if check:
        with errors_as_cli_errors():
            typer.echo(f"The backup is complete: {description(check_backup(directory))}.")
        return
    _restore(settings, directory, force=force)


def _restore(settings: Settings, directory: Path, *, force: bool) -> None:
    from service.backup.backup import restore_backup
    from service.cli.database import opened_database
    from service.cli.preparation import locked, prepare_directories
    from service.jobs.readiness import worker_silence_ms

    prepare_directories(settings)
    with locked(settings.state_dir), opened_database(settings) as database, errors_as_cli_errors():
        manifest = restore_backup(
            directory.absolute(),
            database,
            settings.results_dir,
            settings.backup.postgresql_bin,
            silence_ms=worker_silence_ms(settings),
            replace=force,
        )
    typer.echo(f"Restored {description(manifest)}. Start the API and the workers.")
