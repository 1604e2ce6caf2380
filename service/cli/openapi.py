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
    from service.api.openapi import openapi_yaml

    text = openapi_yaml()
    if output is None:
        typer.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
