"""Acting as somebody who may not read everything, also where the tests run as root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def without_privileges(*needed: Path) -> Iterator[None]:
    """Inside, root's power over files is laid down; the `needed` directories and those above them stay passable.

    Somebody who is not root has nothing to lay down.
    """
    if os.geteuid() != 0:
        yield
        return
    passable = {directory for path in needed for directory in (path, *path.parents) if directory.owner() == "root"}
    before = {directory: directory.stat().st_mode for directory in passable}
    for directory, mode in before.items():
        directory.chmod(mode | 0o011)  # the group stays, and decides first
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        for directory, mode in before.items():
            directory.chmod(mode)
