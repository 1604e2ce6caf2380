"""The versions of lookup tables on disk, and the record of which versions each mini-batch uses.

    <streams>/<job>/g<generation>/dimensions/<table>/v<number>/manifest.json
    <streams>/<job>/g<generation>/dimensions/<table>/v<number>/<place><suffixes>    a copied file
    <streams>/<job>/g<generation>/versions/<number of the mini-batch>-<fence>.json
    <streams>/<job>/g<generation>/versions/fence-<fence>                            of the last attempt

Spark reads only the copies. See `TableVersions` for the copies, `BatchVersions` for the record.
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
from dataclasses import asdict, dataclass
from pathlib import Path

from service.data.file_io import DataFile, UriFile, create, make_directory, opened, size_of, sync_directory, version_of
from service.data.files import TableFiles, real

_MANIFEST = "manifest.json"
_CHUNK = 4 << 20
_VERSION_NAME = re.compile(r"v([1-9][0-9]*)")
_SUFFIXES = re.compile(r"(?:\.[A-Za-z0-9_-]{1,16}){0,2}$")
_MARGIN = 2
"""A copy begins only if this many times its bytes are free: checkpoints are on the same disk, and need space, too."""

KEPT = 100
"""For how many mini-batches the decision is kept: as many as Spark reports. Only the last one can run again."""

_FENCE = "fence-"
_DECISION = re.compile(r"([0-9]+)-([0-9]+)\.json")


@dataclass(frozen=True)
class Version:
    """One version of a table. `fingerprint` identifies the state of the table's own files; `created_at` is in
    milliseconds since the epoch.
    """

    number: int
    fingerprint: str
    created_at: int
    files: TableFiles


@dataclass(frozen=True)
class Draft:
    """A copy that is not a version yet."""

    fingerprint: str
    files: TableFiles
    own: tuple[str, ...]
    """The paths of the table's own files relative to the table, in the same order; empty for a table of one file."""


def fingerprint_of(found: TableFiles) -> str | None:
    """Returns a value that changes if a listed file is added, removed or written; None if the store does not report
    versions.
    """
    if None in found.versions:
        return None
    files = [[_path_of(file), *(version or ())] for file, version in zip(found.files, found.versions, strict=True)]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()


def suffixes_of(name: str) -> str:
    """Returns the last two suffixes of a file's name, from which Spark infers the compression. Spark cannot read every
    name, so a copy keeps nothing else of it.
    """
    found = _SUFFIXES.search(name)
    return found[0] if found is not None else ""


def directory_name(table: str) -> str:
    """Returns a valid directory name for a table's versions, for any table name."""
    plain = re.sub(r"[^A-Za-z0-9_]", "-", table)[:40]
    return f"{plain}-{hashlib.sha256(table.encode()).hexdigest()[:8]}"


