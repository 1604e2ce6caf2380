"""Text that others wrote, for a terminal: what would command the terminal is shown instead of obeyed."""

from __future__ import annotations

import re

_CONTROLS = "\x00-\x1f\x7f-\x9f"
_UNSEEN = "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff"
"""Marks that turn the direction of writing, break lines or take no room; and halves of characters."""

_IN_A_LINE = re.compile(f"[{_CONTROLS}{_UNSEEN}]")
_IN_JSON = re.compile(f"[\x7f-\x9f{_UNSEEN}]")


def safe_line(value: object) -> str:
    r"""One line of it, control characters as `\xNN` or `\uNNNN`.

    >>> safe_line("a\x1b]0;title\x07b\nc")
    'a\\x1b]0;title\\x07b\\x0ac'
    """
    return _IN_A_LINE.sub(_named, str(value))


def safe_text(value: object) -> str:
    r"""The same with its lines kept; a tab is four spaces.

    >>> safe_text("a\n\tb\x9b31m")
    'a\n    b\\x9b31m'
    """
    lines = str(value).replace("\r\n", "\n").replace("\t", "    ").split("\n")
    return "\n".join(safe_line(line) for line in lines)


def safe_json(text: str) -> str:
    """JSON with what a terminal might obey written as escapes, which mean the same to whoever reads the JSON."""
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, most: int) -> str:
    """At most so many characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _named(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
