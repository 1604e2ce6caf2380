"""Finds the files that a table reads, inside the data roots only.

A relative path is tried below each root in turn; an absolute path or URI must be inside a root. Local links are
resolved first, so a link that leads out of the roots is refused; the message is the same whether its target exists or
not. Files in stores are found by listings, whose names and sizes are trusted. Walks skip hidden files, and are limited
in files and depth.

A path with wildcards that does not exist as it is written is a pattern (`path_patterns`). Directories whose names are
`key=value` are partitions (`partitions`).

Directories are listed one by one. Arrow's recursive listing has no limit of entries, depth or time, and also lists
hidden directories; `fsspec` lists stores with clients, timeouts and credentials of its own, and caches listings.
Neither reports local links, which must be refused if they lead out.

A file may be swapped for a link later. API and workers find the files again and open them without following links
(`file_io`). Spark opens them by name, so after the run a worker checks whether each path still has no links
(`swapped`).
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from service.config.data import Location, is_uri, path_of_file_uri, resolve
from service.contract.problems import SpecError
from service.contract.read_options import TableFormat
from service.contract.tables import TableSource
from service.data.delta_log import LOG
from service.data.delta_snapshot import Snapshot, StoredTable, delta_table_around, is_delta, read_snapshot
from service.data.file_io import DataFile, UriFile, local_path, size_of, version_of
from service.data.partitions import NO_PARTITIONS, Partitions, is_partition, of_values, partitions_of
from service.data.path_patterns import PathPattern, advice_on_path, pattern_of
from service.data.roots import Child, DirectoryRoot, ListingOverdueError, Root, Store, StoreRoot, StoreUnavailableError

MAX_FILES = 100_000
MAX_DEPTH = 16
D = TypeVar("D")
E = TypeVar("E")
_UNAVAILABLE_ERRNOS = frozenset(
    {
        *(errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET),
        *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EREMOTEIO),
    }
)
"""Errors of a disk or a mounted file system that are not caused by the path."""


@dataclass(frozen=True)
class EntryType(Generic[D]):
    """The type of a directory entry: a directory, a file, or neither. With `is_link`, it is the target of a link;
    `is_in_partition` says whether the target is in a partition of the same table.
    """

    directory: D | None = None
    file: DataFile | None = None
    is_link: bool = False
    is_in_partition: bool = False


class Walk(ABC, Generic[D, E]):
    """Lists the data files below a directory. `given` is the client's own path, the only one that messages contain.

    `D` identifies a directory, `E` is an entry of its listing.
    """

    def __init__(self, given: str, pointer: str, selection: Selection) -> None:
        self._given = given
        self._pointer = pointer
        self._selection = selection
        self._entries = 0

    @abstractmethod
    def entries(self, directory: D) -> Iterator[tuple[str, E]]:
        """Yields names and entries of a directory."""

    @abstractmethod
    def type_of(self, name: str, entry: E) -> EntryType[D]:
        """Returns the type of an entry."""

    def files(self, directory: D, below: tuple[str, ...] = ()) -> Iterator[DataFile]:
        """Yields all selected files, unordered. `below` are the names of the path so far.

        Raises SpecError `unsupported_construct` and what the listing raises.
        """
        if len(below) > MAX_DEPTH:
            raise self.refused(f"'{self._given}' is nested more than {MAX_DEPTH} directories deep.")
        for name, entry in self.entries(directory):
            if name == LOG and self._selection.refuses_delta:
                raise self._refused_delta(below)
            # Also directories such as `_x=1`, which Spark takes for partitions.
            if name.startswith(("_", ".")):
                continue
            # Counted over all directories: links may form cycles.
            self._entries += 1
            if self._entries > MAX_FILES:
                raise self.refused(f"'{self._given}' has more than {MAX_FILES} files.")
            yield from self._below(name, self.type_of(name, entry), (*below, name))

    def _below(self, name: str, found: EntryType[D], path: tuple[str, ...]) -> Iterator[DataFile]:
        pattern = self._selection.pattern
        if found.directory is not None:
            if pattern is not None and not pattern.may_contain(path):
                return
            if is_partition(name) and not self._selection.partitions:
                raise self.refused(
                    f"'{self._given}' is partitioned ('{name}'), which {self._selection.reason}. Name a directory "
                    "inside of the partitions, or read the table in a batch job."
                )
            self._check_link(name, found, path)
            yield from self.files(found.directory, path)
        elif pattern is not None and not pattern.matches(path):
            return
        elif found.file is not None:
            self._check_link(name, found, path[:-1])
            yield found.file
        else:
            raise self.refused(f"'{self._given}' contains '{name}', which is not a regular file.")

    def _refused_delta(self, below: tuple[str, ...]) -> SpecError:
        """Returns the error for a Delta table, whose directory also has the files of older versions."""
        pattern = self._selection.pattern
        table = "/".join(filter(None, (self._given.rstrip("/") if pattern is None else pattern.directory, *below)))
        return _refused_delta(f"'{table}' is a Delta table", self._pointer)

    def _check_link(self, name: str, found: EntryType[D], directories: tuple[str, ...]) -> None:
        """Refuses a link in a partition, or to one: it would give rows the values of another partition, or count them
        twice.
        """
        if not found.is_link or not self._selection.partitions:
            return
        if found.is_in_partition or any(map(is_partition, directories)):
            raise self.refused(f"'{self._given}' contains the link '{name}' in its partitions, which is not read.")

    def refused(self, detail: str) -> SpecError:
        """Returns the error for something that cannot be read as a table."""
        return SpecError.of("unsupported_construct", detail, pointer=self._pointer)


@dataclass(frozen=True)
class Selection:
    """What a walk finds: files that match the pattern, in partitions or not. `reason` says who cannot read them.
    `refuses_delta`: Delta tables in the directory are refused. Else all their Parquet files are found.
    """

    pattern: PathPattern | None = None
    partitions: bool = False
    reason: str = "streams do not read"
    refuses_delta: bool = False


def _refused_delta(what: str, pointer: str) -> SpecError:
    detail = (
        f"{what}: its files include rows that were overwritten or deleted. Set 'path' to its directory and 'format' to "
    )
    return SpecError.of("unsupported_construct", f"{detail}delta.", pointer=pointer)


def real(path: Path) -> Path:
    """Resolves all links in the path."""
    return Path(os.path.realpath(path))


def is_inside(path: Path, root: Path) -> bool:
    """Whether a path without links is `root` or below it."""
    return root == path or root in path.parents


class LocalWalk(Walk[Path, os.DirEntry[str]]):
    """Lists the local directory `base`. `allowed` are all local roots, without links."""

    def __init__(self, base: Path, given: str, allowed: Sequence[Path], pointer: str, selection: Selection) -> None:
        super().__init__(given, pointer, selection)
        self._base = base
        self._allowed = allowed

    def entries(self, directory: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yields names and entries of a directory."""
        with os.scandir(directory) as entries:
            for entry in entries:
                yield entry.name, entry

    def type_of(self, name: str, entry: os.DirEntry[str]) -> EntryType[Path]:
        """Returns the type of an entry, or of a link's target. Raises SpecError `path_outside_data_roots`."""
        path = Path(entry.path)
        is_link = entry.is_symlink()
        if is_link:
            path = real(path)
            if not any(is_inside(path, root) for root in self._allowed):
                detail = f"'{self._given}' contains the link '{name}', which leads out of the data roots."
                raise SpecError.of("path_outside_data_roots", detail, pointer=self._pointer)
            if self._selection.refuses_delta and delta_table_around(path, self._allowed):
                what = f"'{self._given}' contains the link '{name}' into a Delta table"
                raise _refused_delta(what, self._pointer)
        if path.is_dir():
            return EntryType(directory=path, is_link=is_link, is_in_partition=is_link and self._is_in_partition(path))
        if path.is_file():
            return EntryType(file=path, is_link=is_link, is_in_partition=is_link and self._is_in_partition(path.parent))
        return EntryType()

    def _is_in_partition(self, directory: Path) -> bool:
        return is_inside(directory, self._base) and any(map(is_partition, directory.relative_to(self._base).parts))


