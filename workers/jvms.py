"""Ends the JVM that PySpark starts, and the scripts that start it, while nobody has its process at hand yet."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

_END_SECONDS = 10.0
"""A killed JVM gives its memory back first, which takes its time on a machine that is busy."""


def kill_jvms(scratch: Path) -> list[psutil.Process]:
    """Kills every JVM of this process, and the scripts that start one: all have the scratch directory as an argument.

    Gives those it killed. PySpark tells its process only once the JVM has answered, and is the one to wait for it.
    """
    found = _find(scratch)
    kill_all(found)
    return found


def kill_all(processes: Iterable[psutil.Process]) -> None:
    """Kills those that are there still."""
    for process in processes:
        # One that has ended meanwhile, as the launcher does just before its script becomes the JVM, saves no other.
        with suppress(psutil.Error):
            process.kill()


def await_end(processes: Iterable[psutil.Process]) -> None:
    """Waits for killed processes, bounded in time, and lets the kernel forget those that are this process's children.

    Only for after PySpark has given up the start: before, it would take the JVM for one that ended well, and wait on.
    """
    psutil.wait_procs(list(processes), timeout=_END_SECONDS)


def _find(scratch: Path) -> list[psutil.Process]:
    """Each script before what it began: once it is gone, it cannot become a JVM."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(str(scratch) in argument for argument in child.cmdline()):
                found += [child, *_descendants(child)]
    return found


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []
