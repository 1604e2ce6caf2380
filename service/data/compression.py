"""Reads compressed text as Spark does: by the suffix of the file's name. What is decompressed is limited by the reader.

| suffix | format | Spark 4.3 |
| --- | --- | --- |
| .gz, .gzip | gzip, several members | reads it |
| .bz2 | bzip2 | reads it |
| .deflate | zlib | reads it |
| .zst, .zstd | Zstandard | reads it |
| .lz4, .snappy | Hadoop's blocks, as Spark writes them | reads them; the frames of `lz4` and `snzip` end its JVM |
| .xz | | does not read it |
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Protocol

import pyarrow as pa

from service.data.file_io import DataFile, local_path, opened

GZIP = frozenset({".gz", ".gzip"})
ZSTD = frozenset({".zst", ".zstd"})
BLOCKS = {".lz4": "lz4", ".snappy": "snappy"}
"""Suffixes of Hadoop's blocks, with the codec inside of them."""

READ_BY_SPARK = GZIP | ZSTD | BLOCKS.keys() | {".bz2", ".deflate"}

_CHUNK_BYTES = 1 << 16
_MAX_BLOCK_BYTES = 8 << 20
"""Spark writes blocks of 256 KB. It allocates what a block declares: a damaged one can end the JVM."""
_MAX_LENGTHS = 1 << 16
"""Lengths of blocks and parts that are checked in a file."""
_MAX_BYTES_BEFORE_TEXT = 1 << 20
"""A file whose text is not even half as long as what is stored for it, except for so many bytes, is refused: thousands
of members or blocks may have no text, and take seconds.
"""
_LENGTH_BYTES = 4
_SNAPPY_LENGTH_BYTES = 5
_HADOOP_BUFFER_BYTES = 256 << 10
"""Hadoop compresses so much text at once. Shorter blocks have one part."""

_LZ4_FRAME = bytes.fromhex("04224d18607073")
"""The head of an LZ4 frame without checksums, with blocks of at most 4 MB."""


class CorruptTextError(Exception):
    """The file is not compressed as its suffix says, or is damaged."""


class TooLongError(ValueError):
    """A block has more text than its reader accepts."""


class _Reader(Protocol):
    """Reads decompressed bytes; `stored` is the number of bytes of the file that were needed for them."""

    @property
    def stored(self) -> int:
        """See the class."""

    def read(self, size: int) -> bytes:
        """Returns at most `size` bytes; none at the end."""


class TextStream:
    """The decompressed bytes of a file."""

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader

    @property
    def stored_bytes(self) -> int:
        """The bytes of the file from which the bytes so far were decompressed."""
        return self._reader.stored

    def read(self, size: int) -> bytes:
        """Returns `size` bytes, fewer only at the end of the file. Raises CorruptTextError, and OSError with an errno
        if the file cannot be read.
        """
        parts: list[bytes] = []
        missing = size
        try:
            while missing and (part := self._reader.read(missing)):
                parts.append(part)
                missing -= len(part)
        except OSError as error:
            if error.errno is not None:
                raise
            raise CorruptTextError from error
        except (zlib.error, pa.ArrowException, EOFError, ValueError) as error:
            raise CorruptTextError from error
        return b"".join(parts)


@contextmanager
def opened_text(file: DataFile) -> Iterator[TextStream]:
    """Opens a file of text, which is compressed if its suffix says so. Raises as `opened`."""
    with opened(file) as stream:
        yield TextStream(_reader(stream, file.suffix.lower()))


def _reader(stream: BinaryIO, suffix: str) -> _Reader:
    if suffix in GZIP:
        return _Members(stream, lambda: zlib.decompressobj(31))
    if suffix == ".deflate":
        return _Members(stream, zlib.decompressobj)
    if suffix == ".bz2":
        return _Members(stream, bz2.BZ2Decompressor)
    if suffix in ZSTD:
        return _Zstd(stream)
    if suffix in BLOCKS:
        return _Blocks(stream, BLOCKS[suffix])
    return _Plain(stream)


class _Plain:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.stored = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self.stored += len(data)
        return data


class _Members:
    """Decompresses members one after the other. Never holds more than one chunk of the file."""

    def __init__(self, stream: BinaryIO, new: Any) -> None:
        self._stream = stream
        self._new = new
        self._current = new()
        self._waiting = b""
        self._read = 0
        self._text_bytes = 0

    @property
    def stored(self) -> int:
        return self._read - len(self._waiting)

    def read(self, size: int) -> bytes:
        while True:
            if self._current.eof:
                self._waiting = self._current.unused_data or self._waiting
                if not self._waiting and not self._fill():
                    return b""
                self._current = self._new()
            data = self._decompress(size)
            if data:
                self._text_bytes += len(data)
                return data
            if not self._current.eof and not self._waiting and self._needs_input() and not self._fill():
                return b""

    def _decompress(self, size: int) -> bytes:
        data: bytes = self._current.decompress(self._waiting, size)
        # A decompressor of bz2 keeps what it has not used; one of zlib returns it.
        self._waiting = getattr(self._current, "unconsumed_tail", b"")
        return data

    def _needs_input(self) -> bool:
        return bool(getattr(self._current, "needs_input", True))

    def _fill(self) -> bool:
        _check_text(self.stored, self._text_bytes)
        self._waiting = self._stream.read(_CHUNK_BYTES)
        self._read += len(self._waiting)
        return bool(self._waiting)


