"""`evenkeel restore`: puts back what `evenkeel backup` copied."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.backup import description, told_as_command_errors
from service.cli.errors import told_plainly

if TYPE_CHECKING:
    from service.settings import Settings

Directory = Annotated[Path, typer.Argument(help="Where `evenkeel backup` wrote to.", show_default=False)]
Check = Annotated[bool, typer.Option("--check", help="Only read the backup and tell whether it is whole.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a database that holds jobs.")]


@told_plainly
def restore(directory: Directory, check: Check = False, force: Force = False) -> None:
    """Put database and results back. Stop the API and all workers first. A damaged copy changes nothing."""
    from service.backup.restore import check_backup
    from service.cli.configuration import read_settings

    settings = read_settings()
    if check:
        with told_as_command_errors():
            typer.echo(f"The backup is whole: {description(check_backup(directory))}.")
        return
    _restore(settings, directory, force=force)


def _restore(settings: Settings, directory: Path, *, force: bool) -> None:
    from service.backup.restore import restore_backup
    from service.cli.directories import prepare_directories
    from service.cli.migrate import opened_database
    from service.cli.state_lock import locked
    from service.jobs.check_readiness import worker_silence_ms

    prepare_directories(settings)
    with locked(settings.state_dir), opened_database(settings) as database, told_as_command_errors():
        manifest = restore_backup(
            directory.absolute(),
            database,
            settings.results_dir,
            settings.backup.postgresql_bin,
            silence_ms=worker_silence_ms(settings),
            replace=force,
        )
    typer.echo(f"Restored {description(manifest)}. Start the API and the workers.")
