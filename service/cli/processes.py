"""The API and a worker as child processes of `up` and `demo`: started, restarted when they end, stopped together.

`Supervisor` runs any programs; `Stack` runs these two. Each child runs in a session of its own, so that Ctrl-C in a
terminal reaches only the parent. It gets `EVENKEEL_PARENT_PID`, so that it ends with the parent
(`service.config.processes`). When a child ends, the rest of its process group (a JVM) is killed. Start children in the
main thread: the kernel ends them with the thread that started them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from service.cli.preparation import address_of, child_environment
from service.cli.terminal import CliError, ExitCode
from service.config.settings import Settings
from service.contract.problems import Problem

API, WORKER = "api", "worker"
READY_SECONDS = 180.0

_POLL_SECONDS = 0.05
_GROUP_SECONDS = 5.0
_MAX_LOG_BYTES = 64 << 20
_TAIL_BYTES = 64 << 10
_PROBE_SECONDS = 0.2
_STOP_MARGIN_SECONDS = 20.0
"""Time after the drain in which a worker hands back its jobs and stops Spark."""


@dataclass(frozen=True)
class Program:
    """A command, its directory and environment, and the log file of its output; without one, the output is that of this
    process. `pass_fds` stay open in the child.

    With `may_end`, exit code 0 is not a failure: the program was stopped by someone else and is restarted immediately.
    """

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    directory: Path
    log: Path | None
    pass_fds: tuple[int, ...] = ()
    may_end: bool = False


@dataclass(frozen=True)
class Exit:
    """A child that ended although its supervisor did not stop it. `code` is negative for a signal.

    `planned`: its program may end, and it ended with exit code 0.
    """

    name: str
    pid: int
    code: int
    restart_in: float
    planned: bool = False

    @property
    def how(self) -> str:
        """Returns `exit code 3` or `SIGKILL`."""
        if self.code >= 0:
            return f"exit code {self.code}"
        try:
            return signal.Signals(-self.code).name
        except ValueError:
            return f"signal {-self.code}"


@dataclass(frozen=True)
class Backoff:
    """Seconds before a restart: `first`, then doubled up to `most`; `first` again after a run of `steady` seconds."""

    first: float = 0.5
    most: float = 30.0
    steady: float = 60.0

    def after(self, failures: int) -> float:
        """Returns the seconds to wait after `failures` consecutive failures (1 or more)."""
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
    """Runs `programs` until `stop` or `kill`. Use it in one thread. `now` is a monotonic clock in seconds."""

    programs: Sequence[Program]
    backoff: Backoff = field(default_factory=Backoff)
    now: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._children = [_Child(program) for program in self.programs]

    def start(self) -> None:
        """Starts every program with a new log; the previous log is kept as `*.log.1`.

        Raises OSError if a command cannot be run or a log cannot be written.
        """
        for child in self._children:
            log = child.program.log
            if log is not None:
                log.parent.mkdir(parents=True, exist_ok=True)
                if log.exists():
                    log.replace(_previous(log))
            self._spawn(child)

    def pids(self) -> dict[str, int]:
        """Returns the process ids of the running children, by program."""
        return {
            child.program.name: child.process.pid
            for child in self._children
            if child.process is not None and child.process.poll() is None
        }

    def check(self) -> tuple[Exit, ...]:
        """Restarts ended children whose wait is over, limits the size of logs, and returns the children that have ended
        since the last call. Call it a few times per second.
        """
        exits = []
        for child in self._children:
            if child.process is not None and child.process.poll() is not None:
                exits.append(self._note_exit(child, child.process))
            elif child.process is None and self.now() >= child.restart_at:
                self._spawn(child)
            if child.program.log is not None:
                _limit_log(child.program.log)
        return tuple(exits)

    def stop(self, seconds: float, kill_now: Callable[[], bool] = lambda: False) -> None:
        """Sends SIGTERM to every child, waits up to `seconds`, or until `kill_now` returns true, and kills the rest.

        Returns when no process of any child's group is left.
        """
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            with suppress(ProcessLookupError):
                process.terminate()
        deadline = self.now() + seconds
        while any(process.poll() is None for process in running) and self.now() < deadline and not kill_now():
            time.sleep(_POLL_SECONDS)
        # After its worker has ended, a JVM removes its temporary files before it ends too.
        if all(process.poll() is not None for process in running):
            deadline = self.now() + _GROUP_SECONDS
            while any(group_members(process.pid) for process in running) and self.now() < deadline and not kill_now():
                time.sleep(_POLL_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kills every child with its process group."""
        for child in self._children:
            if child.process is not None:
                _kill_group(child.process)
                child.process.wait()
                child.process = None
            child.restart_at = float("inf")

    def _spawn(self, child: _Child) -> None:
        program = child.program
        # Append mode, so that the log can be truncated while the child writes.
        with nullcontext() if program.log is None else program.log.open("ab") as log:
            child.process = subprocess.Popen(  # noqa: S603 - the commands are fixed
                program.command,
                cwd=program.directory,
                env=dict(program.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
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
    """Returns the ids of the processes in a process group, except zombies."""
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process.pid)
    return members


def tail(log: Path, lines: int = 25) -> str:
    """Returns the last lines of a log; empty if there is none."""
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


def _previous(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")


def _limit_log(log: Path) -> None:
    with suppress(FileNotFoundError):
        if log.stat().st_size > _MAX_LOG_BYTES:
            _previous(log).write_bytes(log.read_bytes())
            os.truncate(log, 0)


class Stack:
    """An API and a worker under one supervisor. Use it in the main thread."""

    def __init__(self, settings: Settings, listener: socket.socket, environment: Mapping[str, str]) -> None:
        self.settings = settings
        self.address = address_of(listener)
        self._supervisor = Supervisor(_programs(settings, listener, environment))

    def start(self) -> None:
        """Starts both processes. Raises CliError if one cannot be started."""
        try:
            self._supervisor.start()
        except OSError as error:
            raise CliError(f"cannot start a process: {error}", code=ExitCode.CHILD) from None

    def wait_until_ready(self, seconds: float, notify: Callable[[str], None]) -> None:
        """Waits until `/readyz` answers 200. Calls `notify` with the part that is not ready, whenever that changes.

        Raises CliError with the end of the log if a process ends, or after `seconds`.
        """
        deadline = time.monotonic() + seconds
        last = ""
        with httpx.Client(base_url=self.address, timeout=2, trust_env=False) as client:
            while (missing := _missing_part(client)) is not None:
                if missing != last:
                    last = missing
                    notify(missing)
                for exit_ in self._supervisor.check():
                    raise self._failed(f"the {exit_.name} ended during its start ({exit_.how})", exit_.name)
                if time.monotonic() > deadline:
                    raise self._failed(f"not ready after {seconds:.0f} s, waiting for {missing}", WORKER)
                time.sleep(_PROBE_SECONDS)

    def restart_ended(self, notify: Callable[[str], None]) -> None:
        """Restarts processes that have ended, with a message to `notify`. Call it a few times per second."""
        for exit_ in self._supervisor.check():
            if exit_.planned:
                notify(f"The {exit_.name} was drained and has ended; starting a new one.")
                continue
            log = self.log_of(exit_.name)
            notify(f"The {exit_.name} ended ({exit_.how}); restarting it in {exit_.restart_in:g} s. See {log}")

    def log_of(self, name: str) -> Path:
        """Returns the path of a process's log."""
        return self.settings.state_dir / "logs" / f"{name}.log"

    def stop(self, kill_now: Callable[[], bool]) -> None:
        """Stops both processes. The worker may finish its jobs within its drain time, unless `kill_now` returns true.

        Returns when no process is left.
        """
        self._supervisor.stop(self.settings.worker.drain_seconds + _STOP_MARGIN_SECONDS, kill_now)

    def _failed(self, message: str, name: str) -> CliError:
        log = self.log_of(name)
        return CliError(
            message,
            f"The lines above are the end of {log}. `evenkeel doctor` checks the requirements.",
            code=ExitCode.CHILD,
            details=tail(log),
        )


def _programs(settings: Settings, listener: socket.socket, environment: Mapping[str, str]) -> tuple[Program, ...]:
    logs = settings.state_dir / "logs"
    child = child_environment(settings, environment)
    worker = Program(WORKER, worker_command(settings), child, settings.state_dir, logs / "worker.log", may_end=True)
    return (*api_programs(settings, listener, environment, logs), worker)


def api_programs(
    settings: Settings, listener: socket.socket, environment: Mapping[str, str], logs: Path | None
) -> tuple[Program, ...]:
    """Returns the processes of the API, which accept the connections of `listener`. Their logs are files in `logs`, if
    given: `api.log`, `api-2.log` and so on.
    """
    child = child_environment(settings, environment)
    # With -P, `service` and `workers` are not imported from the user's current directory.
    serve = (sys.executable, "-P", "-m", "service.cli", "serve", "--fd", str(listener.fileno()))
    programs = []
    for number in range(1, settings.api.processes + 1):
        name = API if number == 1 else f"{API}-{number}"
        command = serve if settings.api.processes == 1 else (*serve, "--process", str(number))
        log = None if logs is None else logs / f"{name}.log"
        programs.append(Program(name, command, child, settings.state_dir, log, (listener.fileno(),)))
    return tuple(programs)


def worker_command(settings: Settings) -> tuple[str, ...]:
    """Returns the command of a worker process.

    It has a pool of threads, since all jobs of a worker share one JVM. Gossip and mingle are off, since workers
    coordinate through the database.
    """
    return (
        *(sys.executable, "-P", "-m", "workers"),
        *("--pool", "threads", "--concurrency", str(settings.worker.threads)),
        *("--loglevel", settings.log.level, "--without-gossip", "--without-mingle"),
    )


def _missing_part(client: httpx.Client) -> str | None:
    """Returns the part that is not ready; None if everything is ready."""
    try:
        response = client.get("/readyz")
    except httpx.TransportError:
        return "the API"
    if response.status_code == httpx.codes.OK:
        return None
    problem = Problem.model_validate_json(response.content)
    if any(issue.code == "worker" for issue in problem.errors):
        return "the worker"
    return "; ".join(issue.detail for issue in problem.errors) or problem.detail
