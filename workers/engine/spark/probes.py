"""What executors write to show that they share the results directory: `<results>/.probe-<32 hexadecimal digits>`."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

_NAME = re.compile(r"\.probe-[0-9a-f]{32}")


def new_probe(directory: Path) -> Path:
    """Where to write this time; nothing is there."""
    return directory / f".probe-{uuid4().hex}"


def remove_old_probes(directory: Path, before: float) -> int:
    """Removes what processes left that ended before they could, last changed before that time (seconds since the
    epoch); gives how many. Without the directory, 0."""
    removed = 0
    for probe in directory.glob(".probe-*"):
        # One that somebody else removes at this moment is gone as well.
        with suppress(OSError):
            if _NAME.fullmatch(probe.name) and probe.lstat().st_mtime < before:
                shutil.rmtree(probe)
                removed += 1
    return removed
