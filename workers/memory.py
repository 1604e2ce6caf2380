"""What the processes of a worker take of the machine's memory."""

from __future__ import annotations

from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Resident:
    """Resident memory in bytes; 0 for a process that is not there."""

    process: int
    jvm: int

    @property
    def total(self) -> int:
        """Of both together."""
        return self.process + self.jvm


def resident(jvm_pid: int | None) -> Resident:
    """What this process takes, and its JVM, where it has one. Never waits, and never raises for one that has gone."""
    return Resident(process=_resident_bytes(None), jvm=0 if jvm_pid is None else _resident_bytes(jvm_pid))


def _resident_bytes(pid: int | None) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
