"""One `up` or `demo` a state directory, and no leftovers of those that were killed.

The lock is the system's own on a file (`flock`): it ends with the process that holds it, however that ends.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from service.cli.errors import CliError, ExitCode

_LOCK = "evenkeel.lock"
_TEMPORARY = "evenkeel-demo-"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds an existing state directory for this process alone. Raises CliError where another one has it."""
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try_lock(descriptor):
            raise CliError(
                f"another evenkeel is running in {directory}",
                "Stop it, or set EVENKEEL_STATE_DIR to another directory.",
                code=ExitCode.MISSING,
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def temporary_state_dir(*, keep: bool) -> Iterator[Path]:
    """A new directory for one demo, removed at the end unless it is to be kept, as are those of killed demos."""
    remove_abandoned(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
    try:
        yield directory
    finally:
        if keep:
            # What is kept on purpose is not left over.
            (directory / _LOCK).unlink(missing_ok=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Removes the temporary state directories of this user below `parent` whose process is gone."""
    for directory in parent.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):  # somebody else's, or just gone
            if directory.stat().st_uid == os.getuid() and _is_abandoned(directory):
                shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    """Whether its lock was made and nobody holds it: one without a lock file is being made, or was kept."""
    descriptor = os.open(directory / _LOCK, os.O_RDWR)
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
