"""The command `evenkeel`. Each command imports what it needs when it runs, so that help is printed at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from service.cli.backup import backup, restore
from service.cli.database import migrate
from service.cli.doctor import doctor, health
from service.cli.jobs import cancel, delete, job, jobs, resume, stop, submit, whoami, workers
from service.cli.keys import app as keys
from service.cli.openapi import openapi
from service.cli.purge import purge
from service.cli.reports import explain, metrics, plan, profile, skew
from service.cli.results import events, result
from service.cli.start import demo, serve, up, worker

app = typer.Typer(
    name="evenkeel",
    help="Skew-aware aggregation and join jobs on Apache Spark, over HTTP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"evenkeel {version('evenkeel')}")
        raise typer.Exit


@app.callback()
def _evenkeel(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Skew-aware aggregation and join jobs on Apache Spark, over HTTP."""


LOCAL: tuple[Callable[..., None], ...] = (
    up,
    demo,
    doctor,
    health,
    serve,
    worker,
    migrate,
    purge,
    backup,
    restore,
    openapi,
)
"""Commands that run or maintain a service on this machine."""

OVER_API: tuple[Callable[..., None], ...] = (
    *(submit, explain, profile),
    *(jobs, job, events, result, plan, metrics, skew),
    *(cancel, stop, resume, delete),
    *(workers, whoami),
)
"""Commands that call the API of a service, local or remote."""

for command in OVER_API:
    app.command(rich_help_panel="Use a service")(command)
app.add_typer(keys, name="keys", rich_help_panel="Use a service")
for command in LOCAL:
    app.command(rich_help_panel="Run a service")(command)
