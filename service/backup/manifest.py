"""The manifest and checksums of a backup, their verification, and the errors of backup and restore.

A backup has these files:

    manifest.json                      written last: a copy without it is incomplete
    SHA256SUMS                         one line for each file, in the format of `sha256sum -c`
    database.sqlite or database.dump
    results/<job id>/attempt-<number>/*.parquet
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, field_validator

from service.contract.model import Frozen

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
DATABASE_FILES = {"sqlite": "database.sqlite", "postgresql": "database.dump"}
RESULTS = "results"
FORMAT = 1
_CHUNK_BYTES = 1 << 20
_SUM_LINE = re.compile(r"([0-9a-f]{64})  (.+)\n")
_RESULT_FILE = re.compile(r"results/[0-9a-f-]{36}/attempt-\d+(-\d+)?/[^/\n\0]+\.parquet")


class BackupError(Exception):
    """A precondition is not met. The message says which, `advice` what to do. Nothing was changed."""

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class DamagedBackupError(BackupError):
    """The backup has changed since it was made, or was never completed."""


class Manifest(Frozen):
    """The facts of one backup. `rows` are the row counts of all tables; `results_missing` counts results that a job
    names and that did not exist when the backup was made; `results_lost` counts those of them that the database still
    names, so that the service did not remove them.
    """

    format: Literal[1] = 1
    version: str
    database: Literal["sqlite", "postgresql"]
    revision: str
    tool: str = Field(pattern=r"^(sqlite \d+(\.\d+)*|pg_dump \d+)$")
    created_at: str
    rows: dict[str, int]
    results: int
    results_missing: int
    results_lost: int = 0
    results_bytes: int
    sums_sha256: str

    @field_validator("rows")
    @classmethod
    def _counts_jobs(cls, rows: dict[str, int]) -> dict[str, int]:
        if "jobs" not in rows:
            raise ValueError("no count of jobs")
        return rows


class SumsWriter:
    """Writes SHA256SUMS, and calculates its own checksum."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / SUMS).open("x", encoding="utf-8")
        self._hash = hashlib.sha256()

    def add(self, name: str, sha256: str) -> None:
        """Adds a file by its path inside the backup."""
        line = f"{sha256}  {name}\n"
        self._file.write(line)
        self._hash.update(line.encode())

    def close(self) -> str:
        """Closes the file durably; returns its checksum."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._hash.hexdigest()


def sum_of(path: Path) -> str:
    """Returns the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def copy_with_sum(source: Path, target: Path) -> tuple[str, int]:
    """Copies a file to a new one, durably. Returns its SHA-256 and size in bytes. Raises OSError, and then leaves no
    file.
    """
    digest = hashlib.sha256()
    size = 0
    try:
        with source.open("rb") as read, target.open("xb") as written:
            while chunk := read.read(_CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                written.write(chunk)
            written.flush()
            os.fsync(written.fileno())
    except OSError:
        with suppress(OSError):
            target.unlink()
        raise
    return digest.hexdigest(), size


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Completes a backup: it is valid from now on."""
    part = directory / f"{MANIFEST}.part"
    with part.open("x", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=2) + "\n")
        file.flush()
        os.fsync(file.fileno())
    part.rename(directory / MANIFEST)


def read_manifest(directory: Path) -> Manifest:
    """Raises DamagedBackupError if the backup is incomplete or damaged, BackupError if a newer version made it."""
    try:
        found_manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        manifest_format = found_manifest["format"]
    except FileNotFoundError:
        raise DamagedBackupError(
            f"{directory} contains no complete backup: there is no {MANIFEST}",
            "Use a directory that `evenkeel backup` wrote to. A backup that was interrupted cannot be restored.",
        ) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(f"{MANIFEST} cannot be read: {type(error).__name__}") from None
    if isinstance(manifest_format, int) and manifest_format > FORMAT:
        raise BackupError(
            "the backup was made by a newer version of Evenkeel", "Restore it with that version or a later one."
        )
    try:
        return Manifest.model_validate(found_manifest)
    except ValidationError:
        raise _damaged(f"{MANIFEST} is invalid") from None


def verify(directory: Path, manifest: Manifest) -> None:
    """Reads every file of the backup. Raises DamagedBackupError for the first one that is missing or has changed."""
    names = set()
    for name, expected in read_sums(directory, manifest):
        names.add(name)
        try:
            found = sum_of(directory / name)
        except OSError:
            raise _damaged(f"{name} is missing or cannot be read") from None
        if found != expected:
            raise _damaged(f"{name} has changed since the backup was made")
    if DATABASE_FILES[manifest.database] not in names:
        raise _damaged(f"{SUMS} does not list the database")


def read_sums(directory: Path, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yields every file of the backup with its checksum. Raises DamagedBackupError if the list has changed."""
    try:
        if sum_of(directory / SUMS) != manifest.sums_sha256:
            raise _damaged(f"{SUMS} has changed since the backup was made")
        with (directory / SUMS).open(encoding="utf-8") as file:
            for line in file:
                match = _SUM_LINE.fullmatch(line)
                if match is None or not _is_ours(match.group(2)):
                    raise _damaged(f"{SUMS} contains an invalid line")
                yield match.group(2), match.group(1)
    except OSError:
        raise _damaged(f"{SUMS} is missing or cannot be read") from None


def _is_ours(name: str) -> bool:
    return name in DATABASE_FILES.values() or _RESULT_FILE.fullmatch(name) is not None


def _damaged(what: str) -> DamagedBackupError:
    return DamagedBackupError(f"the backup is damaged: {what}", "Nothing was changed. Use another copy of the backup.")
