"""The versions of a table that a stream follows: copies of its files, of which Spark reads nothing else.

    <streams>/<job>/g<generation>/dimensions/<table>/v<number>/manifest.json
    <streams>/<job>/g<generation>/dimensions/<table>/v<number>/<place><suffixes>    a file as it was

The manifest tells sizes, and the names of the table's own files, which earlier versions of the service left out.

Copies and not links: a file that is written again in its place would change under a link. A version is made aside and
shown by one rename, with its manifest in it, so that one is there wholly or not at all; it never changes.

Which versions of the followed tables each mini-batch runs with: decided before it begins.

    <streams>/<job>/g<generation>/versions/<number of the mini-batch>-<fence>.json
    <streams>/<job>/g<generation>/versions/fence-<fence>     of the last attempt

A mini-batch that was cut short comes again, perhaps after its sink took it. Run with another version, it would bring
rows into the state that the sink never saw, and both would differ for ever. So each attempt that begins one writes down
what it runs it with, and an attempt whose sink has the mini-batch follows the decision of the newest before it: older
ones were shut out of the sink before that decided. Where the sink does not have it, the state does not either, and the
next attempt decides anew.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.data.file_io import DataFile, UriFile, create, make_directory, opened, size_of, sync_directory, version_of
from service.data.files import TableFiles, real

_MANIFEST = "manifest.json"
_CHUNK = 4 << 20
_SHOWN = re.compile(r"v([1-9][0-9]*)")
_SUFFIXES = re.compile(r"(?:\.[A-Za-z0-9_-]{1,16}){0,2}$")
_MARGIN = 2
"""A copy is begun where so many times its bytes are free: checkpoints are on the same disk, and need room, too."""


@dataclass(frozen=True)
class Version:
    """One version. `fingerprint` tells what the table's own files were like; `taken_at` in milliseconds since the
    epoch.
    """

    number: int
    fingerprint: str
    taken_at: int
    files: TableFiles


@dataclass(frozen=True)
class Draft:
    """A copy that is no version yet."""

    fingerprint: str
    files: TableFiles
    own: tuple[str, ...]
    """Names of the table's own files, in the same order, below the table's path; empty for one that is that path."""


def fingerprint_of(found: TableFiles) -> str | None:
    """What is other once somebody has added, removed or written a file of those that were listed; None where a store
    does not tell.
    """
    if None in found.versions:
        return None
    told = [[_path_of(file), *(version or ())] for file, version in zip(found.files, found.versions, strict=True)]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()


def suffixes_of(name: str) -> str:
    """The last two suffixes of a file's name: Spark tells by them how it is compressed. Nothing else of the name is
    kept, since Spark cannot read each.
    """
    found = _SUFFIXES.search(name)
    return found[0] if found is not None else ""


def directory_name(table: str) -> str:
    """What the directory of a table's versions is called, whatever characters its name has."""
    plain = re.sub(r"[^A-Za-z0-9_]", "-", table)[:40]
    return f"{plain}-{hashlib.sha256(table.encode()).hexdigest()[:8]}"


class DimensionVersions:
    """Those of one table, in a directory of their own. `fence` keeps apart what attempts leave half done."""

    def __init__(self, directory: Path, table: str, fence: int) -> None:
        # It may be told by way of links; its files are opened without following any.
        self._directory = real(directory)
        self._table = table
        self._draft = directory / f".draft-{fence}"

    @property
    def directory(self) -> Path:
        """Below which all of its copies are."""
        return self._directory

    def newest(self) -> Version | None:
        """The one with the highest number. Raises OSError."""
        return self.find(max(self._numbers(), default=0))

    def find(self, number: int) -> Version | None:
        """The version of that number, with all its files; None where it is not there, or not whole. Raises OSError."""
        directory = self._directory / f"v{number}"
        try:
            told = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
            files = tuple(directory / name for name, _ in told["files"])
            sizes = [file.stat().st_size for file in files]
        except FileNotFoundError:
            return None
        if sizes != [size for _, size in told["files"]]:
            return None
        found = TableFiles(self._table, directory, files, sum(sizes), tuple(map(version_of, files)))
        return Version(number, told["fingerprint"], told["taken_at"], found)

    def own_name(self, number: int, copy: str) -> str | None:
        """The name of the table's own file, below the table's path, of which a version has that copy; None where nobody
        knows. Raises nothing.
        """
        try:
            told = json.loads((self._directory / f"v{number}" / _MANIFEST).read_text(encoding="utf-8"))
            own = dict(zip((name for name, _ in told["files"]), told["own"], strict=True))[copy]
        except (OSError, ValueError, KeyError):
            return None
        # Any bytes may be a name.
        return str(own).encode(errors="replace").decode()

    def copy(self, found: TableFiles, fingerprint: str, check: Callable[[], object]) -> Draft:
        """Copies the table's files. `check` is called every few megabytes, and may end it by what it raises.

        Raises OSError, FileNotFoundError among them for a file that is gone, and StoreUnavailableError.
        """
        shutil.rmtree(self._draft, ignore_errors=True)
        make_directory(self._draft)
        if shutil.disk_usage(self._draft).free < _MARGIN * found.bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        copies = []
        for place, file in enumerate(found.files):
            copies.append(self._draft / f"{place:05d}{suffixes_of(file.name)}")
            _copy(file, copies[-1], check)
        size = sum(copy.stat().st_size for copy in copies)
        return Draft(fingerprint, TableFiles(self._table, self._draft, tuple(copies), size), _own_names(found))

    def keep(self, draft: Draft) -> Version:
        """Makes the draft the newest version. Raises OSError."""
        told = {
            "fingerprint": draft.fingerprint,
            "taken_at": time.time_ns() // 1_000_000,
            "files": [[file.name, size_of(file)] for file in draft.files.files],
            "own": draft.own,
        }
        with (self._draft / _MANIFEST).open("x", encoding="utf-8") as file:
            json.dump(told, file)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._draft)
        number = self._show()
        sync_directory(self._directory)
        version = self.find(number)
        if version is None:
            raise FileNotFoundError(f"version {number} is gone")
        return version

    def _show(self) -> int:
        """Gives the draft the next number that is free."""
        number = max(self._numbers(), default=0) + 1
        while True:
            try:
                self._draft.rename(self._directory / f"v{number}")
            except OSError as error:
                # Onto a directory with files in it, another attempt's, no rename leads.
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                number += 1
            else:
                return number

    def drop_drafts(self) -> None:
        """Removes what this attempt and those before it left half done."""
        own = _fence_of(self._draft)
        for path in self._directory.glob(".draft-*"):
            if _fence_of(path) <= own:
                shutil.rmtree(path, ignore_errors=True)

    def keep_only(self, numbers: Collection[int]) -> None:
        """Removes the other versions below the newest of these; what is above it, another attempt has made since."""
        newest = max(numbers, default=0)
        for number in self._numbers():
            if number < newest and number not in numbers:
                self.remove(number)

    def remove(self, number: int) -> None:
        """Removes a version."""
        shutil.rmtree(self._directory / f"v{number}", ignore_errors=True)

    def _numbers(self) -> list[int]:
        found = (_SHOWN.fullmatch(path.name) for path in self._directory.glob("v*"))
        return [int(shown[1]) for shown in found if shown is not None]


