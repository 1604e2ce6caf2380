"""Processes of tests, which end with the test run, and waiting with a time limit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")


def free_port() -> int:
    """Returns a TCP port on loopback that was free a moment ago. Prefer to bind port 0 where possible."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


UNDER_LOAD = 3
"""How many times longer tests wait than an idle machine needs. Only a failing test waits this long."""


def wait_for(what: str, probe: Callable[[], T | None], seconds: float = 30, every: float = 0.05) -> T:
    """Calls `probe` until it returns a true value, and returns that value. `seconds` must be enough on an idle machine.
    Raises AssertionError after `UNDER_LOAD` times `seconds`.
    """
    seconds *= UNDER_LOAD
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"timed out after {seconds} s waiting for {what}")
        time.sleep(every)


def is_running(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def wait_until_gone(pids: Sequence[int], seconds: float = 15) -> None:
    """Waits until none of the processes is running. Raises AssertionError with those that still are."""

    def gone() -> bool:
        return not any(is_running(pid) for pid in pids)

    try:
        wait_for("processes to end", gone, seconds)
    except AssertionError:
        left = [" ".join(psutil.Process(pid).cmdline())[:200] for pid in pids if is_running(pid)]
        raise AssertionError(f"still running after {seconds} s: {left}") from None


def family(pid: int) -> dict[int, str]:
    """Returns the names of a process and all its descendants by process id."""
    found: dict[int, str] = {}
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                found[process.pid] = process.name()
    return found


def start_python(
    arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, log: Path | None = None, cwd: Path
) -> subprocess.Popen[bytes]:
    """Starts `python -P <arguments>` in its own session, with `EVENKEEL_PARENT_PID` set to this process.

    A program that calls `die_with_parent` therefore ends with the test run. Call this from the main thread.
    """
    output = subprocess.DEVNULL if log is None else log.open("ab")
    return subprocess.Popen(
        [sys.executable, "-P", *arguments],
        env={**os.environ, **(environment or {}), "EVENKEEL_PARENT_PID": str(os.getpid())},
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes], seconds: float = 30) -> int:
    """Sends SIGTERM and, after `seconds`, SIGKILL to the whole process group. Returns the exit code."""
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return process.wait(10)


def outputs_at_once(commands: Sequence[Sequence[str]], directory: Path, seconds: float) -> list[str]:
    """Runs commands that print `here` and wait for a line of input. Sends the line when all are ready, and returns the
    rest of each output.
    """
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(each, cwd=directory, stdin=pipe, stdout=pipe, text=True) for each in commands]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    found = [process.communicate(timeout=seconds)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return found
