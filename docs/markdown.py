"""Writes Markdown: tables, code and anchors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table. Line breaks in cells become spaces, and vertical bars are escaped."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def code(text: object) -> str:
    """Returns `text` as inline code; an empty text stays empty."""
    shown = str(text)
    if "|" in shown:
        # In a table, some readers of Markdown show a backslash before the bar, and others end the cell without it.
        return f"<code>{escape(shown).replace('|', '&#124;')}</code>"
    return f"``{shown}``" if "`" in shown else f"`{shown}`" if shown else ""


def codes(texts: Iterable[object], *, between: str = ", ") -> str:
    """Returns several texts as inline code."""
    return between.join(map(code, texts))


def anchor(name: str) -> str:
    """Returns an invisible target for links to `#name`."""
    return f'<a id="{name}"></a>'


def sentence(text: str) -> str:
    """Returns the text with a capital letter at its beginning and a full stop at its end."""
    text = " ".join(text.split())
    return text if not text else text[0].upper() + text[1:] + ("" if text.endswith((".", "!", "?", ":")) else ".")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")
