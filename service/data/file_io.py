"""Opens and reads data files, local or in a store, creates durable files, and finds row boundaries in CSV text.

Paths of found files contain no links. Anyone who may write below a root can replace part of a path by a link later, so
files are opened without following links.

Rows of CSV text end at line breaks, except those inside quoted values if `multi_line` is set.
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
from typing import Any, BinaryIO, Protocol, TypeVar

from service.contract.read_options import ReadOptions
from service.data.roots import Store, translated

_PATH_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a pipe must not wait for a writer.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
PARALLEL_READS = 16
"""Files of a store that are read concurrently: each takes some round trips and little CPU time."""
COMPRESSED = frozenset({".gz", ".gzip", ".bz2", ".zst", ".zstd", ".lz4", ".snappy", ".deflate", ".xz"})
"""File name suffixes of compressed text. See `service.data.compression`."""
_CONTENT_PARTS = 3
"""Number of leading parts of a version that a write changes. For a local file, the time of the last status change
follows.
"""
T = TypeVar("T")
_BYTE_ORDER_MARK = "\ufeff"
_BREAKS = ("\r\n", "\r", "\n")
_BREAK = re.compile("|".join(_BREAKS))
_CHUNK_BYTES = 1 << 16


def open_without_links(path: Path) -> BinaryIO:
    """Opens the regular file at an absolute `path` without links; the caller closes it.

    Raises OSError like `open`, and also if a part of the path has become a link or the file is no regular file.
    """
    with ExitStack() as opened:
        place: int | None = None
        for name in (path.anchor, *path.parts[1:-1]):
            place = os.open(name, _PATH_FLAGS, dir_fd=place)
            opened.callback(os.close, place)
        file = os.open(path.name, _READ_FLAGS, dir_fd=place)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return os.fdopen(file, "rb")


def create(path: Path, text: str) -> bool:
    """Creates a file. Returns False, and changes nothing, if it exists; of several processes, one creates it.

    Raises OSError.
    """
    make_directory(path.parent)
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with hidden.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a hard link never replaces an existing file.
        os.link(hidden, path)
    except FileExistsError:
        return False
    finally:
        hidden.unlink(missing_ok=True)
    sync_directory(path.parent)
    return True


def make_directory(directory: Path) -> None:
    """Creates a directory with its parents, durably."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Makes the entries of a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class UriFile:
    """A file that Spark reads by its URI. `path` is its name in the store; `store` is None for local files.

    `modified` is the modification time in the store's listing, in nanoseconds since the epoch.
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
        """The part of the name from its last dot."""
        return Path(self.name).suffix


DataFile = Path | UriFile


class Readable(Protocol):
    """A binary stream."""

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, at most `size`; none at the end."""


def size_of(file: DataFile) -> int:
    """Returns the size of a file in bytes; for a file in a store, its size in the listing."""
    return file.stat().st_size if isinstance(file, Path) else file.size


def version_of(file: DataFile) -> tuple[int, ...] | None:
    """Returns the version of the file, its size first. For a local file: size, inode, and the times of the last
    modification and status change. For a file in a store: size and time in the listing, or None if the listing has no
    time. Raises OSError for a file that does not exist.
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
    return before == now or (before is not None and now is not None and before[:_CONTENT_PARTS] == now[:_CONTENT_PARTS])


def local_path(file: DataFile) -> Path | None:
    """Returns the file's local path; None for a file in a store, where each read is a remote request."""
    if isinstance(file, Path):
        return file
    return Path(file.path) if file.store is None else None


@contextmanager
def opened(file: DataFile) -> Iterator[Any]:
    """Opens the file as a seekable binary stream; a local file is opened without following links.

    Raises FileNotFoundError, PermissionError, StoreUnavailableError, or OSError, also for errors while reading.
    """
    if isinstance(file, UriFile) and file.store is not None:
        with translated(), file.store.open(file.path) as stream:
            yield stream
    else:
        with open_without_links(Path(file.path if isinstance(file, UriFile) else file)) as local:
            yield local


