"""The command `evenkeel`, and its command `openapi`, which exports the API's description.

Each command imports what it needs when it runs, so that help is printed at once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from service.cli.backup import backup, restore
from service.cli.database import migrate, purge
from service.cli.doctor import doctor, health
from service.cli.jobs import cancel, delete, job, jobs, resume, stop, submit, whoami, workers
from service.cli.keys import app as keys
from service.cli.reports import explain, metrics, plan, profile, skew
from service.cli.results import events, result
from service.cli.start import demo, serve, up, worker
from service.cli.terminal import prints_errors

app = typer.Typer(
    name="evenkeel",
    help="Skew-aware aggregation and join jobs on Apache Spark, over HTTP.",
    no_args_is_help=True,
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


@prints_errors
def openapi(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Output file; standard output by default.")
    ] = None,
) -> None:
    """Print the OpenAPI document of the API (the content of openapi.yaml)."""
    text = openapi_yaml()
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def openapi_yaml() -> str:
    """Returns the content of `openapi.yaml`. Needs neither a database nor a configuration."""
    from service.api.app import create_app
    from service.api.openapi_yaml import as_yaml
    from service.config.settings import Settings

    return as_yaml(create_app(Settings()).openapi())


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
