"""The directories of results: `<results>/<job id>/attempt-<number>`, or `attempt-<number>-2` where a query
ran again; and of what streaming jobs keep: `<streams>/<job id>`. What else is in there is none of ours.

Whose a results directory is: a file in it bears the id of the installation that was first to remove files there.
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


class Freed(NamedTuple):
    """What is gone: how many directories, and how many bytes were in them."""

    directories: int
    bytes: int


def remove_job_directory(results: Path, job_id: str) -> bool:
    """Removes everything that attempts of a job wrote; tells whether it is gone, as it is where they wrote nothing.

    What cannot be removed now is told in the log, and found again as left over.
    """
    # Under the name of a job that never was, first: who is reading a result must find all of its files, or none.
    away = results / str(uuid.uuid4())
    try:
        (results / job_id).rename(away)
    except FileNotFoundError:
        return True
    except OSError as error:
        _tell(results / job_id, error)
        return False
    return _remove(away)


def jobs_unchanged_since(results: Path, seconds: float, at_once: int) -> Iterator[list[str]]:
    """Ids of the jobs whose directories have had no new attempt since that time (seconds since the epoch).

    In lists of at most `at_once`, so that any number of directories takes little memory.
    """
    found = (name for name in _job_directories(results) if _is_older(results / name, seconds))
    while some := list(islice(found, at_once)):
        yield some


def unpublished(results: Path, job_id: str, published: str | None) -> list[Path]:
    """The directories that attempts of a job left there, but for the published one (relative to `results`)."""
    return [
        path
        for path in (results / job_id).glob("attempt-*")
        if _ATTEMPT.fullmatch(path.name) and f"{job_id}/{path.name}" != published
    ]


def remove_unpublished(results: Path, job_id: str, published: str | None) -> Freed:
    """Removes those, and the job's directory too when that empties it; what cannot be removed is told in the log."""
    directories = freed = 0
    for path in unpublished(results, job_id, published):
        before = size_of(path)
        gone = _remove(path)
        directories += gone
        freed += before if gone else before - size_of(path)
    remove_if_empty(results / job_id)
    return Freed(directories, freed)


def remove_whole(parent: Path, job_id: str) -> Freed:
    """Removes all that is in there of a job; what cannot be removed is told in the log."""
    before = size_of(parent / job_id)
    return Freed(1, before) if remove_job_directory(parent, job_id) else Freed(0, 0)


def remove_if_empty(directory: Path) -> None:
    """Removes a directory that nothing is in."""
    try:
        directory.rmdir()
    except OSError:
        # Not empty, or never made: both are fine.
        return


def size_of(directory: Path) -> int:
    """Bytes of the files below `directory`; what vanishes meanwhile counts nothing."""
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
        # Once more, to learn what is in the way.
        shutil.rmtree(path)
    except FileNotFoundError:
        # Another process is at it too.
        return not os.path.lexists(path)
    except OSError as error:
        _tell(path, error)
        return False
    return True


def _tell(path: Path, error: OSError) -> None:
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
        # Just removed with its job.
        return False


OWNER = ".evenkeel-installation"


def belongs_to(results: Path, installation: str) -> bool:
    """Whether the directory bears this id; one that bears none is given it. False too where it cannot be read."""
    path = results / OWNER
    try:
        with path.open("x", encoding="ascii") as file:
            file.write(installation)
        return True
    except FileNotFoundError:
        # Without a directory there is nothing to own.
        return True
    except OSError:
        # There already, or not ours to write.
        return bears(results, installation)


def bears(results: Path, installation: str | None) -> bool:
    """As `belongs_to`, and changes nothing: a directory without an id belongs to whoever asks."""
    try:
        return (results / OWNER).read_text(encoding="ascii").strip() == installation
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
