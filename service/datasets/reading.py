"""The files of a table, wherever they are, read the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from service.datasets.opening import open_without_links
from service.datasets.stores import Store, translated

AT_ONCE = 16
"""Files of a store that are read at the same time: each takes some round trips and hardly any work."""

COMPRESSED = frozenset({".gz", ".gzip", ".bz2", ".zst", ".zstd", ".lz4", ".snappy", ".deflate", ".xz"})
"""Ends of the names of files whose text nothing here can read."""

_CONTENT = 3
"""Numbers of a version that writing changes. Of a file on this machine the time of the last status change follows."""

T = TypeVar("T")


@dataclass(frozen=True)
class UriFile:
    """A file that Spark is told by its URI. `path` is its name in the store; `store` None for this machine's files.

    `modified` is the time that a store's listing told, in nanoseconds since the epoch.
    """

    uri: str
    path: str
    size: int
    store: Store | None = field(default=None, repr=False, compare=False)
    modified: int | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """What the name ends with, from its last dot on."""
        return Path(self.name).suffix


DataFile = Path | UriFile


def size_of(file: DataFile) -> int:
    """Bytes of a file; of one in a store, as its listing told."""
    return file.stat().st_size if isinstance(file, Path) else file.size


def version_of(file: DataFile) -> tuple[int, ...] | None:
    """The version of the file, the size first: of a file on this machine its size, its inode and the times of its last
    modification and status change; of a file in a store the size and the time in its listing, None where the listing
    has no time. Raises OSError for a file that is gone.
    """
    path = local_path(file)
    if path is not None:
        found = path.stat()
        return (found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
    modified = file.modified if isinstance(file, UriFile) else None
    return None if modified is None else (size_of(file), modified)


def is_same_version(before: tuple[int, ...] | None, now: tuple[int, ...] | None) -> bool:
    """Whether two versions of a file have the same size, inode and modification time. The time of the last status
    change is not compared: `chmod` and a new hard link set it, and neither writes a byte.
    """
    return before == now or (before is not None and now is not None and before[:_CONTENT] == now[:_CONTENT])


def local_path(file: DataFile) -> Path | None:
    """Where it is on this machine; None for a file in a store, each reading of which is a request to another one."""
    if isinstance(file, Path):
        return file
    return Path(file.path) if file.store is None else None


@contextmanager
def opened(file: DataFile) -> Iterator[Any]:
    """The file as a binary stream that can be sought in; one on this machine is not read through a link.

    Raises FileNotFoundError, PermissionError, StoreUnavailableError, or OSError, also for what fails while reading.
    """
    if isinstance(file, UriFile) and file.store is not None:
        with translated(), file.store.open(file.path) as stream:
            yield stream
    else:
        with open_without_links(Path(file.path if isinstance(file, UriFile) else file)) as local:
            yield local


def for_each(files: Sequence[DataFile], read: Callable[[DataFile], T]) -> Iterator[T]:
    """What `read` gives for each file, in order; files of a store are read some at a time.

    Raises what `read` raises for the first file in order, and reads no further than those that are under way.
    """
    if len(files) < 2 or all(map(local_path, files)):
        yield from map(read, files)
        return
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="reading")
    try:
        yield from pool.map(read, files)
    finally:
        pool.shutdown(cancel_futures=True)
