"""The commands `doctor`, which checks the requirements, and `health`, a health check for containers without curl."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.terminal import CliError, ExitCode, prints_errors

_NEEDED_FOR_SPARK = frozenset({"Java", "pyspark", "Spark properties"})
_TIMEOUT_SECONDS = 5
_MAX_BYTES = 1 << 20


@prints_errors
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of lines.")] = False,
    api_only: Annotated[bool, typer.Option("--api-only", help="Skip the requirements of a worker.")] = False,
) -> None:
    """Check the requirements: Java, memory, disk, port, directories, database, broker, queues and Spark cluster."""
    import json
    import os
    from dataclasses import asdict

    from rich.console import Console

    from service.cli.doctor_checks import Level, check_cluster, check_properties, check_queues, examine
    from service.cli.preparation import read_settings

    settings = read_settings()
    findings = examine(settings, os.environ, with_worker=not api_only) + check_queues(settings)
    if not api_only:
        findings += check_properties(settings)
        if not any(finding.level is Level.FAIL for finding in findings if finding.name in _NEEDED_FOR_SPARK):
            if not settings.spark.is_local:
                typer.echo(f"Requesting executors from {settings.spark.master}; this may take a minute.", err=True)
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


@prints_errors
def health(
    target: Annotated[
        str,
        typer.Argument(help="A URL such as http://127.0.0.1:8080/healthz, or `worker` for the worker on this machine."),
    ],
    field: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[=VALUE]", help="Require this field in the JSON response: not empty, or with this value."
        ),
    ] = None,
) -> None:
    """Check the health of the API or a worker, for containers. The exit code is 0 if it is healthy, otherwise 1."""
    if target == "worker":
        _require_worker()
        return
    body = _get(target)
    if field is not None:
        _require_field(target, body, field)


def _require_worker() -> None:
    """Raises CliError unless a worker on this machine sends heartbeats, has a Spark driver and accepts waiting jobs."""
    import socket

    from service.broker.configuration import broker_fault
    from service.cli.database import opened_database
    from service.cli.preparation import read_settings
    from service.contract.enums import WorkerStatus
    from service.jobs.readiness import WORKER_ADVICE, find_unresponsive_workers, worker_silence_ms
    from service.store import workers

    settings = read_settings()
    with opened_database(settings) as database, database.read() as session:
        now = database.now(session)
        silent_before = now - worker_silence_ms(settings)
        here = [row for row in workers.list_workers(session, silent_before) if row.host == socket.gethostname()]
        if not here:
            raise CliError("no worker on this machine has sent a heartbeat recently")
        if all(workers.worker_status(row, silent_before) is WorkerStatus.UNAVAILABLE for row in here):
            raise CliError(f"worker {here[-1].id} accepts no jobs: {here[-1].spark_fault or 'see its log'}")
        unresponsive = find_unresponsive_workers(session, settings, now)
        # While the broker is unavailable, no worker receives messages. A worker that waits for the broker is healthy.
        if all(row.id in unresponsive for row in here) and broker_fault(settings) is None:
            raise CliError(f"worker {here[-1].id} accepts no jobs although jobs wait for it", WORKER_ADVICE)


def _get(url: str) -> bytes:
    """Returns the body of a successful response. Raises CliError if there is none."""
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise CliError(f"{url} is not an HTTP URL", "Write http://HOST:PORT/PATH.", code=ExitCode.USAGE)
    # Without a proxy: the check is of the service itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_SECONDS) as response:
            body: bytes = response.read(_MAX_BYTES)
            return body
    except urllib.error.HTTPError as error:
        raise CliError(f"{url} answered {error.code}: {error.read(500).decode(errors='replace')}") from None
    except (OSError, ValueError) as error:
        raise CliError(f"{url} does not respond: {getattr(error, 'reason', error)}") from None


def _require_field(url: str, body: bytes, field: str) -> None:
    import json

    name, _, wanted = field.partition("=")
    try:
        document = json.loads(body)
    except ValueError:
        raise CliError(f"the response of {url} is not JSON") from None
    value = document.get(name) if isinstance(document, dict) else None
    if not value or (wanted and str(value) != wanted):
        raise CliError(f"{url} returned {name}={value} instead of {wanted or 'a value'}")