class _Zstd:
    """Decompresses frames one after the other. Arrow skips frames without text in one call, so that each of its reads
    is checked.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._text_bytes = 0
        self._inner = pa.CompressedInputStream(pa.PythonFile(_Source(self._fill), "r"), "zstd")

    @property
    def stored(self) -> int:
        return self._stream.seek(0, 1)

    def read(self, size: int) -> bytes:
        data = bytes(self._inner.read(min(size, _CHUNK_BYTES)))
        self._text_bytes += len(data)
        return data

    def _fill(self, size: int) -> bytes:
        _check_text(self.stored, self._text_bytes)
        return self._stream.read(size)


class _Source:
    """What Arrow needs of a file that it reads from the beginning to the end."""

    closed = False

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self.read = read

    def close(self) -> None:
        self.closed = True


class _Blocks:
    """Decompresses Hadoop's blocks: the length of a block's text, then its parts, each with its own length."""

    def __init__(self, stream: BinaryIO, codec: str) -> None:
        self._stream = stream
        self._codec = codec
        self._missing = 0
        self._waiting = b""
        self._text_bytes = 0
        self.stored = 0

    def read(self, size: int) -> bytes:
        while not self._waiting:
            _check_text(self.stored, self._text_bytes)
            if not self._missing:
                length = self._length()
                if length is None:
                    return b""
                self._missing = length
                continue
            self._waiting = self._part()
            self._missing -= len(self._waiting)
            self._text_bytes += len(self._waiting)
        data, self._waiting = self._waiting[:size], self._waiting[size:]
        return data

    def _part(self) -> bytes:
        length = self._length()
        if length is None or not 0 < length <= 2 * _MAX_BLOCK_BYTES:
            raise CorruptTextError
        data = self._stream.read(length)
        self.stored += len(data)
        # A part has at most the text that its block still lacks.
        text = decompressed_block(data, self._codec, self._missing)
        if not text:
            raise CorruptTextError
        return text

    def _length(self) -> int | None:
        data = self._stream.read(_LENGTH_BYTES)
        self.stored += len(data)
        if not data:
            return None
        length = int.from_bytes(data, "big")
        if len(data) < _LENGTH_BYTES or length > _MAX_BLOCK_BYTES:
            raise CorruptTextError
        return length


def _check_text(stored: int, text: int) -> None:
    """Raises CorruptTextError for a file of which `stored` bytes have only `text` bytes of text."""
    if stored > 2 * text + _MAX_BYTES_BEFORE_TEXT:
        raise CorruptTextError


def snappy_length(data: bytes) -> int:
    """Returns the number of bytes that a Snappy block has once it is decompressed. Raises ValueError."""
    length = 0
    for place, byte in enumerate(data[:5]):
        length |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return length
    raise ValueError("no length")


def decompressed_block(data: bytes, codec: str, most: int) -> bytes:
    """Returns the text of a block of Snappy or LZ4, which is in no frame.

    Raises TooLongError for more than `most` bytes of text; ValueError, ArrowException, and OSError without an errno
    for a damaged block.
    """
    if codec == "snappy":
        size = snappy_length(data)
        if size > most:
            raise TooLongError
        return bytes(pa.Codec("snappy").decompress(data, size, asbytes=True))
    # The length of an LZ4 block is not stored, and Arrow's codec does not return it; its reader of frames does.
    text = read_at_most(_LZ4_FRAME + len(data).to_bytes(4, "little") + data + bytes(4), "lz4", most + 1)
    if len(text) > most:
        raise TooLongError
    return text


def read_at_most(stored: bytes, codec: str, most: int) -> bytes:
    """Returns the text of frames, up to `most` bytes. `codec` is Arrow's name. Raises what Arrow raises."""
    stream = pa.CompressedInputStream(pa.BufferReader(stored), codec)
    parts: list[bytes] = []
    while most > 0 and (part := stream.read(min(most, 1 << 20))):
        parts.append(part)
        most -= len(part)
    return b"".join(parts)


def check_blocks(file: DataFile) -> bool:
    """Whether Spark can read a `.lz4` or `.snappy` file: a local file whose blocks all have a usual size.

    Reads the length of every block and of its parts, at most _MAX_LENGTHS of them. Of blocks of LZ4 with several parts,
    it also reads the parts, since their length is not stored otherwise. A file with more is refused: Spark writes parts
    of 256 KB, so that it would have 8 GB. Raises OSError.
    """
    if local_path(file) is None:
        return False
    codec = BLOCKS[file.suffix.lower()]
    missing = 0
    with opened(file) as stream:
        for _ in range(_MAX_LENGTHS):
            head = stream.read(_LENGTH_BYTES)
            if missing == 0 and not head:
                return True
            length = int.from_bytes(head, "big")
            if len(head) < _LENGTH_BYTES or length > (2 if missing else 1) * _MAX_BLOCK_BYTES:
                return False
            if missing == 0:
                missing = length
                continue
            size = _size_of_part(stream, length, codec, missing) if length else 0
            if not 0 < size <= missing:
                return False
            missing -= size
    return False


def _size_of_part(stream: BinaryIO, length: int, codec: str, missing: int) -> int:
    """Returns the bytes of text of a part, 0 if it is damaged, and leaves the stream at its end."""
    if codec == "lz4" and missing <= _HADOOP_BUFFER_BYTES:
        # The block has one part.
        found = stream.read(1)
        stream.seek(length - 1, 1)
        return missing if found else 0
    data = stream.read(length if codec == "lz4" else min(length, _SNAPPY_LENGTH_BYTES))
    stream.seek(length - len(data), 1)
    try:
        return snappy_length(data) if codec == "snappy" else len(decompressed_block(data, codec, missing))
    except (ValueError, pa.ArrowException, OSError):
        return 0
