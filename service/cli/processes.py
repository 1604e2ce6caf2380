"""The processes of one installation under one parent: started, restarted when they die, stopped together.

Every child runs in a session of its own, so Ctrl-C in a terminal reaches the parent alone, and carries
`EVENKEEL_PARENT_PID`, so it dies with the parent (`service.config.processes`). What a child leaves in its process group
(a JVM) is ended with it. Start children from the main thread: the kernel ties their life to the thread.

An API and a worker under one supervisor: what `up` and `demo` run.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from service.cli.start import worker_command
from service.cli.startup import address_of, child_environment
from service.client.terminal import CliError, ExitCode
from service.config.settings import Settings
from service.contract.problems import Problem

_POLL_SECONDS = 0.05
_LEFTOVER_SECONDS = 5.0
_LOG_LIMIT_BYTES = 64 << 20
_TAIL_BYTES = 64 << 10


@dataclass(frozen=True)
class Program:
    """What to run, where, and the file that takes its output. `pass_fds` stay open in the child.

    One that `may_end` does so with 0 when somebody else asked it to, and is then started again at once.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    log: Path
    pass_fds: tuple[int, ...] = ()
    may_end: bool = False


@dataclass(frozen=True)
class Exit:
    """A child that ended without having been asked by its supervisor. `code` is negative for a signal.

    `planned` where it may end and did so by itself, in good order.
    """

    name: str
    pid: int
    code: int
    restart_in: float
    planned: bool = False

    @property
    def how(self) -> str:
        """`exit code 3` or `SIGKILL`."""
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


@dataclass(frozen=True)
class Backoff:
    """Seconds before a restart: `first`, then doubled up to `most`; from the start after a run of `steady`."""

    first: float = 0.5
    most: float = 30.0
    steady: float = 60.0

    def after(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row (1 or more)."""
        return float(min(self.most, self.first * 2 ** min(failures - 1, 16)))


@dataclass
class _Child:
    program: Program
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float = 0.0


@dataclass
class Supervisor:
    """Runs `programs` until `stop` or `kill`. Not for use from several threads.

    `now` is a monotonic clock in seconds.
    """

    programs: Sequence[Program]
    backoff: Backoff = field(default_factory=Backoff)
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._children = [_Child(program) for program in self.programs]

    def start(self) -> None:
        """Starts every program with a fresh log; the log before it is kept as `*.log.1`.

        Raises OSError when a command cannot be run or a log cannot be written.
        """
        for child in self._children:
            child.program.log.parent.mkdir(parents=True, exist_ok=True)
            if child.program.log.exists():
                child.program.log.replace(_older(child.program.log))
            self._spawn(child)

    def pids(self) -> dict[str, int]:
        """Process ids of the children that are running, by program."""
        return {
            child.program.name: child.process.pid
            for child in self._children
            if child.process is not None and child.process.poll() is None
        }

    def check(self) -> tuple[Exit, ...]:
        """Looks after the children once: tells which have ended since, starts those again whose wait is over, and
        keeps logs from growing without end. To be called a few times a second."""
        exits = []
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                exits.append(self._note_exit(child, child.process))
            elif child.process is None and self.now() >= child.restart_at:
                self._spawn(child)
            _limit_log(child.program.log)
        return tuple(exits)

    def stop(self, seconds: float, hurried: Callable[[], bool] = lambda: False) -> None:
        """Asks every child to end (SIGTERM) and waits up to `seconds`; kills what is left then, or once `hurried`
        says so. Returns when nothing is left of any child's process group."""
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            with suppress(ProcessLookupError):
                process.terminate()
        deadline = self.now() + seconds
        while any(process.poll() is None for process in running) and self.now() < deadline and not hurried():
            time.sleep(_POLL_SECONDS)
        # A JVM whose worker has gone removes its scratch files before it goes too.
        if all(process.poll() is not None for process in running):
            deadline = self.now() + _LEFTOVER_SECONDS
            while any(group_members(process.pid) for process in running) and self.now() < deadline and not hurried():
                time.sleep(_POLL_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kills every child and what is in its process group, at once."""
        for child in self._children:
            if child.process is not None:
                _kill_group(child.process)
                child.process.wait()
                child.process = None
            child.restart_at = float("inf")

    def _spawn(self, child: _Child) -> None:
        program = child.program
        # Unbuffered append, so that the log can be cut short while the child writes.
        with program.log.open("ab") as log:
            child.process = subprocess.Popen(  # noqa: S603 - the commands are our own
                program.command,
                cwd=program.directory,
                env=dict(program.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=program.pass_fds,
            )
        child.started_at = self.now()

    def _note_exit(self, child: _Child, process: subprocess.Popen[bytes]) -> Exit:
        _kill_group(process)
        child.process = None
        if child.program.may_end and process.returncode == 0:
            child.failures, child.restart_at = 0, self.now()
            return Exit(child.program.name, process.pid, 0, 0.0, planned=True)
        steady = self.now() - child.started_at >= self.backoff.steady
        child.failures = 1 if steady else child.failures + 1
        wait = self.backoff.after(child.failures)
        child.restart_at = self.now() + wait
        return Exit(child.program.name, process.pid, process.returncode, wait)


def group_members(group: int) -> list[int]:
    """Process ids in the process group `group` that are more than a zombie."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _older(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


def _limit_log(log: Path) -> None:
    with suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_LIMIT_BYTES:
            _older(log).write_bytes(log.read_bytes())
            os.truncate(log, 0)


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
