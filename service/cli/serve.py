"""`evenkeel serve`: the API alone."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.errors import told_plainly

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

    from service.cli.broker import tell_broker_fault
    from service.cli.configuration import read_settings
    from service.cli.directories import prepare_directories
    from service.cli.first_key import first_key_notice
    from service.cli.listening import address_of, listen
    from service.cli.migrate import require_schema
    from service.lifeline import die_with_parent
    from service.main import create_app

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
