"""Text that is safe to show on a terminal, and numbers as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_CONTROLS = "\x00-\x1f\x7f-\x9f"
_INVISIBLE = "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
"""Characters that change the writing direction, break lines or have no width; and surrogates."""

_UNSAFE_IN_LINE = re.compile(f"[{_CONTROLS}{_INVISIBLE}]")
_UNSAFE_IN_JSON = re.compile(f"[\x7f-\x9f{_INVISIBLE}]")


def safe_line(value: object) -> str:
    r"""Returns a value as one line of text, with control characters as `\xNN` or `\uNNNN`.

    >>> safe_line("a\x1b]0;title\x07b\nc")
    'a\\x1b]0;title\\x07b\\x0ac'
    """
    return _UNSAFE_IN_LINE.sub(_escaped, str(value))


def safe_text(value: object) -> str:
    r"""Returns the same, but keeps line breaks; a tab becomes four spaces.

    >>> safe_text("a\n\tb\x9b31m")
    'a\n    b\\x9b31m'
    """
    lines = str(value).replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(safe_line(line) for line in lines)


def safe_chunks(chunks: Iterable[bytes]) -> Iterator[str]:
    """Decodes chunks of UTF-8, with control characters escaped."""
    from codecs import getincrementaldecoder

    decoder = getincrementaldecoder("utf-8")(errors="replace")
    for chunk in chunks:
        yield safe_text(decoder.decode(chunk))
    yield safe_text(decoder.decode(b"", final=True))


def safe_json(text: str) -> str:
    """Escapes control characters in JSON text, which does not change its meaning."""
    return _UNSAFE_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shortened(text: str, most: int) -> str:
    """Cuts a text to at most `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def amount(number: int, one: str, many: str = "") -> str:
    """Returns `1 job` or `1,200 jobs`; `many` is the plural if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """Returns a number of bytes with three digits: `999 B`, `1.2 GB` (powers of 1000)."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    return f"{value:.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"
