"""Files and directories that survive a power cut once they are there, and are there wholly or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def create(path: Path, text: str) -> bool:
    """Makes a file, of several processes that try the first one; False, and nothing changed, where there is one.

    Raises OSError.
    """
    make_directory(path.parent)
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, it never takes the place of what is there.
        os.link(hidden, path)
    except FileExistsError:
        return False
    finally:
        hidden.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def make_directory(directory: Path) -> None:
    """Makes a directory with all above it."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
