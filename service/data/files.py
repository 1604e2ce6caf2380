"""The files below a directory: without hidden ones, without partitions, and not without end.

Files of this machine: links are followed first, and must not lead out of the roots.

Files of stores: found by listings alone, whose names and sizes are believed.

Which files a table reads: inside the data roots, and nowhere else.

A relative path is tried below each root in turn; an absolute one, or a URI, must lie inside a root. On this machine,
symbolic links are followed first, so a link that leads out of the roots is refused, and the message says the same
whether its target exists or not.

Whoever may write below a root can swap a file for a link after that. API and worker each look anew, and open what they
read themselves without following links (`opening`). Spark is told paths without links, and opens them by name: after
the run a worker looks whether each still leads to where it led (`swapped`), and keeps neither result nor message of one
that does not. What comes into the directory of a running stream is looked at before and after each mini-batch
(`workers.streams.inputs`). A link that is there no longer than Spark takes to open a file is not found out so: those
who may write below a root are trusted not to try.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from service.config.data import Location, is_uri, path_of_file_uri, resolve
from service.contract.job import TableSource
from service.contract.problems import SpecError
from service.data.file_io import DataFile, UriFile, local_path, size_of, version_of
from service.data.roots import Child, DirectoryRoot, ListingOverdueError, Root, Store, StoreRoot, StoreUnavailableError

MAX_FILES = 100_000
MAX_DEPTH = 16

D = TypeVar("D")
E = TypeVar("E")


@dataclass(frozen=True)
class Found(Generic[D]):
    """What an entry of a directory is: one of the two, or neither."""

    directory: D | None = None
    file: DataFile | None = None


class Walk(ABC, Generic[D, E]):
    """Lists a directory's data files; `given` is the caller's own path, the only one that messages tell.

    `D` is what a directory is known by, `E` what its listing gives of an entry.
    """

    def __init__(self, given: str, pointer: str) -> None:
        self._given = given
        self._pointer = pointer
        self._entries = 0

    @abstractmethod
    def entries(self, directory: D) -> Iterator[tuple[str, E]]:
        """Names and entries of a directory."""

    @abstractmethod
    def look(self, name: str, entry: E) -> Found[D]:
        """What an entry is."""

    def files(self, directory: D, depth: int = 0) -> Iterator[DataFile]:
        """All files, in no order. Raises SpecError `unsupported_construct` and what listing raises."""
        if depth > MAX_DEPTH:
            raise self.refused(f"'{self._given}' is nested more than {MAX_DEPTH} directories deep.")
        for name, entry in self.entries(directory):
            if name.startswith(("_", ".")):
                continue
            # Over all directories: links may lead back to their parents.
            self._entries += 1
            if self._entries > MAX_FILES:
                raise self.refused(f"'{self._given}' has more than {MAX_FILES} files.")
            yield from self._below(name, self.look(name, entry), depth)

    def _below(self, name: str, found: Found[D], depth: int) -> Iterator[DataFile]:
        if found.directory is not None:
            if "=" in name:
                raise self.refused(
                    f"'{self._given}' is partitioned ('{name}'): directories named key=value are not supported."
                )
            yield from self.files(found.directory, depth + 1)
        elif found.file is not None:
            yield found.file
        else:
            raise self.refused(f"'{self._given}' holds '{name}', which is no regular file.")

    def refused(self, detail: str) -> SpecError:
        """The refusal of what cannot be read as a table."""
        return SpecError.of("unsupported_construct", detail, pointer=self._pointer)


def real(path: Path) -> Path:
    """The path without links."""
    return Path(os.path.realpath(path))


def is_inside(path: Path, root: Path) -> bool:
    """Whether a path without links is `root`, or below it."""
    return root == path or root in path.parents


class LocalWalk(Walk[Path, os.DirEntry[str]]):
    """Lists a directory of this machine. `allowed` are all local roots, without links."""

    def __init__(self, given: str, allowed: Sequence[Path], pointer: str) -> None:
        super().__init__(given, pointer)
        self._allowed = allowed

    def entries(self, directory: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Names and entries of a directory."""
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name, entry

    def look(self, name: str, entry: os.DirEntry[str]) -> Found[Path]:
        """What an entry is, or what a link leads to. Raises SpecError `path_outside_data_roots`."""
        path = Path(entry.path)
        if entry.is_symlink():
            path = real(path)
            if not any(is_inside(path, root) for root in self._allowed):
                detail = f"'{self._given}' holds the link '{name}' that leads out of the data roots."
                raise SpecError.of("path_outside_data_roots", detail, pointer=self._pointer)
        if path.is_dir():
            return Found(directory=path)
        return Found(file=path) if path.is_file() else Found()


