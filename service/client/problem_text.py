"""A problem as text for people: its sentence and code, and for each error its place, with the SQL and a caret."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..contract.problems import Issue, Problem
from .text import safe_line, shortened

_EXCERPT_WIDTH = 76
_EXCERPT_BEFORE = 30
_MAX_ISSUES = 20
_MAX_CHARACTERS = 2000
_FORMAT = re.compile(r"set 'format' to (?!one\b)(\w+)")
_READ_OPTION = re.compile(r"[Ss]et (?:the option )?'(delimiter|merge_schema|row_tag)'|requires '(row_tag)'")
_TYPED_PARAMETER = re.compile(r'in `parameters`: \{"(\w+)": \{"type": "(\w+)"')
_FLAGS = frozenset({"merge_schema"})


@dataclass(frozen=True)
class Source:
    """The posted SQL, and its name for the user: a file, or `--sql`; empty if there is only one text.

    `written` has what the user wrote for a part of the request, by its JSON pointer: `--table f=flights/` for
    `/tables/f`. With `has_keys`, all other pointers are shown as keys of a job file: `settings.join.ship`.
    """

    sql: str
    label: str = ""
    written: Mapping[str, str] = field(default_factory=dict)
    has_keys: bool = False


def excerpt(sql: str, line: int, column: int | None, width: int = _EXCERPT_WIDTH) -> Sequence[str]:
    """Returns a line of SQL, and a second line with a caret below the column; nothing if the line does not exist.

    Lines and columns are counted from 1; without a column there is no caret. A long line is cut around the column.

    >>> print(*excerpt("SELECT a,\\n  b.x FROM b", 2, 5), sep="\\n")
      b.x FROM b
        ^
    """
    lines = sql.split("\n")
    if not 1 <= line <= len(lines):
        return ()
    text = lines[line - 1].rstrip("\r").replace("\t", " ")
    if column is None or not 1 <= column <= len(text) + 1:
        return (safe_line(text[:width]),)
    begin = 0 if len(text) <= width else max(0, column - 1 - _EXCERPT_BEFORE)
    before, after = text[begin : column - 1], text[column - 1 : begin + width]
    head = ("…" if begin else "") + safe_line(before)
    tail = safe_line(after) + ("…" if begin + width < len(text) else "")
    return head + tail, " " * _cells(head) + "^"


def _cells(text: str) -> int:
    """Returns the width of a text in columns of a terminal."""
    widths = (
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )
    return sum(widths)


def place_of(pointer: str, source: Source | None) -> str:
    """Returns a JSON pointer as the user knows it: the option or key that they wrote.

    >>> source = Source("", written={"/tables/f": "--table f=flights/"}, has_keys=True)
    >>> [place_of(pointer, source) for pointer in ("/tables/f/path", "/settings/join/ship")]
    ['--table f=flights/', 'settings.join.ship']
    """
    if source is None:
        return pointer
    parts = pointer.split("/")
    for length in range(len(parts), 1, -1):
        written = source.written.get("/".join(parts[:length]))
        if written is not None:
            return shortened(written, _EXCERPT_WIDTH)
    if not source.has_keys:
        return pointer
    return ".".join(part.replace("~1", "/").replace("~0", "~") for part in parts[1:])


def problem_head(problem: Problem, source: Source | None = None) -> str:
    """Returns a problem as one line, with its stable code."""
    detail = problem.detail if len(problem.errors) < 2 else f"the request has {len(problem.errors)} errors"
    if len(problem.errors) == 1 and (pointer := problem.errors[0].pointer) and detail.startswith(f"{pointer}: "):
        detail = place_of(pointer, source) + detail.removeprefix(pointer)
    return f"{_shown(detail)} [{safe_line(problem.code)}]"


def problem_lines(problem: Problem, source: Source | None) -> Iterator[str]:
    """Yields lines with the place of each error: the SQL with a caret below it, or the pointer into the request."""
    several = len(problem.errors) > 1
    for issue in problem.errors[:_MAX_ISSUES]:
        if several:
            yield f"{_shown(issue.detail)} [{safe_line(issue.code)}]"
        # The detail of a problem with one error may already contain the pointer.
        is_known = not several and issue.pointer is not None and issue.pointer in problem.detail
        if not is_known or issue.line is not None:
            yield from _place(issue, source)
        option = option_of(issue, source)
        if option is not None:
            yield f"as an option: {safe_line(option)}"
    if len(problem.errors) > _MAX_ISSUES:
        yield f"… and {len(problem.errors) - _MAX_ISSUES} more"


def option_of(issue: Issue, source: Source | None) -> str | None:
    """Returns the option of the command line that does what an issue says of a field; None if none is known, or if the
    job does not come from options.

    >>> source = Source("", written={"/tables/f": "--table f=flights/"}, has_keys=True)
    >>> detail = "'a' is not a CSV file. It looks like a Parquet file: set 'format' to parquet."
    >>> option_of(Issue(code="corrupt_file", detail=detail, pointer="/tables/f/path"), source)
    '--table f=parquet:flights/'
    """
    if source is None or not source.has_keys:
        return None
    typed = _TYPED_PARAMETER.search(issue.detail)
    if typed is not None:
        return f"--param {typed[1]}:{typed[2]}=VALUE"
    parts = (issue.pointer or "").split("/")
    written = source.written.get("/".join(parts[:3])) if parts[1:2] == ["tables"] else None
    if written is None or not written.startswith("--table "):
        return None
    name, _, path = written.partition("=")
    format_ = _FORMAT.search(issue.detail)
    if format_ is not None:
        head, colon, rest = path.partition(":")
        has_format = colon and not rest.startswith("//")
        return f"{name}={format_[1]}:{rest if has_format else head + colon + rest}"
    found = _READ_OPTION.search(issue.detail)
    if found is None:
        return None
    option = found[1] or found[2]
    return f"--read {name.removeprefix('--table ')}.{option}={'true' if option in _FLAGS else 'VALUE'}"


def _shown(text: str) -> str:
    return shortened(safe_line(text), _MAX_CHARACTERS)


def _place(issue: Issue, source: Source | None) -> Iterable[str]:
    if issue.line is None or (issue.pointer is not None and issue.pointer != "/sql"):
        # The line and column are those of another text, such as a schema.
        return (f"at {safe_line(place_of(issue.pointer, source))}",) if issue.pointer else ()
    if source is None or not source.label:
        place = f"at line {issue.line}" + ("" if issue.column is None else f", column {issue.column}")
        return (place, *(() if source is None else excerpt(source.sql, issue.line, issue.column)))
    column = "" if issue.column is None else f":{issue.column}"
    return (f"{safe_line(source.label)}:{issue.line}{column}", *excerpt(source.sql, issue.line, issue.column))
