"""The command `evenkeel`. One command a module; each imports what it needs when it runs, so that help is instant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from service.cli.backup import backup
from service.cli.client.about import whoami, workers
from service.cli.client.actions import cancel, delete, resume, stop
from service.cli.client.events import events
from service.cli.client.jobs import job, jobs
from service.cli.client.metrics import metrics, skew
from service.cli.client.plans import explain, plan
from service.cli.client.profile import profile
from service.cli.client.result import result
from service.cli.client.submit import submit
from service.cli.demo.command import demo
from service.cli.doctor import doctor
from service.cli.health import health
from service.cli.keys import app as keys
from service.cli.migrate import migrate
from service.cli.openapi import openapi
from service.cli.purge import purge
from service.cli.restore import restore
from service.cli.serve import serve
from service.cli.up import up
from service.cli.worker import worker

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


HERE: tuple[Callable[..., None], ...] = (
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
"""What runs a service on this machine."""

OVER_API: tuple[Callable[..., None], ...] = (
    *(submit, explain, profile),
    *(jobs, job, events, result, plan, metrics, skew),
    *(cancel, stop, resume, delete),
    *(workers, whoami),
)
"""What asks a service, wherever it runs."""

for command in OVER_API:
    app.command(rich_help_panel="Ask a service")(command)
app.add_typer(keys, name="keys", rich_help_panel="Ask a service")
for command in HERE:
    app.command(rich_help_panel="Run a service here")(command)
