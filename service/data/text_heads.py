"""Reads the beginnings of text files, decompressed, as UTF-8, and without comments."""

from __future__ import annotations

from dataclasses import dataclass

from service.contract.read_options import Encoding, ReadOptions
from service.data.compression import opened_text
from service.data.file_io import DataFile

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Head:
    """The beginning of a file as UTF-8 without a byte order mark; `is_whole` if it is the whole file.

    `stored_bytes` is how much of the file it is, which is less than `data` if the file is compressed.
    """

    name: str
    data: bytes
    is_whole: bool
    stored_bytes: int


def read_head(file: DataFile, options: ReadOptions, most: int) -> Head:
    """Returns at most `most` bytes of text, and decompresses no more than that, whatever the file contains.

    Raises CorruptTextError, OSError, and StoreUnavailableError.
    """
    with opened_text(file) as stream:
        data = stream.read(most + 1)
        stored = stream.stored_bytes
    # Before the byte order mark is removed, which makes the data shorter.
    is_whole = len(data) <= most
    return Head(file.name, plain_text(data, options), is_whole, stored)


def plain_text(data: bytes, options: ReadOptions) -> bytes:
    """Returns the beginning of a file as UTF-8, without byte order mark and comments. Invalid UTF-8 is kept."""
    data = data.removeprefix(_BYTE_ORDER_MARK)
    if options.encoding is Encoding.LATIN1:
        data = data.decode("latin-1").encode()
    if options.comment is None:
        return data
    mark = options.comment.encode()
    return b"".join(line for line in data.splitlines(keepends=True) if not line.startswith(mark))
