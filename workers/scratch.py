"""The directory in which a worker's Spark keeps shuffle files and the like; gone with the worker."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import psutil

_NAME = re.compile(r"^(?P<host>.+)-(?P<pid>\d+)-(?P<started>\d+)$")


def make_scratch(root: Path) -> Path:
    """A new directory below `root` that names this process, after removing those of processes that are gone."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep_scratch(root)
    process = psutil.Process()
    directory = root / f"{socket.gethostname()}-{process.pid}-{_milliseconds(process)}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def sweep_scratch(root: Path) -> None:
    """Removes what processes of this machine left behind that are not running any more."""
    for directory in root.iterdir():
        match = _NAME.match(directory.name)
        if match is None or match["host"] != socket.gethostname():
            continue
        if not _is_running(int(match["pid"]), int(match["started"])):
            shutil.rmtree(directory, ignore_errors=True)


def _is_running(pid: int, started: int) -> bool:
    try:
        # The start time tells a process from a later one with its number.
        return abs(_milliseconds(psutil.Process(pid)) - started) < 1000
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True


def _milliseconds(process: psutil.Process) -> int:
    return int(process.create_time() * 1000)
