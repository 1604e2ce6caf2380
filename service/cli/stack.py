"""An API and a worker under one supervisor: what `up` and `demo` run."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Mapping

import httpx

from service.cli.configuration import child_environment
from service.cli.errors import CliError, ExitCode
from service.cli.listening import address_of
from service.cli.processes import Program, Supervisor, tail
from service.cli.worker import worker_command
from service.settings import Settings
from service.spec.problem import Problem

API, WORKER = "api", "worker"
_PROBE_SECONDS = 0.2
_MARGIN_SECONDS = 20.0  # for handing jobs back and for Spark to close


class Stack:
    """Both processes, the socket they are reached by, and how they are doing. Use it from the main thread."""

    def __init__(self, settings: Settings, listener: socket.socket, environment: Mapping[str, str]) -> None:
        self.settings = settings
        self.address = address_of(listener)
        self._supervisor = Supervisor(_programs(settings, listener, environment))

    def start(self) -> None:
        """Starts both. Raises CliError where that is impossible."""
        try:
            self._supervisor.start()
        except OSError as error:
            raise CliError(f"cannot start a process: {error}", code=ExitCode.CHILD) from None

    def wait_until_ready(self, seconds: float, tell: Callable[[str], None]) -> None:
        """Returns once `/readyz` says so; `tell` hears what is being waited for, each time that changes.

        Raises CliError with the end of the log where a process ends first, and where it takes longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        told = ""
        with httpx.Client(base_url=self.address, timeout=2, trust_env=False) as client:
            while (waiting_for := _missing_part(client)) is not None:
                if waiting_for != told:
                    told = waiting_for
                    tell(waiting_for)
                for exit_ in self._supervisor.check():
                    raise self._failed(f"the {exit_.name} ended while starting ({exit_.how})", exit_.name)
                if time.monotonic() > deadline:
                    raise self._failed(f"still waiting after {seconds:.0f} s: {waiting_for}", WORKER)
                time.sleep(_PROBE_SECONDS)

    def look_after(self, tell: Callable[[str], None]) -> None:
        """Restarts what has died; `tell` hears of it. To be called a few times a second."""
        for exit_ in self._supervisor.check():
            if exit_.planned:
                tell(f"The {exit_.name} was drained and has ended; starting a fresh one.")
                continue
            log = self.log_of(exit_.name)
            tell(f"The {exit_.name} ended ({exit_.how}); starting it again in {exit_.restart_in:g} s. See {log}")

    def log_of(self, name: str) -> str:
        """Path of a process's log."""
        return str(self.settings.state_dir / "logs" / f"{name}.log")

    def stop(self, hurried: Callable[[], bool]) -> None:
        """Ends both: the worker may finish its jobs within its drain time. Returns when nothing is left."""
        self._supervisor.stop(self.settings.worker.drain_seconds + _MARGIN_SECONDS, hurried)

    def _failed(self, message: str, name: str) -> CliError:
        log = self.settings.state_dir / "logs" / f"{name}.log"
        return CliError(
            message,
            f"The lines above are the end of {log}. `evenkeel doctor` checks what is needed.",
            code=ExitCode.CHILD,
            details=tail(log),
        )


def _programs(settings: Settings, listener: socket.socket, environment: Mapping[str, str]) -> tuple[Program, Program]:
    logs = settings.state_dir / "logs"
    child = child_environment(settings, environment)
    # -P and a directory of our own: `service` and `workers` must not be picked up from where the user happens to be.
    serve = (sys.executable, "-P", "-m", "service.cli", "serve", "--fd", str(listener.fileno()))
    return (
        Program(API, serve, child, settings.state_dir, logs / "api.log", (listener.fileno(),)),
        Program(WORKER, worker_command(settings), child, settings.state_dir, logs / "worker.log", may_end=True),
    )


def _missing_part(client: httpx.Client) -> str | None:
    """What readiness waits for, for people; None once everything is ready."""
    try:
        answer = client.get("/readyz")
    except httpx.TransportError:
        return "the API to answer"
    if answer.status_code == httpx.codes.OK:
        return None
    problem = Problem.model_validate_json(answer.content)
    if any(issue.code == "worker" for issue in problem.errors):
        return "the worker to report"
    return "; ".join(issue.detail for issue in problem.errors) or problem.detail
