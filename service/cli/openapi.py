"""The command `openapi`, which exports the API's description."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.client.terminal import prints_errors


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
    import yaml

    from service.api.app import create_app
    from service.config.settings import Settings

    text = yaml.safe_dump(create_app(Settings()).openapi(), sort_keys=False, allow_unicode=True, width=120)
    return "# Exported by `evenkeel openapi`; a test fails when it differs from the application.\n" + text