class TableVersions:
    """The versions of one table, in their own directory. `fence` separates the drafts of different attempts.

    A version has copies and not links, since a file that is overwritten would change under a link. A version is copied
    to a draft directory and published by one rename, together with its manifest. So it exists completely or not at all,
    and never changes. The manifest has the sizes, and the names of the table's own files, which earlier versions of the
    service omitted.
    """

    def __init__(self, directory: Path, table: str, fence: int) -> None:
        # The configured path may contain links; files are opened without following links.
        self._directory = real(directory)
        self._table = table
        self._draft = directory / f".draft-{fence}"

    @property
    def directory(self) -> Path:
        """The directory of all copies of the table."""
        return self._directory

    def newest(self) -> Version | None:
        """Returns the version with the highest number; None if there is none. Raises OSError."""
        return self.find(max(self._numbers(), default=0))

    def find(self, number: int) -> Version | None:
        """Returns the version of that number; None if it is missing or not complete. Raises OSError."""
        directory = self._directory / f"v{number}"
        try:
            manifest = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))
            files = tuple(directory / name for name, _ in manifest["files"])
            sizes = [file.stat().st_size for file in files]
        except FileNotFoundError:
            return None
        if sizes != [size for _, size in manifest["files"]]:
            return None
        found = TableFiles(self._table, directory, files, sum(sizes), tuple(map(version_of, files)))
        return Version(number, manifest["fingerprint"], manifest["taken_at"], found)

    def own_name(self, number: int, copy: str) -> str | None:
        """Returns the path, relative to the table, of the file from which a version has that copy; None if unknown.
        Raises nothing.
        """
        try:
            manifest = json.loads((self._directory / f"v{number}" / _MANIFEST).read_text(encoding="utf-8"))
            own = dict(zip((name for name, _ in manifest["files"]), manifest["own"], strict=True))[copy]
        except (OSError, ValueError, KeyError):
            return None
        # A file name may be any bytes.
        return str(own).encode(errors="replace").decode()

    def copy(self, found: TableFiles, fingerprint: str, check: Callable[[], object]) -> Draft:
        """Copies the table's files. `check` is called every few megabytes, and may raise to stop the copy.

        Raises OSError (FileNotFoundError for a file that no longer exists), and StoreUnavailableError.
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
        manifest = {
            "fingerprint": draft.fingerprint,
            "taken_at": time.time_ns() // 1_000_000,
            "files": [[file.name, size_of(file)] for file in draft.files.files],
            "own": draft.own,
        }
        with (self._draft / _MANIFEST).open("x", encoding="utf-8") as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._draft)
        number = self._publish()
        sync_directory(self._directory)
        version = self.find(number)
        if version is None:
            raise FileNotFoundError(f"version {number} is missing")
        return version

    def _publish(self) -> int:
        """Renames the draft to the next free number, and returns the number."""
        number = max(self._numbers(), default=0) + 1
        while True:
            try:
                self._draft.rename(self._directory / f"v{number}")
            except OSError as error:
                # Another attempt has made this version: a rename does not replace a directory with files.
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                number += 1
            else:
                return number

    def drop_drafts(self) -> None:
        """Removes the drafts of this attempt and of earlier ones."""
        own = _fence_of(self._draft)
        for path in self._directory.glob(".draft-*"):
            if _fence_of(path) <= own:
                shutil.rmtree(path, ignore_errors=True)

    def keep_only(self, numbers: Collection[int]) -> None:
        """Removes the other versions older than the newest of these. A newer attempt may have made the later ones."""
        newest = max(numbers, default=0)
        for number in self._numbers():
            if number < newest and number not in numbers:
                self.remove(number)

    def remove(self, number: int) -> None:
        """Removes a version."""
        shutil.rmtree(self._directory / f"v{number}", ignore_errors=True)

    def _numbers(self) -> list[int]:
        found = (_VERSION_NAME.fullmatch(path.name) for path in self._directory.glob("v*"))
        return [int(name[1]) for name in found if name is not None]


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
    fence = draft.name.rpartition("-")[2]
    return int(fence) if fence.isdecimal() else 0


@dataclass(frozen=True)
class Use:
    """A version in use, and the first mini-batch in a row that ran with it."""

    version: int
    since: int


class BatchVersions:
    """The record of which versions each mini-batch of a checkpoint uses, for the attempt with the token `fence`.

    A mini-batch that was interrupted runs again, perhaps after its sink committed it. With another version, it would
    put rows into the state that the sink never received, and both would differ from then on. So each attempt records
    the versions of a mini-batch before it begins. An attempt whose sink has the mini-batch uses the newest decision
    before its own: older attempts were fenced off from the sink before that decision. If the sink does not have the
    mini-batch, the state does not have it either, and the next attempt decides again.
    """

    def __init__(self, directory: Path, fence: int) -> None:
        self._directory = directory
        self._fence = fence

    def announce(self) -> None:
        """Records this attempt as the last one; attempts with older tokens find that out. Raises OSError."""
        make_directory(self._directory)
        (self._directory / f"{_FENCE}{self._fence}").touch()
        for fence in self._announced():
            if fence < self._fence:
                (self._directory / f"{_FENCE}{fence}").unlink(missing_ok=True)

    @property
    def is_superseded(self) -> bool:
        """Whether an attempt with a newer token has started. Raises OSError."""
        return max(self._announced(), default=0) > self._fence

    def _announced(self) -> list[int]:
        names = [path.name.removeprefix(_FENCE) for path in self._directory.glob(f"{_FENCE}*")]
        return [int(fence) for fence in names if fence.isdecimal()]

    def newest(self) -> int | None:
        """Returns the last mini-batch that has a decision; None if there is none. Raises OSError."""
        return max((batch_id for batch_id, _ in self._decided()), default=None)

    def of(self, batch_id: int, *, by_earlier: bool = True) -> dict[str, Use] | None:
        """Returns the newest decision for a mini-batch, by table; None if there is none, or it was removed. With
        `by_earlier` False, only decisions of this attempt and newer ones count. Raises OSError.
        """
        fences = [fence for decided, fence in self._decided() if decided == batch_id]
        newest = max(fences, default=None)
        if newest is None or (newest < self._fence and not by_earlier):
            return None
        try:
            decision = json.loads(self._path(batch_id, newest).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return {table: Use(use["version"], use["since"]) for table, use in decision.items()}

    def decide(self, batch_id: int, versions: Mapping[str, int]) -> dict[str, Use]:
        """Decides that the mini-batch runs with `versions`, unless this attempt or a newer one has decided already.
        Returns the decision, which is durable by then. Raises OSError.
        """
        before = self.of(batch_id - 1) or {}
        uses = {}
        for table, version in versions.items():
            known = before.get(table)
            uses[table] = known if known is not None and known.version == version else Use(version, batch_id)
        decision = {table: asdict(use) for table, use in uses.items()}
        create(self._path(batch_id, self._fence), json.dumps(decision))
        for old, fence in self._decided():
            if old <= batch_id - KEPT:
                self._path(old, fence).unlink(missing_ok=True)
        return self.of(batch_id) or uses

    def _decided(self) -> list[tuple[int, int]]:
        found = (_DECISION.fullmatch(path.name) for path in self._directory.glob("[0-9]*.json"))
        return [(int(name[1]), int(name[2])) for name in found if name is not None]

    def _path(self, batch_id: int, fence: int) -> Path:
        return self._directory / f"{batch_id}-{fence}.json"
