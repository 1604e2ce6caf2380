"""`evenkeel up`: everything on this machine, until stopped."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from service.cli.errors import told_plainly
from service.cli.serve import Port

if TYPE_CHECKING:
    from service.cli.stack import Stack

READY_SECONDS = 180.0
_LOOK_SECONDS = 0.2


@told_plainly
def up(port: Port = None) -> None:
    """Start the API and a worker here and run until Ctrl-C. A second Ctrl-C kills."""
    import os
    from contextlib import ExitStack

    from rich.console import Console

    from service.cli.broker import tell_broker_fault
    from service.cli.configuration import read_settings
    from service.cli.directories import prepare_directories
    from service.cli.errors import StopRequestedError
    from service.cli.first_key import first_key_notice
    from service.cli.listening import listen
    from service.cli.migrate import upgrade_database
    from service.cli.signals import StopSignals
    from service.cli.stack import Stack
    from service.cli.state_lock import locked
    from service.cli.worker import require_properties, require_spark
    from service.lifeline import die_with_parent

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
    from service.client_settings import DEFAULT_URL

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
