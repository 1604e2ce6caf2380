"""Which files a table reads: inside the data roots, and nowhere else.

A relative path is tried below each root in turn; an absolute one must lie inside a root. Symbolic links are followed
first, so a link that leads out of the roots is refused, and the message says the same whether its target exists or not.
Between this check and the reading somebody who may write below a root can still swap a file: roots are for data, and
those who may write there are trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.spec.errors import SpecError
from service.spec.job import TableSource

MAX_FILES = 100_000
MAX_DEPTH = 16


@dataclass(frozen=True)
class TableFiles:
    """The files of one table, in order of path. `directory_or_file` is the resolved path; `bytes` the sum of sizes."""

    table: str
    directory_or_file: Path
    files: tuple[Path, ...]
    bytes: int


def find_table_files(table: str, source: TableSource, roots: Sequence[Path]) -> TableFiles:
    """The files that the table `table` reads.

    In a directory, files and directories whose name begins with `_` or `.` are skipped, as Spark does; other
    directories are descended into, except Hive partitions (`key=value`), whose columns would be missing.

    Raises SpecError `path_outside_data_roots`, `path_not_found`, `empty_directory`, `unreadable_file`,
    `unsupported_construct` (Hive partitions, something that is no regular file).
    """
    pointer = f"{pointer_of(table)}/path"
    path = _locate(source.path, roots, pointer)
    try:
        if path.is_dir():
            found = sorted(_Walk(source.path, roots, pointer).files(path))
        elif path.is_file():
            found = [path]
        else:
            raise SpecError.of(
                "unsupported_construct", f"'{source.path}' is neither a file nor a directory.", pointer=pointer
            )
        size = sum(file.stat().st_size for file in found)
    except OSError as error:
        raise unreadable(source.path, error, pointer) from None
    if not found:
        raise SpecError.of("empty_directory", f"The directory '{source.path}' holds no data file.", pointer=pointer)
    return TableFiles(table, path, tuple(found), size)


def unreadable(name: str, error: OSError, pointer: str) -> SpecError:
    """`unreadable_file` with the system's reason and no path beyond the caller's own."""
    # Not `strerror`: Arrow puts the whole path into it.
    reason = os.strerror(error.errno) if error.errno is not None else "it cannot be read"
    return SpecError.of("unreadable_file", f"'{name}' cannot be read: {reason}.", pointer=pointer)


def pointer_of(table: str) -> str:
    """The JSON pointer of a table in the job (RFC 6901)."""
    return "/tables/" + table.replace("~", "~0").replace("/", "~1")


def _locate(given: str, roots: Sequence[Path], pointer: str) -> Path:
    """The resolved path of the first root that has it."""
    if "\x00" in given or any("\ud800" <= character <= "\udfff" for character in given):
        raise SpecError.of("path_not_found", "The path holds a character that no path can have.", pointer=pointer)
    inside = False
    for root in roots:
        base = Path(os.path.realpath(root))
        candidate = Path(os.path.realpath(base / given))
        if candidate != base and base not in candidate.parents:
            continue
        inside = True
        if os.path.lexists(candidate):
            return candidate
    if inside:
        raise SpecError.of("path_not_found", f"There is no file or directory '{given}'.", pointer=pointer)
    raise SpecError.of(
        "path_outside_data_roots",
        f"'{given}' does not lie inside a data root. Paths are relative to the configured data roots.",
        pointer=pointer,
    )


class _Walk:
    """Lists a directory's data files; `given` is the caller's own path, the only one that messages tell."""

    def __init__(self, given: str, roots: Sequence[Path], pointer: str) -> None:
        self._given = given
        self._allowed = [Path(os.path.realpath(root)) for root in roots]
        self._pointer = pointer
        self._entries = 0

    def files(self, directory: Path, depth: int = 0) -> Iterator[Path]:
        if depth > MAX_DEPTH:
            raise self._refused(f"'{self._given}' is nested more than {MAX_DEPTH} directories deep.")
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(("_", ".")):
                    continue
                # Over all directories: links may lead back to their parents.
                self._entries += 1
                if self._entries > MAX_FILES:
                    raise self._refused(f"'{self._given}' has more than {MAX_FILES} files.")
                yield from self._entry(entry, depth)

    def _entry(self, entry: os.DirEntry[str], depth: int) -> Iterator[Path]:
        path = Path(entry.path)
        if entry.is_symlink():
            path = Path(os.path.realpath(path))
            if not any(root == path or root in path.parents for root in self._allowed):
                detail = f"'{self._given}' holds the link '{entry.name}' that leads out of the data roots."
                raise SpecError.of("path_outside_data_roots", detail, pointer=self._pointer)
        if path.is_dir():
            if "=" in entry.name:
                raise self._refused(
                    f"'{self._given}' is partitioned ('{entry.name}'): directories named key=value are not supported."
                )
            yield from self.files(path, depth + 1)
        elif path.is_file():
            yield path
        else:
            raise self._refused(f"'{self._given}' holds '{entry.name}', which is no regular file.")

    def _refused(self, detail: str) -> SpecError:
        return SpecError.of("unsupported_construct", detail, pointer=self._pointer)