def _copy(file: DataFile, target: Path, check: Callable[[], object]) -> None:
    with opened(file) as source, target.open("xb") as copy:
        while chunk := source.read(_CHUNK):
            copy.write(chunk)
            check()
        copy.flush()
        os.fsync(copy.fileno())


def _path_of(file: DataFile) -> str:
    return file.path if isinstance(file, UriFile) else str(file)


def _own_names(found: TableFiles) -> tuple[str, ...]:
    place = found.directory_or_file
    below = str(place) if isinstance(place, Path) else place.path
    return tuple(_path_of(file).removeprefix(below).strip("/") for file in found.files)


def _fence_of(draft: Path) -> int:
    told = draft.name.rpartition("-")[2]
    return int(told) if told.isdecimal() else 0


_FENCE = "fence-"
_DECISION = re.compile(r"([0-9]+)-([0-9]+)\.json")

KEPT = 100
"""Mini-batches of which it is known, as many as Spark tells of; the last one alone can come again."""


@dataclass(frozen=True)
class Use:
    """A version in use, and the first mini-batch in a row that ran with it."""

    version: int
    since: int


class BatchVersions:
    """Those of one checkpoint, in a directory of their own, for the attempt that has the token `fence`."""

    def __init__(self, directory: Path, fence: int) -> None:
        self._directory = directory
        self._fence = fence

    def announce(self) -> None:
        """Tells attempts with older tokens that they are not the last one any more. Raises OSError."""
        make_directory(self._directory)
        (self._directory / f"{_FENCE}{self._fence}").touch()
        for fence in self._announced():
            if fence < self._fence:
                (self._directory / f"{_FENCE}{fence}").unlink(missing_ok=True)

    @property
    def is_overtaken(self) -> bool:
        """Whether an attempt with a newer token was announced. Raises OSError."""
        return max(self._announced(), default=0) > self._fence

    def _announced(self) -> list[int]:
        told = [path.name.removeprefix(_FENCE) for path in self._directory.glob(f"{_FENCE}*")]
        return [int(fence) for fence in told if fence.isdecimal()]

    def newest(self) -> int | None:
        """The last mini-batch that was begun with a decision. Raises OSError."""
        return max((batch_id for batch_id, _ in self._decided()), default=None)

    def of(self, batch_id: int, *, by_earlier: bool = True) -> dict[str, Use] | None:
        """What the last attempt that decided of a mini-batch decided, by table; None where none did, or it is
        forgotten. Without those `by_earlier` attempts, of this one and newer ones alone. Raises OSError.
        """
        fences = [fence for decided, fence in self._decided() if decided == batch_id]
        newest = max(fences, default=None)
        if newest is None or (newest < self._fence and not by_earlier):
            return None
        try:
            told = json.loads(self._path(batch_id, newest).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return {table: Use(use["version"], use["since"]) for table, use in told.items()}

    def decide(self, batch_id: int, versions: Mapping[str, int]) -> dict[str, Use]:
        """What the mini-batch runs with: `versions`, unless this attempt has decided already, or a newer one. Durable
        when it returns.

        Raises OSError.
        """
        before = self.of(batch_id - 1) or {}
        uses = {}
        for table, version in versions.items():
            known = before.get(table)
            uses[table] = known if known is not None and known.version == version else Use(version, batch_id)
        told = {table: {"version": use.version, "since": use.since} for table, use in uses.items()}
        create(self._path(batch_id, self._fence), json.dumps(told))
        for old, fence in self._decided():
            if old <= batch_id - KEPT:
                self._path(old, fence).unlink(missing_ok=True)
        return self.of(batch_id) or uses

    def _decided(self) -> list[tuple[int, int]]:
        found = (_DECISION.fullmatch(path.name) for path in self._directory.glob("[0-9]*.json"))
        return [(int(decision[1]), int(decision[2])) for decision in found if decision is not None]

    def _path(self, batch_id: int, fence: int) -> Path:
        return self._directory / f"{batch_id}-{fence}.json"