def find_in_store(root: StoreRoot, location: Location, given: str, pointer: str) -> list[UriFile] | None:
    """The files at `location`, which lies inside `root`, by name; None where there is nothing.

    Raises SpecError `unsupported_construct`, also where it takes longer than the store may, and what a Store raises.
    """
    try:
        return _find_stored_files(root.store, location, given, pointer)
    except ListingOverdueError:
        detail = (
            f"Finding the files of '{given}' takes longer than {root.store.search_seconds:g} seconds: it has too many, "
            "or its store is slow. Name a directory with fewer files; EVENKEEL_DATA_STORE_SEARCH_SECONDS is the limit."
        )
        raise SpecError.of("unsupported_construct", detail, pointer=pointer) from None


def _find_stored_files(store: Store, location: Location, given: str, pointer: str) -> list[UriFile] | None:
    deadline = store.clock() + store.search_seconds
    # One listing tells of a directory all that is needed. Of an object store it also is the only request whose refusal
    # says why: the answer to a look at a name has no body.
    if not store.is_flat:
        there = store.look(location.path)
        if there is None or there.is_file:
            return None if there is None else [_file(store, location, there)]
    children = store.children(location.path, deadline - store.clock())
    if children is not None:
        walk = StoreWalk(store, given, pointer, (location, children), deadline)
        files = [file for file in walk.files(location) if isinstance(file, UriFile)]
        return sorted(files, key=lambda file: file.path)
    alone = store.look(location.path) if location.parts and store.is_flat else None
    if alone is not None and alone.is_file:
        return [_file(store, location, alone)]
    return None


def _file(store: Store, location: Location, child: Child) -> UriFile:
    return UriFile(str(location), location.path, child.size, store, child.modified)


class StoreWalk(Walk[Location, tuple[Location, Child]]):
    """Lists a directory of a store. `known` is a directory that was listed already, `deadline` by the store's
    clock when the last one must have been."""

    def __init__(
        self, store: Store, given: str, pointer: str, known: tuple[Location, Iterable[Child]], deadline: float
    ) -> None:
        super().__init__(given, pointer)
        self._store = store
        self._known = known
        self._deadline = deadline

    def entries(self, directory: Location) -> Iterator[tuple[str, tuple[Location, Child]]]:
        """Names and entries of a directory."""
        known, listed = self._known
        if directory != known:
            listed = self._store.children(directory.path, self._deadline - self._store.clock()) or ()
        for child in listed:
            yield child.name, (directory, child)

    def look(self, name: str, entry: tuple[Location, Child]) -> Found[Location]:
        """What an entry is. Objects with an empty part in their names (`a//b`) are in no listing of Arrow's."""
        directory, child = entry
        location = Location(directory.scheme, directory.authority, (*directory.parts, name))
        if child.is_directory:
            return Found(directory=location)
        return Found(file=_file(self._store, location, child)) if child.is_file else Found()


_AWAY = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EREMOTEIO),
    }
)
"""What a disk, or a file system that is mounted from elsewhere, answers where it is at fault and not the path."""


@dataclass(frozen=True)
class TableFiles:
    """The files of one table, in order of path. `directory_or_file` is the resolved path; `bytes` the sum of sizes;
    `versions` tell each file from what it was before, as `version_of` does, where the listing told.
    """

    table: str
    directory_or_file: Path | Location
    files: tuple[DataFile, ...]
    bytes: int
    versions: tuple[tuple[int, ...] | None, ...] = field(default=(), compare=False)


def find_table_files(table: str, source: TableSource, roots: Sequence[Root]) -> TableFiles:
    """The files that the table `table` reads.

    In a directory, files and directories whose name begins with `_` or `.` are skipped, as Spark does; other
    directories are descended into, except Hive partitions (`key=value`), whose columns would be missing.

    Raises SpecError `path_outside_data_roots`, `path_not_found`, `empty_directory`, `unreadable_file`,
    `unsupported_construct` (Hive partitions, something that is no regular file), and StoreUnavailableError.
    """
    return _find_files(table, source, roots, may_be_empty=False)


def find_stream_files(table: str, source: TableSource, roots: Sequence[Root]) -> TableFiles:
    """The directory that the stream `table` reads and the files that are in it so far, of which there may be none.

    Raises as `find_table_files`, and SpecError `stream_needs_directory` where the path is that of a file.
    """
    found = _find_files(table, source, roots, may_be_empty=True)
    if found.files and _names_a_file(found):
        raise SpecError.of(
            "stream_needs_directory",
            f"'{source.path}' is a file. A stream is a directory to which files are added.",
            pointer=f"{pointer_of(table)}/path",
        )
    return found


def swapped(found: TableFiles) -> SpecError | None:
    """What is wrong where a file, or a directory above one, has become a link since it was found; else None."""
    files = [path for path in map(local_path, found.files) if path is not None]
    ways = {directory for path in files for directory in path.parents}
    if not any(map(os.path.islink, (*ways, *files))):
        return None
    detail = "A file of the table was swapped for a link while the job ran: nothing of the run is kept."
    return SpecError.of("path_outside_data_roots", detail, pointer=f"{pointer_of(found.table)}/path")