def find_in_store(
    root: StoreRoot, location: Location, given: str, pointer: str, selection: Selection
) -> list[UriFile] | None:
    """Returns the files at `location`, which is inside `root`, by name; None if nothing exists there.

    Raises SpecError `unsupported_construct`, also if the search exceeds the store's time limit, and what a Store
    raises.
    """
    try:
        return _find_stored_files(root.store, location, given, pointer, selection)
    except ListingOverdueError:
        detail = (
            f"Finding the files of '{given}' took longer than {root.store.search_seconds:g} seconds, the limit in "
            "EVENKEEL_DATA_STORE_SEARCH_SECONDS: there are too many files, or the store is slow. Name a directory with "
            "fewer files."
        )
        raise SpecError.of("unsupported_construct", detail, pointer=pointer) from None


def _find_stored_files(
    store: Store, location: Location, given: str, pointer: str, selection: Selection
) -> list[UriFile] | None:
    deadline = store.clock() + store.search_seconds
    # For a directory, one listing is enough. In an object store, a listing is also the only request whose error has a
    # reason: the response to a HEAD request has no body.
    if not store.is_flat:
        there = store.entry(location.path)
        if there is None or there.is_file:
            return None if there is None or selection.pattern is not None else [_file(store, location, there)]
    children = store.children(location.path, deadline - store.clock())
    if children is not None:
        walk = StoreWalk(store, given, pointer, (location, children), deadline, selection)
        files = [file for file in walk.files(location) if isinstance(file, UriFile)]
        return sorted(files, key=lambda file: file.path)
    may_be_file = location.parts and store.is_flat and selection.pattern is None
    alone = store.entry(location.path) if may_be_file else None
    if alone is not None and alone.is_file:
        return [_file(store, location, alone)]
    return None


