"""Drops the file permissions of root, for tests of unreadable files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def without_privileges(*needed: Path) -> Iterator[None]:
    """Runs the block without root's permissions on files. The `needed` directories and their parents stay accessible.

    Does nothing for a user other than root.
    """
    if os.geteuid() != 0:
        yield
        return
    passable = {directory for path in needed for directory in (path, *path.parents) if directory.owner() == "root"}
    before = {directory: directory.stat().st_mode for directory in passable}
    for directory, mode in before.items():
        directory.chmod(mode | 0o011)  # The group stays and is checked first.
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for directory, mode in before.items():
            directory.chmod(mode)
