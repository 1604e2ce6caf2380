"""Whether the files of a table are still those that were found when its job was planned.

A job reads the files that its planning found, and no others. Statistics, Spark's own listing and Spark's tasks read
them later, some of them several times, so a file that is written meanwhile could be read in two states. Planning keeps
the version of each file (`version_of`). After the last reading the versions are compared (`is_same_version`). Where
they differ, the result may be wrong and is not published.

These changes are not found: a file that is written with the same size within the resolution of the times of its file
system (a few milliseconds on local disks, a second in most object stores); a file that is written in place with the
same size and gets its modification time back; a time that a network file system returns from its cache; and any change
of the same size on a file system without times. Files that are added to a directory are not read: no change.

Whether files lie inside of given directories, links followed: asked again and again, of many files at once.

The files of a directory that grows, listed again and again: names and sizes, without looking into any.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.config.data import Location
from service.contract.job import TableSource
from service.contract.problems import SpecError
from service.data.file_io import DataFile, UriFile, is_same_version, size_of, version_of
from service.data.files import MAX_DEPTH, TableFiles, find_stream_files, is_inside, pointer_of, real, unreadable
from service.data.roots import Child, DirectoryRoot, Root, Store, StoreRoot

CODE = "files_changed"

NOT_KEPT = (
    "The result could mix old and new rows, so nothing of it is kept. Submit the job again; 'limits.failure_retries' "
    "does so by itself."
)
"""What a change means for a batch job, and what its caller can do."""

Version = tuple[int, ...]


def changed_files(found: TableFiles, consequence: str = NOT_KEPT) -> SpecError | None:
    """The error where a file of the table was written, replaced or removed since it was found; else None. Its message
    names the first such file, and ends with `consequence`.

    Raises SpecError `unreadable_file`, and StoreUnavailableError where the store does not answer, or takes longer for
    all listings together than it may for finding the files.
    """
    for file, before, now in _versions(found):
        if not is_same_version(before, now):
            happened = "was removed" if now is None else "has changed"
            detail = (
                f"The file '{_name(found, file)}' of the table '{found.table}' {happened} since it was planned to be "
                f"read. {consequence}"
            )
            return SpecError.of(CODE, detail, pointer=f"{pointer_of(found.table)}/path")
    return None


def _versions(found: TableFiles) -> Iterator[tuple[DataFile, Version, Version | None]]:
    """Each file with its version when it was found and its version now, which is None for a file that is gone."""
    listings = _Listings(found)
    for place, file in enumerate(found.files):
        before = found.versions[place] if found.versions else None
        if isinstance(file, UriFile) and file.store is not None:
            child = listings.child(file, file.store)
            # A store that does not give times gives sizes.
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
    """The store's entries of one table's files now. Each directory is listed once."""

    def __init__(self, found: TableFiles) -> None:
        self._place = str(found.directory_or_file)
        self._known: dict[str, dict[str, Child]] = {}
        self._deadline: float | None = None

    def child(self, file: UriFile, store: Store) -> Child | None:
        """The entry of a file, asked for as it was found: by its own name, or by a listing of its directory. The two
        may tell times in other resolutions.
        """
        if self._place == file.uri:
            return store.look(file.path)
        if self._deadline is None:
            self._deadline = store.clock() + store.search_seconds
        directory, _, name = file.path.rpartition("/")
        if directory not in self._known:
            listed = store.children(directory, self._deadline - store.clock()) or ()
            self._known[directory] = {child.name: child for child in listed if child.is_file}
        return self._known[directory].get(name)


def _name(found: TableFiles, file: DataFile) -> str:
    """The path of a file below the table's own, which is all that callers know."""
    place = found.directory_or_file
    below = place.path if isinstance(place, Location) else str(place)
    path = file.path if isinstance(file, UriFile) else str(file)
    # Any bytes may be a name.
    return (path.removeprefix(below).strip("/") or file.name).encode(errors="replace").decode()


_is_link = os.path.islink
"""Without a `Path` for each file, which would cost several times as much as the look itself."""


class Confines:
    """The directories of this machine below which files may be read."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._allowed = tuple(map(real, directories))

    @classmethod
    def of(cls, roots: Sequence[Root], further: Iterable[Path] = ()) -> Confines:
        """Those of the data roots that are on this machine, and `further` ones."""
        local = [
            root.path if isinstance(root, DirectoryRoot) else root for root in roots if not isinstance(root, StoreRoot)
        ]
        return cls((*local, *further))

    def hold(self, path: str) -> bool:
        """Whether the absolute `path` leads inside, whether anything is there or not."""
        there = real(Path(path))
        return any(is_inside(there, directory) for directory in self._allowed)

    def first_outside(self, paths: Iterable[str]) -> str | None:
        """The first of the absolute paths of files that leads elsewhere; None where all lead inside, or to nothing that
        would lie there. Costs a look at each file, and a few more at each directory.
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
        """How far below `base` a path that leads elsewhere leads inside, and the next name: that of the link. Empty
        where that is `base` itself.
        """
        below = path.removeprefix(base).strip("/")
        parts = below.split("/")
        ways = ("/".join(parts[:count]) for count in range(len(parts)))
        return next((way for way in ways if not self.hold(f"{base}/{way}")), below)


@dataclass(frozen=True)
class Arrival:
    """A file below a directory: its path from there, its bytes, and when it was written, in milliseconds since the
    epoch, where that is told.
    """

    name: str
    bytes: int
    written_at: int | None


def local_arrivals(directory: Path, confines: Confines) -> Iterator[Arrival]:
    """The files of a directory of this machine, as Spark lists them: none that is hidden, and links by their own names.

    What goes away meanwhile is left out, and so is what links lead to that leave the `confines`: nothing is told of it.
    Raises OSError for a directory that cannot be read.
    """
    yield from _below(str(directory), confines, "", 0)


def stored_arrivals(table: str, source: TableSource, roots: Sequence[Root]) -> Iterator[Arrival]:
    """The files of the directory of a store that `table` reads. Raises SpecError and StoreUnavailableError."""
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
                told = entry.stat()
            except FileNotFoundError:
                continue
            yield Arrival(f"{prefix}{entry.name}", told.st_size, told.st_mtime_ns // 1_000_000)