def _file(store: Store, location: Location, child: Child) -> UriFile:
    return UriFile(str(location), location.path, child.size, store, child.modified)


class StoreWalk(Walk[Location, tuple[Location, Child]]):
    """Lists a directory of a store. `known` is a directory that has already been listed; `deadline` is the latest time
    for the last listing, by the store's clock.
    """

    def __init__(
        self,
        store: Store,
        given: str,
        pointer: str,
        known: tuple[Location, Iterable[Child]],
        deadline: float,
        selection: Selection,
    ) -> None:
        super().__init__(given, pointer, selection)
        self._store = store
        self._known = known
        self._deadline = deadline

    def entries(self, directory: Location) -> Iterator[tuple[str, tuple[Location, Child]]]:
        """Yields names and entries of a directory."""
        known, listed = self._known
        if directory != known:
            listed = self._store.children(directory.path, self._deadline - self._store.clock()) or ()
        for child in listed:
            yield child.name, (directory, child)

    def type_of(self, name: str, entry: tuple[Location, Child]) -> EntryType[Location]:
        """Returns the type of an entry. Arrow does not list objects with an empty part in their names (`a//b`)."""
        directory, child = entry
        location = Location(directory.scheme, directory.authority, (*directory.parts, name))
        if child.is_directory:
            return EntryType(directory=location)
        return EntryType(file=_file(self._store, location, child)) if child.is_file else EntryType()


@dataclass(frozen=True)
class TableFiles:
    """The files of one table, ordered by path. `directory_or_file` is the resolved path, or the directory of a pattern;
    `bytes` is the sum of sizes; `versions` are the files' versions as `version_of` returns them, None if the listing
    has no times.
    """

    table: str
    directory_or_file: Path | Location
    files: tuple[DataFile, ...]
    bytes: int
    versions: tuple[tuple[int, ...] | None, ...] = field(default=(), compare=False)
    partitions: Partitions = NO_PARTITIONS
    snapshot: Snapshot | None = field(default=None, compare=False)
    """The version of a Delta table."""


def find_table_files(
    table: str,
    source: TableSource,
    roots: Sequence[Root],
    *,
    may_have_partitions: bool = False,
    refuses_delta: bool = False,
) -> TableFiles:
    """Returns the files that the table `table` reads.

    In a directory, files and directories whose name begins with `_` or `.` are skipped, as in Spark. Other directories
    are searched recursively. Partitions (`key=value`) are refused if the table was stored without partition columns,
    unless it `may_have_partitions`. `refuses_delta`: Delta tables are refused if they are not named themselves, or have
    another format in the job; stored jobs may read them as Parquet.

    Raises SpecError `path_outside_data_roots`, `path_not_found`, `empty_directory`, `unreadable_file`,
    `unsupported_construct` (partitions, entries that are no regular files), and StoreUnavailableError.
    """
    selection = Selection(
        partitions=may_have_partitions or source.partitions is not None,
        reason="tables with 'refresh' must not be" if source.refresh else "it was not when the job was submitted",
        refuses_delta=refuses_delta,
    )
    return _find_files(table, source, roots, selection, may_be_empty=False)


