"""`evenkeel doctor`: what is missing on this machine, and what to do about it.

`evenkeel health`: asks one part whether it works, for health checks where no curl is installed.
"""

from __future__ import annotations

from typing import Annotated

import typer

from service.client.terminal import CliError, ExitCode, told_plainly

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

    from service.cli.doctor_checks import Level, check_cluster, check_properties, check_queues, examine
    from service.cli.startup import read_settings

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


_TIMEOUT_SECONDS = 5
_MAX_BYTES = 1 << 20


@told_plainly
def health(
    part: Annotated[
        str,
        typer.Argument(help="An address such as http://127.0.0.1:8080/healthz, or `worker` for this machine's worker."),
    ],
    field: Annotated[
        str | None,
        typer.Option(metavar="NAME[=VALUE]", help="Field that the JSON answer must have: of this value, or any."),
    ] = None,
) -> None:
    """Ask one part whether it works: exit code 0 if so, 1 if not. For health checks of containers."""
    if part == "worker":
        _require_worker()
        return
    body = _ask(part)
    if field is not None:
        _require_field(part, body, field)


def _require_worker() -> None:
    """Raises CliError unless a worker of this machine has told the database lately that it lives and has its Spark,
    and takes the jobs that wait for it.
    """
    import socket

    from service.broker.configuration import broker_fault
    from service.cli.maintenance import opened_database
    from service.cli.startup import read_settings
    from service.contract.enums import WorkerStatus
    from service.jobs.readiness import WORKER_ADVICE, find_unresponsive_workers, worker_silence_ms
    from service.store import workers

    settings = read_settings()
    with opened_database(settings) as database, database.read() as session:
        now = database.now(session)
        silent_before = now - worker_silence_ms(settings)
        here = [row for row in workers.list_workers(session, silent_before) if row.host == socket.gethostname()]
        if not here:
            raise CliError("no worker of this machine has given a sign of life lately")
        if all(workers.worker_status(row, silent_before) is WorkerStatus.UNAVAILABLE for row in here):
            raise CliError(f"worker {here[-1].id} takes no jobs: {here[-1].spark_fault or 'its log tells why'}")
        deaf = find_unresponsive_workers(session, settings, now)
        # While the broker is away no message reaches anybody, and a worker that waits for it is well.
        if all(row.id in deaf for row in here) and broker_fault(settings) is None:
            raise CliError(f"worker {here[-1].id} takes nothing although jobs wait for it", WORKER_ADVICE)


def _ask(url: str) -> bytes:
    """The body of a good answer. Raises CliError for any other."""
    import urllib.error
    import urllib.request

    if not url.startswith(("http://", "https://")):
        raise CliError(f"{url} is no address of HTTP", "Write http://HOST:PORT/PATH.", code=ExitCode.USAGE)
    # A proxy would be asked about itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_TIMEOUT_SECONDS) as answer:
            body: bytes = answer.read(_MAX_BYTES)
            return body
    except urllib.error.HTTPError as error:
        raise CliError(f"{url} answers {error.code}: {error.read(500).decode(errors='replace')}") from None
    except (OSError, ValueError) as error:
        raise CliError(f"{url} does not answer: {getattr(error, 'reason', error)}") from None


def _require_field(url: str, body: bytes, field: str) -> None:
    import json

    name, _, wanted = field.partition("=")
    try:
        answer = json.loads(body)
    except ValueError:
        raise CliError(f"{url} answers no JSON") from None
    value = answer.get(name) if isinstance(answer, dict) else None
    if not value or (wanted and str(value) != wanted):
        raise CliError(f"{url} answers {name}={value}, not {wanted or 'a value'}")