def for_each(files: Sequence[DataFile], read: Callable[[DataFile], T]) -> Iterator[T]:
    """Yields the results of `read` for all files, in order; files of a store are read concurrently.

    Raises what `read` raises for the first failing file in order, and starts no further reads then.
    """
    if len(files) < 2 or all(map(local_path, files)):
        yield from map(read, files)
        return
    pool = ThreadPoolExecutor(PARALLEL_READS, thread_name_prefix="reading")
    try:
        yield from pool.map(read, files)
    finally:
        pool.shutdown(cancel_futures=True)


def text_of(data: bytes) -> str:
    """Decodes the beginning of a file, without a byte order mark. Invalid UTF-8, such as a character cut at the end,
    becomes surrogates, which `bytes_of` restores.
    """
    return data.decode("utf-8", "surrogateescape").removeprefix(_BYTE_ORDER_MARK)


def bytes_of(text: str) -> bytes:
    """Returns the bytes given to `text_of`, without the byte order mark."""
    return text.encode("utf-8", "surrogateescape")


def row_breaks(text: str, options: ReadOptions) -> Iterator[re.Match[str]]:
    """Yields the line breaks between rows. `text` must begin at a row; if it ends inside a value, that row yields no
    break.
    """
    if not options.multi_line:
        yield from _BREAK.finditer(text)
        return
    yield from (found for found in _tokens(options.delimiter, options.quote).finditer(text) if found[0] in _BREAKS)


@lru_cache(maxsize=16)
def _tokens(delimiter: str, quote: str) -> re.Pattern[str]:
    """Matches a line break, or a quoted value, closed or not. As in Spark, a quote opens a value only at its beginning:
    the quote in `5" pipe` is text.
    """
    mark, part = re.escape(quote), re.escape(delimiter)
    return re.compile(rf"(?<![^{part}\r\n]){mark}[^{mark}]*+(?:{mark}{mark}[^{mark}]*+)*+{mark}?|{_BREAK.pattern}")


def rows_in(text: str, options: ReadOptions) -> int:
    """Returns the number of rows that end in `text`."""
    return sum(1 for _ in row_breaks(text, options))


def whole_rows(text: str, options: ReadOptions) -> str:
    """Returns `text` without an incomplete row at its end."""
    end = 0
    for found in row_breaks(text, options):
        end = found.end()
    return text[:end]


def after_first_row(text: str, options: ReadOptions) -> str:
    """Returns the text after the first row and its line break."""
    found = next(row_breaks(text, options), None)
    return "" if found is None else text[found.end() :]


def first_values(text: str, options: ReadOptions) -> list[str]:
    """Returns the values of the first row, without surrounding blanks; none for an empty row.

    Raises csv.Error, and UnicodeDecodeError for a row that is not UTF-8.
    """
    found = next(row_breaks(text, options), None)
    row = bytes_of(text if found is None else text[: found.end()]).decode()
    escape = None if options.escape_character == options.quote else options.escape_character
    rows = csv.reader(
        io.StringIO(row, newline=""),
        delimiter=options.delimiter,
        quotechar=options.quote,
        escapechar=escape,
        doublequote=escape is None,
        strict=True,
    )
    return [value.strip() for value in next(rows, [])]


def read_first_row(stream: Readable, options: ReadOptions, max_bytes: int) -> str:
    """Reads the beginning of a file, including the complete first row unless it is longer than `max_bytes` bytes."""
    data = b""
    while len(data) < max_bytes and (more := stream.read(min(_CHUNK_BYTES, max_bytes - len(data)))):
        data += more
        text = text_of(data)
        found = next(row_breaks(text, options), None)
        # A break at the very end may be the first half of a `\r\n`.
        if found is not None and found.end() < len(text):
            break
    return text_of(data)


def differing_breaks(text: str, options: ReadOptions) -> bool:
    """Whether the first line break of a file is inside a value and differs from the one between its rows.

    Spark uses the first one for both, and then leaves half of the other in the last value of each row.
    """
    first, between = _BREAK.search(text), next(row_breaks(text, options), None)
    return first is not None and between is not None and first[0] != between[0]


def may_break_lines(lines: Sequence[bytes], quote: str) -> bool:
    """Whether a quoted value may begin in one of these lines and end in another. The lines may be from anywhere in a
    file.
    """
    return any(line.count(quote.encode()) % 2 for line in lines)
