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
    allowed = [Path(os.path.realpath(root)) for root in roots]
    try:
        if path.is_dir():
            found = sorted(_walk(path, allowed, pointer, source.path, depth=0))
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
    reason = error.strerror or "it cannot be read"
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


def _walk(directory: Path, allowed: Sequence[Path], pointer: str, given: str, depth: int) -> Iterator[Path]:
    if depth > MAX_DEPTH:
        raise SpecError.of(
            "unsupported_construct", f"'{given}' is nested more than {MAX_DEPTH} directories deep.", pointer=pointer
        )
    count = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith(("_", ".")):
                continue
            count += 1
            if count > MAX_FILES:
                raise SpecError.of(
                    "unsupported_construct", f"'{given}' has more than {MAX_FILES} files.", pointer=pointer
                )
            yield from _entry(entry, allowed, pointer, given, depth)


def _entry(entry: os.DirEntry[str], allowed: Sequence[Path], pointer: str, given: str, depth: int) -> Iterator[Path]:
    path = Path(entry.path)
    if entry.is_symlink():
        path = Path(os.path.realpath(path))
        if not any(root == path or root in path.parents for root in allowed):
            raise SpecError.of(
                "path_outside_data_roots",
                f"'{given}' holds the link '{entry.name}' that leads out of the data roots.",
                pointer=pointer,
            )
    if path.is_dir():
        if "=" in entry.name:
            raise SpecError.of(
                "unsupported_construct",
                f"'{given}' is partitioned ('{entry.name}'): directories named key=value are not supported.",
                pointer=pointer,
            )
        yield from _walk(path, allowed, pointer, given, depth + 1)
    elif path.is_file():
        yield path
    else:
        raise SpecError.of(
            "unsupported_construct", f"'{given}' holds '{entry.name}', which is no regular file.", pointer=pointer
        )
