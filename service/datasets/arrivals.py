"""The files of a directory that grows, listed again and again: names and sizes, without looking into any."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from service.datasets.confines import Confines
from service.datasets.files import find_stream_files
from service.datasets.reading import UriFile, size_of
from service.datasets.roots import Root
from service.datasets.walking import MAX_DEPTH
from service.spec.job import TableSource


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
