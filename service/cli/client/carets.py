"""A line of SQL with a caret below the place that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from service.cli.client.safe_text import safe_line

_WIDTH = 76
_CONTEXT = 30


def pointed_out(sql: str, line: int, column: int | None, width: int = _WIDTH) -> Sequence[str]:
    """The line (from 1) and, where a column (from 1) is given, a caret below it; nothing where there is no such line.

    Of a long line, what stands around the column.

    >>> print(*pointed_out("SELECT a,\\n  b.x FROM b", 2, 5), sep="\\n")
      b.x FROM b
        ^
    """
    lines = sql.split("\n")
    if not 1 <= line <= len(lines):
        return ()
    text = lines[line - 1].rstrip("\r").replace("\t", " ")
    if column is None or not 1 <= column <= len(text) + 1:
        return (safe_line(text[:width]),)
    begin = 0 if len(text) <= width else max(0, column - 1 - _CONTEXT)
    before, after = text[begin : column - 1], text[column - 1 : begin + width]
    head = ("…" if begin else "") + safe_line(before)
    tail = safe_line(after) + ("…" if begin + width < len(text) else "")
    return head + tail, " " * cell_len(head) + "^"