def _names_a_file(found: TableFiles) -> bool:
    if isinstance(found.directory_or_file, Path):
        return found.directory_or_file.is_file()
    only = found.files[0]
    return isinstance(only, UriFile) and only.uri == str(found.directory_or_file)


def _find_files(table: str, source: TableSource, roots: Sequence[Root], *, may_be_empty: bool) -> TableFiles:
    pointer, given = f"{pointer_of(table)}/path", source.path
    if "\x00" in given or any("\ud800" <= character <= "\udfff" for character in given):
        raise SpecError.of("path_not_found", "The path holds a character that no path can have.", pointer=pointer)
    search = _Search(table, given, roots, pointer, may_be_empty=may_be_empty)
    try:
        for root in roots:
            found = search.in_store(root) if isinstance(root, StoreRoot) else search.in_directory(root)
            if found is not None:
                return found
    except OSError as error:
        raise unreadable(given, error, pointer) from None
    if search.inside:
        raise SpecError.of("path_not_found", f"There is no file or directory '{given}'.", pointer=pointer)
    raise SpecError.of(
        "path_outside_data_roots",
        f"'{given}' does not lie inside a data root. Paths are relative to the configured data roots.",
        pointer=pointer,
    )


def unreadable(name: str, error: OSError, pointer: str) -> SpecError | StoreUnavailableError:
    """`unreadable_file` with the system's reason and no path beyond the caller's own; StoreUnavailableError where it is
    the disk or the server of a mounted root that fails.
    """
    # Not `strerror`: Arrow puts the whole path into it.
    reason = os.strerror(error.errno) if error.errno is not None else "it cannot be read"
    if error.errno in _AWAY:
        return StoreUnavailableError(
            f"The file system behind a data root fails: {reason}.", "Look at the disk, or at what is mounted there."
        )
    return SpecError.of("unreadable_file", f"'{name}' cannot be read: {reason}.", pointer=pointer)


def pointer_of(table: str) -> str:
    """The JSON pointer of a table in the job (RFC 6901)."""
    return "/tables/" + table.replace("~", "~0").replace("/", "~1")


class _Search:
    """Looks for one table's path below one root after the other; `inside` tells whether it lies inside any so far."""

    def __init__(self, table: str, given: str, roots: Sequence[Root], pointer: str, *, may_be_empty: bool) -> None:
        self._table = table
        self._given = given
        self._pointer = pointer
        self._allowed = [real(_path_of(root)) for root in roots if not isinstance(root, StoreRoot)]
        self._may_be_empty = may_be_empty
        self.inside = False

    def in_directory(self, root: Path | DirectoryRoot) -> TableFiles | None:
        """What the root of this machine has there; None where the path leads elsewhere or to nothing."""
        base, given = real(_path_of(root)), self._given
        if is_uri(given):
            named = path_of_file_uri(given)
            if named is None:
                return None
            given = named
        path = real(base / given)
        if not is_inside(path, base):
            return None
        self.inside = True
        if not os.path.lexists(path):
            return None
        if path.is_dir():
            walk = LocalWalk(self._given, self._allowed, self._pointer)
            found = sorted(file for file in walk.files(path) if isinstance(file, Path))
        elif path.is_file():
            found = [path]
        else:
            raise SpecError.of(
                "unsupported_construct", f"'{self._given}' is neither a file nor a directory.", pointer=self._pointer
            )
        if isinstance(root, DirectoryRoot):
            return self._of(path, [UriFile(f"file://{file}", str(file), size_of(file)) for file in found])
        return self._of(path, found)

    def in_store(self, root: StoreRoot) -> TableFiles | None:
        """What the store has there; None where the path leads elsewhere or to nothing."""
        location = resolve(root.location, self._given)
        if location is None:
            return None
        self.inside = True
        found = find_in_store(root, location, self._given, self._pointer)
        return None if found is None else self._of(location, found)

    def _of(self, place: Path | Location, found: Sequence[DataFile]) -> TableFiles:
        if not found and not self._may_be_empty:
            detail = f"The directory '{self._given}' holds no data file."
            raise SpecError.of("empty_directory", detail, pointer=self._pointer)
        # Of a file on this machine the version has the size: it is asked for once.
        versions = tuple(map(version_of, found))
        sizes = (
            size_of(file) if version is None else version[0] for file, version in zip(found, versions, strict=True)
        )
        return TableFiles(self._table, place, tuple(found), sum(sizes), versions)


def _path_of(root: Path | DirectoryRoot) -> Path:
    return root.path if isinstance(root, DirectoryRoot) else root
