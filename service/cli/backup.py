"""`evenkeel backup`: copies database and results while the service runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.errors import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.backup.manifest import Manifest

Directory = Annotated[Path, typer.Argument(help="A new or empty directory.", show_default=False)]


@told_plainly
def backup(directory: Directory) -> None:
    """Copy the database and the results that it names, with their checksums. The service may run meanwhile."""
    from service.backup.make import make_backup
    from service.cli.amounts import amount
    from service.cli.configuration import read_settings
    from service.cli.migrate import opened_database

    settings = read_settings()
    with opened_database(settings) as database, told_as_command_errors():
        manifest = make_backup(database, settings.results_dir, directory.absolute(), settings.backup.postgresql_bin)
    typer.echo(f"Copied {description(manifest)} to {directory}.")
    removed = manifest.results_missing - manifest.results_lost
    if removed:
        typer.echo(f"{removed:,} results were removed before they could be copied.")
    streams = manifest.rows.get("streams", 0)
    if streams:
        typer.echo(
            f"State and results of {amount(streams, 'streaming job')} were left out: restored, a stream rests, "
            "and begins from scratch when it is resumed."
        )
    if manifest.results_lost:
        raise CliError(
            f"{manifest.results_lost:,} results that jobs name were not found in {settings.results_dir}",
            "Look whether that is the service's results directory, and whole. The backup is finished without them.",
            code=ExitCode.FAILED,
        )


@contextmanager
def told_as_command_errors() -> Iterator[None]:
    """Turns what backups raise, and errors of the file system, into CliError."""
    from service.backup.errors import BackupError, DamagedBackupError

    try:
        yield
    except DamagedBackupError as error:
        raise CliError(str(error), error.advice, code=ExitCode.FAILED) from None
    except BackupError as error:
        raise CliError(str(error), error.advice, code=ExitCode.MISSING) from None
    except OSError as error:
        raise CliError(f"{error.filename or 'the copy'}: {error.strerror or error}", code=ExitCode.MISSING) from None


def description(manifest: Manifest) -> str:
    """What a backup holds, in a few words."""
    from service.cli.amounts import amount, size

    jobs, results = amount(manifest.rows["jobs"], "job"), amount(manifest.results, "result")
    return f"{jobs} and {results} ({size(manifest.results_bytes)}) at revision {manifest.revision} ({manifest.tool})"
