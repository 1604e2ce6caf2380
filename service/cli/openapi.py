"""`evenkeel openapi`: the API's own description."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.errors import told_plainly


@told_plainly
def openapi(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output by default.")
    ] = None,
) -> None:
    """Print the OpenAPI document of the API, as openapi.yaml has it."""
    text = openapi_yaml()
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def openapi_yaml() -> str:
    """The document as `openapi.yaml` holds it. Needs neither database nor configuration."""
    import yaml

    from service.main import create_app
    from service.settings import Settings

    text = yaml.safe_dump(create_app(Settings()).openapi(), sort_keys=False, allow_unicode=True, width=120)
    return "# Exported by `evenkeel openapi`; a test fails when it differs from the application.\n" + text
