"""The memory that this process may take: the machine's, or less where a container or a service bounds it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

_MEMBERSHIP = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes in all, and bytes that can be had now."""

    total: int
    available: int


@dataclass(frozen=True)
class _Version:
    """Where a version of control groups has its files, and what they are called."""

    limit: str
    usage: str
    reclaimable: str
    """In `memory.stat`: pages of files, which the kernel drops first. They count as used."""


_V1 = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2 = _Version("memory.max", "memory.current", "inactive_file")


def memory_at_hand(membership: Path = _MEMBERSHIP, mount: Path = _MOUNT) -> Memory:
    """The least of what the machine has and what each control group of this process allows, of version 1 or 2.

    `membership` names the groups; `mount` has their files. What is missing or says nothing bounds nothing.
    """
    machine = psutil.virtual_memory()
    total, available = machine.total, machine.available
    for version, group in _groups(membership, mount):
        limit = _number(group / version.limit)
        if limit is not None:
            used = (_number(group / version.usage) or 0) - _reclaimable(group / "memory.stat", version.reclaimable)
            total, available = min(total, limit), min(available, limit - used)
    return Memory(total, max(0, available))


def _groups(membership: Path, mount: Path) -> Iterator[tuple[_Version, Path]]:
    """Every group, from that of the process up to the topmost: each has a limit of its own.

    In a container the topmost of those to be seen is the container's, under whatever path the membership names.
    """
    for line in _lines(membership):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if "memory" in controllers.split(","):
            version, top = _V1, mount / "memory"
        elif number == "0" and not controllers:
            version, top = _V2, mount
        else:
            continue
        group = Path(path.strip().lstrip("/"))
        for part in (group, *group.parents) if group.parts else (group,):
            yield version, top / part


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdecimal() else None  # "max" is no limit


def _reclaimable(path: Path, name: str) -> int:
    return next((int(line.split()[1]) for line in _lines(path) if line.startswith(f"{name} ")), 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