def find_stream_files(
    table: str, source: TableSource, roots: Sequence[Root], *, refuses_delta: bool = False
) -> TableFiles:
    """Returns the directory that the stream `table` reads, and its current files, of which there may be none.
    `refuses_delta` as for `find_table_files`.

    Raises as `find_table_files`, and SpecError `stream_needs_directory` if the path is that of a file.
    """
    found = _find_files(table, source, roots, Selection(refuses_delta=refuses_delta), may_be_empty=True)
    if found.files and _names_a_file(found):
        raise SpecError.of(
            "stream_needs_directory",
            f"'{source.path}' is a file. A stream needs a directory to which files are added.",
            pointer=f"{pointer_of(table)}/path",
        )
    return found


def swapped(found: TableFiles) -> SpecError | None:
    """Returns the error if a file, or a directory above one, has become a link since it was found; else None."""
    files = [path for path in map(local_path, found.files) if path is not None]
    parents = {directory for path in files for directory in path.parents}
    if not any(map(os.path.islink, (*parents, *files))):
        return None
    detail = "A file of the table was replaced by a link while the job ran, so the result was discarded."
    return SpecError.of("path_outside_data_roots", detail, pointer=f"{pointer_of(found.table)}/path")


def _names_a_file(found: TableFiles) -> bool:
    if isinstance(found.directory_or_file, Path):
        return found.directory_or_file.is_file()
    only = found.files[0]
    return isinstance(only, UriFile) and only.uri == str(found.directory_or_file)


def _find_files(
    table: str, source: TableSource, roots: Sequence[Root], selection: Selection, *, may_be_empty: bool
) -> TableFiles:
    pointer, given = f"{pointer_of(table)}/path", source.path
    if "\x00" in given or any("\ud800" <= character <= "\udfff" for character in given):
        detail = "The path contains a character that is not allowed in paths."
        raise SpecError.of("path_not_found", detail, pointer=pointer)
    search = _Search(table, source, roots, pointer, selection, may_be_empty=may_be_empty)
    try:
        found = search.first(given, roots)
        pattern = None if found is not None or may_be_empty else pattern_of(given)
        if pattern is not None:
            search.selection = replace(selection, pattern=pattern)
            found = search.first(pattern.directory, roots)
        if found is not None:
            return found
    except OSError as error:
        raise unreadable(given, error, pointer) from None
    if search.is_inside_roots:
        why, near = advice_on_path(given, search.allowed)
        detail = f"There is no file or directory '{given}'.{why}"
        raise SpecError.of("path_not_found", detail, pointer=pointer, suggestions=near)
    detail = f"'{given}' is not inside a data root. Paths are relative to the configured data roots."
    raise SpecError.of("path_outside_data_roots", detail, pointer=pointer)


def unreadable(name: str, error: OSError, pointer: str) -> SpecError | StoreUnavailableError:
    """Returns `unreadable_file` with the system's reason and no path except the client's own; StoreUnavailableError if
    the disk or the server of a mounted root has failed.
    """
    # Not `error.strerror`: Arrow includes the whole path.
    reason = os.strerror(error.errno) if error.errno is not None else "it cannot be read"
    if error.errno in _UNAVAILABLE_ERRNOS:
        return StoreUnavailableError(
            f"The file system of a data root failed: {reason}.", "Check the disk, or the mounted file system."
        )
    return SpecError.of("unreadable_file", f"'{name}' cannot be read: {reason}.", pointer=pointer)


def pointer_of(table: str) -> str:
    """Returns the JSON pointer of a table in the job (RFC 6901)."""
    return "/tables/" + table.replace("~", "~0").replace("/", "~1")


