"""The directories of results: `<results>/<job id>/attempt-<number>` (`attempt-<number>-2` if a query ran again) for
batch jobs, and `<streams>/<job id>` for streaming jobs. Anything else in there is left alone.

A file in a results directory contains the id of the installation that owns it: the first one to remove files there.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import structlog

_log = structlog.get_logger(__name__)
_JOB = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT = re.compile(r"attempt-\d+(-\d+)?")
OWNER = ".evenkeel-installation"


class Freed(NamedTuple):
    """What was removed: the number of directories, and the bytes of their files."""

    directories: int
    bytes: int


def remove_job_directory(results: Path, job_id: str) -> bool:
    """Removes everything that attempts of a job wrote. Returns whether the directory is gone, also if it never existed.

    What cannot be removed now is logged, and a later purge finds it as a leftover.
    """
    # First renamed to the id of a job that does not exist: a reader must find all files of a result, or none.
    removed = results / str(uuid.uuid4())
    try:
        (results / job_id).rename(removed)
    except FileNotFoundError:
        return True
    except OSError as error:
        _log_failure(results / job_id, error)
        return False
    return _remove(removed)


def jobs_unchanged_since(results: Path, seconds: float, at_once: int) -> Iterator[list[str]]:
    """Yields ids of jobs whose directories have had no new attempt since `seconds` (since the epoch).

    In lists of at most `at_once`, so that any number of directories takes little memory.
    """
    found = (name for name in _job_directories(results) if _is_older(results / name, seconds))
    while some := list(islice(found, at_once)):
        yield some


def unpublished(results: Path, job_id: str, published: str | None) -> list[Path]:
    """Returns the attempt directories of a job, except the published one (a path relative to `results`)."""
    return [
        path
        for path in (results / job_id).glob("attempt-*")
        if _ATTEMPT.fullmatch(path.name) and f"{job_id}/{path.name}" != published
    ]


def remove_unpublished(results: Path, job_id: str, published: str | None) -> Freed:
    """Removes the unpublished attempts, and the job's directory if it is then empty; logs what cannot be removed."""
    directories = freed = 0
    for path in unpublished(results, job_id, published):
        before = size_of(path)
        gone = _remove(path)
        directories += gone
        freed += before if gone else before - size_of(path)
    remove_if_empty(results / job_id)
    return Freed(directories, freed)


def remove_whole(parent: Path, job_id: str) -> Freed:
    """Removes everything of a job below `parent`; logs what cannot be removed."""
    before = size_of(parent / job_id)
    return Freed(1, before) if remove_job_directory(parent, job_id) else Freed(0, 0)


def remove_if_empty(directory: Path) -> None:
    """Removes an empty directory."""
    try:
        directory.rmdir()
    except OSError:
        # Not empty, or it does not exist: both are fine.
        return


def size_of(directory: Path) -> int:
    """Returns the bytes of the files below `directory`; files that vanish in the meantime are not counted."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                size += (Path(parent) / name).lstat().st_size
            except OSError:
                continue
    return size


def _remove(path: Path) -> bool:
    shutil.rmtree(path, ignore_errors=True)
    if not os.path.lexists(path):
        return True
    try:
        # Try again without ignoring errors, to find the reason.
        shutil.rmtree(path)
    except FileNotFoundError:
        # Another process is removing it too.
        return not os.path.lexists(path)
    except OSError as error:
        _log_failure(path, error)
        return False
    return True


def _log_failure(path: Path, error: OSError) -> None:
    _log.warning("files_not_removed", path=str(path), errno=error.errno, error=error.strerror)


def _job_directories(results: Path) -> Iterator[str]:
    if not results.is_dir():
        return
    with os.scandir(results) as entries:
        for entry in entries:
            if _JOB.fullmatch(entry.name):
                yield entry.name


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return path.stat().st_mtime < seconds
    except OSError:
        # Removed with its job in the meantime.
        return False


def claim_directory(results: Path, installation: str) -> bool:
    """Whether this installation owns the directory. Claims a directory without an owner; returns False if it is
    unreadable.
    """
    path = results / OWNER
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(installation)
        return True
    except FileNotFoundError:
        # The directory does not exist, so it has no other owner.
        return True
    except OSError:
        # The file exists, or cannot be written.
        return is_own_directory(results, installation)


def is_own_directory(results: Path, installation: str | None) -> bool:
    """As `claim_directory`, but changes nothing: a directory without an owner counts as owned by this installation."""
    try:
        return (results / OWNER).read_text(encoding="ascii").strip() == installation
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
