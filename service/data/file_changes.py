"""Checks that a table's files have not changed since planning, and lists new files of streams.

A job reads the files that its planning found, and no others. Statistics, Spark's own listing and Spark's tasks read
them later, some of them several times, so a file that is written in the meantime could be read in two states.
`changed_files` compares the version of each file (`version_of`) before and after. If one differs, the result may be
wrong and is not published.

Not detected are same-size changes within the time resolution of the file system (a few ms on local disks, a second in
most object stores), with a restored modification time, with times from a network file system's cache, or on a file
system without times. Files added to a directory are not read, so they are no change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.config.data import Location
from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.file_io import DataFile, UriFile, is_same_version, size_of, version_of
from service.data.files import MAX_DEPTH, TableFiles, find_stream_files, is_inside, pointer_of, real, unreadable
from service.data.roots import Child, DirectoryRoot, Root, Store, StoreRoot

CODE = "files_changed"
NOT_KEPT = (
    "The result could mix old and new rows, so it is discarded. Submit the job again; with 'limits.failure_retries' "
    "this happens automatically."
)
"""The consequence of a change for a batch job, and what the client can do."""
Version = tuple[int, ...]
_is_link = os.path.islink
"""Works on strings: creating a `Path` for each file would cost several times as much as the check."""


def changed_files(found: TableFiles, consequence: str = NOT_KEPT) -> SpecError | None:
    """Returns the error if a file of the table was written, replaced or removed since it was found; else None. Its
    message names the first such file and ends with `consequence`.

    Raises SpecError `unreadable_file`, and StoreUnavailableError if the store does not answer, or if all listings
    together take longer than the limit for finding the files.
    """
    for file, before, now in _versions(found):
        if not is_same_version(before, now):
            happened = "was removed" if now is None else "has changed"
            detail = (
                f"The file '{_name(found, file)}' of the table '{found.table}' {happened} since the job was planned. "
                f"{consequence}"
            )
            return SpecError.of(CODE, detail, pointer=f"{pointer_of(found.table)}/path")
    return None


def _versions(found: TableFiles) -> Iterator[tuple[DataFile, Version, Version | None]]:
    """Yields each file with its version when it was found and its version now, which is None for a removed file."""
    listings = _Listings(found)
    for place, file in enumerate(found.files):
        before = found.versions[place] if found.versions else None
        if isinstance(file, UriFile) and file.store is not None:
            child = listings.child(file, file.store)
            # If the store has no modification times, compare sizes only.
            of_size = before is None
            now = None if child is None else (child.size,) if of_size else (child.size, child.modified or 0)
            yield file, before or (file.size,), now
        elif before is not None:
            yield file, before, _local_version(found, file)


def _local_version(found: TableFiles, file: DataFile) -> Version | None:
    try:
        return version_of(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(_name(found, file), error, f"{pointer_of(found.table)}/path") from None


class _Listings:
    """The current entries of one table's files in the store. Each directory is listed once."""

    def __init__(self, found: TableFiles) -> None:
        self._place = str(found.directory_or_file)
        self._known: dict[str, dict[str, Child]] = {}
        self._deadline: float | None = None

    def child(self, file: UriFile, store: Store) -> Child | None:
        """Returns the entry of a file, read as it was when the file was found: by its own name, or from a listing of
        its directory. The resolution of times may differ between the two.
        """
        if self._place == file.uri:
            return store.entry(file.path)
        if self._deadline is None:
            self._deadline = store.clock() + store.search_seconds
        directory, _, name = file.path.rpartition("/")
        if directory not in self._known:
            listed = store.children(directory, self._deadline - store.clock()) or ()
            self._known[directory] = {child.name: child for child in listed if child.is_file}
        return self._known[directory].get(name)


def _name(found: TableFiles, file: DataFile) -> str:
    """Returns a file's path relative to the table's path; messages contain no other part of it."""
    place = found.directory_or_file
    below = place.path if isinstance(place, Location) else str(place)
    path = file.path if isinstance(file, UriFile) else str(file)
    # File names may be arbitrary bytes.
    return (path.removeprefix(below).strip("/") or file.name).encode(errors="replace").decode()


class Confines:
    """The local directories below which files may be read."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._allowed = tuple(map(real, directories))

    @classmethod
    def of(cls, roots: Sequence[Root], further: Iterable[Path] = ()) -> Confines:
        """Returns the local data roots and the `further` directories."""
        local = [
            root.path if isinstance(root, DirectoryRoot) else root for root in roots if not isinstance(root, StoreRoot)
        ]
        return cls((*local, *further))

    def hold(self, path: str) -> bool:
        """Whether the absolute `path` resolves to a place inside, whether it exists or not."""
        there = real(Path(path))
        return any(is_inside(there, directory) for directory in self._allowed)

    def first_outside(self, paths: Iterable[str]) -> str | None:
        """Returns the first of the absolute file paths that resolves to a place outside; None if there is none. Costs
        one check for each file, and a few more for each directory.
        """
        directories: dict[str, bool] = {}
        for path in paths:
            directory = path.rpartition("/")[0] or "/"
            if directory not in directories:
                directories[directory] = self.hold(directory)
            if not directories[directory] or (_is_link(path) and not self.hold(path)):
                return path
        return None

    def link_of(self, path: str, base: str) -> str:
        """Returns the part of a path below `base` up to and including the first link that leads outside; empty if that
        is `base` itself.
        """
        below = path.removeprefix(base).strip("/")
        parts = below.split("/")
        prefixes = ("/".join(parts[:count]) for count in range(len(parts)))
        return next((prefix for prefix in prefixes if not self.hold(f"{base}/{prefix}")), below)


@dataclass(frozen=True)
class Arrival:
    """A file below a directory: its relative path, its size in bytes, and its modification time in milliseconds since
    the epoch if known.
    """

    name: str
    bytes: int
    written_at: int | None


def local_arrivals(directory: Path, confines: Confines) -> Iterator[Arrival]:
    """Yields the files of a local directory as Spark lists them: no hidden files, and links under their own names.

    Skips files that vanish during the listing, and links that leave the `confines`. Raises OSError for a directory that
    cannot be read.
    """
    yield from _below(str(directory), confines, "", 0)


def stored_arrivals(table: str, source: TableSource, roots: Sequence[Root]) -> Iterator[Arrival]:
    """Yields the files of the store directory that `table` reads. Raises SpecError and StoreUnavailableError."""
    found = find_stream_files(table, source, roots)
    base = f"{found.directory_or_file}/"
    for file in found.files:
        if isinstance(file, UriFile):
            modified = None if file.modified is None else file.modified // 1_000_000
            yield Arrival(file.uri.removeprefix(base), size_of(file), modified)


def _below(directory: str, confines: Confines, prefix: str, depth: int) -> Iterator[Arrival]:
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(("_", ".")):
                continue
            if entry.is_symlink() and not confines.hold(entry.path):
                continue
            try:
                if entry.is_dir():
                    if depth < MAX_DEPTH:
                        yield from _below(entry.path, confines, f"{prefix}{entry.name}/", depth + 1)
                    continue
                status = entry.stat()
            except FileNotFoundError:
                continue
            yield Arrival(f"{prefix}{entry.name}", status.st_size, status.st_mtime_ns // 1_000_000)