class _Search:
    """Searches for one table's path below one root after the other. `is_inside_roots` is set once the path is inside of
    one of them.
    """

    def __init__(
        self,
        table: str,
        source: TableSource,
        roots: Sequence[Root],
        pointer: str,
        selection: Selection,
        *,
        may_be_empty: bool,
    ) -> None:
        self.selection = selection
        self._table = table
        self._given = source.path
        self._format = source.format
        self._version = source.version
        self._pointer = pointer
        self.allowed = [real(_path_of(root)) for root in roots if not isinstance(root, StoreRoot)]
        self._may_be_empty = may_be_empty
        self.is_inside_roots = False

    def first(self, given: str, roots: Sequence[Root]) -> TableFiles | None:
        """Searches the path `given` below the roots; returns what is found first. A pattern that matches nothing is not
        found.
        """
        for root in roots:
            found = self.in_store(root, given) if isinstance(root, StoreRoot) else self.in_directory(root, given)
            if found is not None and (found.files or self.selection.pattern is None):
                return found
        return None

    def in_directory(self, root: Path | DirectoryRoot, given: str) -> TableFiles | None:
        """Searches a local root; returns None if the path is outside or does not exist."""
        base = real(_path_of(root))
        if is_uri(given):
            named = path_of_file_uri(given)
            if named is None:
                return None
            given = named
        path = real(base / given)
        if not is_inside(path, base):
            return None
        self.is_inside_roots = True
        if not os.path.lexists(path):
            return None
        around = delta_table_around(path, self.allowed) if self.selection.refuses_delta else None
        if around is not None:
            raise self._inside_delta(str(around.relative_to(base)) if is_inside(around, base) else around.name)
        if path.is_dir() and self._may_be_delta and is_delta(path):
            return self._of_delta(path, as_uris=isinstance(root, DirectoryRoot))
        if path.is_dir() and self._format is not TableFormat.DELTA:
            walk = LocalWalk(path, self._given, self.allowed, self._pointer, self.selection)
            found = sorted(file for file in walk.files(path) if isinstance(file, Path))
        elif self._format is TableFormat.DELTA:
            raise self._no_delta()
        elif path.is_file():
            found = [] if self.selection.pattern is not None else [path]
        else:
            raise SpecError.of(
                "unsupported_construct", f"'{self._given}' is neither a file nor a directory.", pointer=self._pointer
            )
        if isinstance(root, DirectoryRoot):
            return self._of(path, [UriFile(f"file://{file}", str(file), size_of(file)) for file in found])
        return self._of(path, found)

    def in_store(self, root: StoreRoot, given: str) -> TableFiles | None:
        """Searches a store; returns None if the path is outside or does not exist."""
        location = resolve(root.location, given)
        if location is None:
            return None
        self.is_inside_roots = True
        if self.selection.refuses_delta:
            self._check_stored_parents(root, location)
        if self._may_be_delta and root.store.children(f"{location.path}/{LOG}") is not None:
            return self._of_stored_delta(root.store, location)
        if self._format is TableFormat.DELTA:
            raise self._no_delta()
        found = find_in_store(root, location, self._given, self._pointer, self.selection)
        return None if found is None else self._of(location, found)

    def _check_stored_parents(self, root: StoreRoot, location: Location) -> None:
        """Refuses a path inside of a Delta table. Each directory above it takes one request, at most MAX_DEPTH."""
        first = len(root.location.parts)
        for count in range(len(location.parts) - 1, max(first, len(location.parts) - MAX_DEPTH) - 1, -1):
            if LOG in location.parts[count:]:
                return
            table = Location(location.scheme, location.authority, location.parts[:count])
            log = f"{table.path}/{LOG}" if table.path else LOG
            if root.store.children(log) is not None:
                raise self._inside_delta("/".join(location.parts[first:count]))

    def _inside_delta(self, table: str) -> SpecError:
        return _refused_delta(f"'{self._given}' is inside of the Delta table '{table or '.'}'", self._pointer)

    def _of(self, place: Path | Location, found: Sequence[DataFile]) -> TableFiles:
        if not found and not self._may_be_empty and self.selection.pattern is None:
            detail = f"The directory '{self._given}' contains no data file."
            raise SpecError.of("empty_directory", detail, pointer=self._pointer)
        # The version of a local file includes its size: one `stat` is enough.
        versions = tuple(map(version_of, found))
        sizes = (
            size_of(file) if version is None else version[0] for file, version in zip(found, versions, strict=True)
        )
        return TableFiles(self._table, place, tuple(found), sum(sizes), versions, self._partitions(place, found))

    @property
    def _may_be_delta(self) -> bool:
        return self._format in {None, TableFormat.DELTA} and self.selection.pattern is None

    def _no_delta(self) -> SpecError:
        detail = f"'{self._given}' is not a Delta table: it has no directory {LOG}."
        return SpecError.of("corrupt_file", detail, pointer=self._pointer)

    def _of_delta(self, path: Path, *, as_uris: bool) -> TableFiles:
        snapshot = self._snapshot(path)
        found: list[Path] = []
        directories: dict[Path, bool] = {}
        for one in snapshot.files:
            file = path / one.path
            if file.parent not in directories:
                directories[file.parent] = real(file.parent) == file.parent
            if not directories[file.parent] or file.is_symlink():
                detail = f"The file '{one.path}' of the Delta table '{self._given}' is a link, or below one."
                raise SpecError.of("path_outside_data_roots", detail, pointer=self._pointer)
            if not file.is_file():
                detail = (
                    f"The file '{one.path}' of version {snapshot.version} of the Delta table '{self._given}' does not "
                    "exist. It may have been removed by VACUUM."
                )
                raise SpecError.of("path_not_found", detail, pointer=self._pointer)
            found.append(file)
        files = [UriFile(f"file://{file}", str(file), size_of(file)) for file in found] if as_uris else found
        return self._of_snapshot(path, files, snapshot)

    def _of_stored_delta(self, store: Store, location: Location) -> TableFiles:
        if store.delta_options is None:
            detail = f"'{self._given}' is a Delta table in a store of which Delta tables are not read."
            raise SpecError.of("unsupported_construct", detail, pointer=self._pointer)
        snapshot = self._snapshot(StoredTable(store, location))
        files = [
            _file(
                store,
                Location(location.scheme, location.authority, (*location.parts, *one.path.split("/"))),
                Child(one.path.rpartition("/")[2], is_file=True, is_directory=False, size=one.size),
            )
            for one in snapshot.files
        ]
        return self._of_snapshot(location, files, snapshot)

    def _snapshot(self, place: Path | StoredTable) -> Snapshot:
        return read_snapshot(place, self._given, self._pointer, version=self._version, max_files=MAX_FILES)

    def _of_snapshot(self, place: Path | Location, found: Sequence[DataFile], snapshot: Snapshot) -> TableFiles:
        if not found and not self._may_be_empty:
            detail = f"Version {snapshot.version} of the Delta table '{self._given}' has no rows."
            raise SpecError.of("empty_directory", detail, pointer=self._pointer)
        order = sorted(range(len(found)), key=lambda index: str(found[index]))
        files = tuple(found[index] for index in order)
        ordered = [snapshot.files[index] for index in order]
        partitions = of_values(snapshot.partition_names, [(one.path, one.values) for one in ordered])
        versions = tuple(map(version_of, files))
        return TableFiles(self._table, place, files, sum(one.size for one in ordered), versions, partitions, snapshot)

    def _partitions(self, place: Path | Location, found: Sequence[DataFile]) -> Partitions:
        if not self.selection.partitions:
            return NO_PARTITIONS
        base = place.path if isinstance(place, Location) else str(place)
        paths = [file.path if isinstance(file, UriFile) else str(file) for file in found]
        prefix = f"{base}/" if base else ""
        # A file outside was found through a link.
        outside = any(is_partition(path) for path in paths if not path.startswith(prefix))
        below = [path.removeprefix(prefix) if path.startswith(prefix) else "" for path in paths]
        partitions = partitions_of(self._given, below, self._pointer)
        if outside:
            detail = f"'{self._given}' contains a link to a partition, which is not read."
            raise SpecError.of("unsupported_construct", detail, pointer=self._pointer)
        return partitions


def _path_of(root: Path | DirectoryRoot) -> Path:
    return root.path if isinstance(root, DirectoryRoot) else root
