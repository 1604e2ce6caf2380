"""Opens what was found, and nothing that has been put in its place.

What is found of a table are paths without links. Whoever may write below a root can swap a part of one for a link
afterwards, so none is followed here: what is read is what was found, or nothing.

Files and directories that survive a power cut once they are there, and are there wholly or not at all.

The files of a table, wherever they are, read the same way.

Where rows of CSV text end: at line breaks, those inside of quoted values aside where these may be `multi_line`.
"""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import stat
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from service.contract.job import ReadOptions
from service.data.roots import Store, translated

_ON_THE_WAY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Not to wait for somebody who writes into a pipe.
_TO_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_without_links(path: Path) -> BinaryIO:
    """The regular file at an absolute `path` that has no links; the caller closes it.

    Raises OSError as opening does, also where any part of the path has become a link, or the file something else.
    """
    with ExitStack() as opened:
        place: int | None = None
        for name in (path.anchor, *path.parts[1:-1]):
            place = os.open(name, _ON_THE_WAY, dir_fd=place)
            opened.callback(os.close, place)
        file = os.open(path.name, _TO_READ, dir_fd=place)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return os.fdopen(file, "rb")


def create(path: Path, text: str) -> bool:
    """Makes a file, of several processes that try the first one; False, and nothing changed, where there is one.

    Raises OSError.
    """
    make_directory(path.parent)
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, it never takes the place of what is there.
        os.link(hidden, path)
    except FileExistsError:
        return False
    finally:
        hidden.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def make_directory(directory: Path) -> None:
    """Makes a directory with all above it."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


_MARK = "\ufeff"
_BREAKS = ("\r\n", "\r", "\n")
_BREAK = re.compile("|".join(_BREAKS))
_AT_ONCE = 1 << 16


def text_of(data: bytes) -> str:
    """The beginning of a file as text, without the mark of UTF-8. What is no UTF-8, as at the end of a piece, becomes
    surrogates: `bytes_of` gives it back.
    """
    return data.decode("utf-8", "surrogateescape").removeprefix(_MARK)


def bytes_of(text: str) -> bytes:
    """What `text_of` was given, without the mark."""
    return text.encode("utf-8", "surrogateescape")


def row_breaks(text: str, options: ReadOptions) -> Iterator[re.Match[str]]:
    """The line breaks between rows. `text` begins where a row does; where it ends inside a value, nothing of the row
    is a break.
    """
    if not options.multi_line:
        yield from _BREAK.finditer(text)
        return
    yield from (found for found in _tokens(options.delimiter, options.quote).finditer(text) if found[0] in _BREAKS)


@lru_cache(maxsize=16)
def _tokens(delimiter: str, quote: str) -> re.Pattern[str]:
    """A line break, or a quoted value, also one that is not closed. A quote opens one at the beginning of a value
    alone, as for Spark: that of `5" pipe` is text.
    """
    mark, part = re.escape(quote), re.escape(delimiter)
    return re.compile(rf"(?<![^{part}\r\n]){mark}[^{mark}]*+(?:{mark}{mark}[^{mark}]*+)*+{mark}?|{_BREAK.pattern}")


def rows_in(text: str, options: ReadOptions) -> int:
    """How many rows end in `text`."""
    return sum(1 for _ in row_breaks(text, options))


def whole_rows(text: str, options: ReadOptions) -> str:
    """`text` without the row at its end that a break does not end."""
    end = 0
    for found in row_breaks(text, options):
        end = found.end()
    return text[:end]


def after_first_row(text: str, options: ReadOptions) -> str:
    """What follows the first row and its break."""
    found = next(row_breaks(text, options), None)
    return "" if found is None else text[found.end() :]


def first_values(text: str, options: ReadOptions) -> list[str]:
    """The values of the first row, without the blanks around; none of an empty one.

    Raises csv.Error, and UnicodeDecodeError for a row that is not UTF-8.
    """
    found = next(row_breaks(text, options), None)
    row = bytes_of(text if found is None else text[: found.end()]).decode()
    rows = csv.reader(io.StringIO(row, newline=""), delimiter=options.delimiter, quotechar=options.quote, strict=True)
    return [value.strip() for value in next(rows, [])]


def read_first_row(stream: BinaryIO, options: ReadOptions, most: int) -> str:
    """The beginning of a file, with its first row in it unless that is longer than `most` bytes."""
    data = b""
    while len(data) < most and (more := stream.read(min(_AT_ONCE, most - len(data)))):
        data += more
        text = text_of(data)
        found = next(row_breaks(text, options), None)
        # A break at the very end may be the half of a `\r\n`.
        if found is not None and found.end() < len(text):
            break
    return text_of(data)


def differing_breaks(text: str, options: ReadOptions) -> bool:
    """Whether the first line break of a file is inside a value and another one than that between its rows.

    Spark takes the first one for both, and then leaves half of the other in the last value of each row.
    """
    first, between = _BREAK.search(text), next(row_breaks(text, options), None)
    return first is not None and between is not None and first[0] != between[0]


def may_break_lines(lines: Sequence[bytes], quote: str) -> bool:
    """Whether a quoted value may begin in one of these lines, from anywhere in a file, and end in another."""
    return any(line.count(quote.encode()) % 2 for line in lines)
