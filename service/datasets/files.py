"""Which files a table reads: inside the data roots, and nowhere else.

A relative path is tried below each root in turn; an absolute one, or a URI, must lie inside a root. On this machine,
symbolic links are followed first, so a link that leads out of the roots is refused, and the message says the same
whether its target exists or not.

Whoever may write below a root can swap a file for a link after that. API and worker each look anew, and open what they
read themselves without following links (`opening`). Spark is told paths without links, and opens them by name: after
the run a worker looks whether each still leads to where it led (`swapped`), and keeps neither result nor message of one
that does not. What comes into the directory of a running stream is looked at before and after each mini-batch
(`workers.confined_reading`). A link that is there no longer than Spark takes to open a file is not found out so: those
who may write below a root are trusted not to try.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from service.datasets.local_files import LocalWalk, is_inside, real
from service.datasets.reading import DataFile, UriFile, local_path, size_of, version_of
from service.datasets.roots import DirectoryRoot, Root, StoreRoot
from service.datasets.store_files import find_in_store
from service.datasets.stores import StoreUnavailableError
from service.spec.errors import SpecError
from service.spec.job import TableSource
from service.spec.locations import Location, is_uri, path_of_file_uri, resolve

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
    return _find(table, source, roots, may_be_empty=False)


def find_stream_files(table: str, source: TableSource, roots: Sequence[Root]) -> TableFiles:
    """The directory that the stream `table` reads and the files that are in it so far, of which there may be none.

    Raises as `find_table_files`, and SpecError `stream_needs_directory` where the path is that of a file.
    """
    found = _find(table, source, roots, may_be_empty=True)
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


def _find(table: str, source: TableSource, roots: Sequence[Root], *, may_be_empty: bool) -> TableFiles:
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
