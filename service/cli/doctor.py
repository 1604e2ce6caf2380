"""`evenkeel doctor`: what is missing on this machine, and what to do about it."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.errors import ExitCode, told_plainly

_NEEDED_FOR_SPARK = frozenset({"Java", "pyspark", "Spark properties"})


@told_plainly
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of lines.")] = False,
    api_only: Annotated[bool, typer.Option("--api-only", help="Leave out what only a worker needs.")] = False,
) -> None:
    """Check what Evenkeel needs: Java, memory, disk, a port, directories, database, broker, queues, Spark cluster."""
    import json
    import os
    from dataclasses import asdict

    from rich.console import Console

    from service.cli.checkup import Level, examine
    from service.cli.cluster_checkup import check_cluster, check_properties
    from service.cli.configuration import read_settings
    from service.cli.queue_checkup import check_queues

    settings = read_settings()
    findings = examine(settings, os.environ, with_worker=not api_only) + check_queues(settings)
    if not api_only:
        findings += check_properties(settings)
        if not any(finding.level is Level.FAIL for finding in findings if finding.name in _NEEDED_FOR_SPARK):
            if not settings.spark.is_local:
                typer.echo(f"Asking {settings.spark.master} for executors; this may take a minute.", err=True)
            findings += check_cluster(settings, os.environ)
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console = Console(highlight=False, soft_wrap=True)
        colors = {Level.OK: "green", Level.WARN: "yellow", Level.FAIL: "red"}
        width = max(len(finding.name) for finding in findings)
        for finding in findings:
            console.print(f"[{colors[finding.level]}]{finding.level:<4}[/]  {finding.name:<{width}}  ", end="")
            console.print(finding.detail, markup=False)
            if finding.advice:
                console.print(f"      {'':<{width}}  {finding.advice}", markup=False)
    if any(finding.level is Level.FAIL for finding in findings):
        raise typer.Exit(ExitCode.FAILED)
