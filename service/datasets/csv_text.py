"""Where rows of CSV text end: at line breaks, those inside of quoted values aside where these may be `multi_line`."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO

from service.spec.job import ReadOptions

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
