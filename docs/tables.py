"""Generates the tables of the documentation from the code.

`python -m docs.tables` fails if a page differs from them; with `--write` it updates the pages. A table is between
`<!-- table NAME -->` and `<!-- end of table -->` in a Markdown file below `docs/`, or in README.md. Each table is in at
least one of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from docs import command_tables, error_tables, field_tables, operation_tables, service_tables, sql_tables
from tests.support import withstood

Table = Callable[[], str]
"""Returns the Markdown of a table."""

TABLES: Mapping[str, Table] = {
    **service_tables.TABLES,
    **command_tables.TABLES,
    **error_tables.TABLES,
    **sql_tables.TABLES,
    **operation_tables.TABLES,
    **field_tables.TABLES,
    **withstood.TABLES,
}
"""All tables by name."""

COMMAND = "python -m docs.tables --write"
"""The command that updates the pages."""

_MARKED = re.compile(r"^<!-- table (?P<name>[^\n]+) -->\n.*?^<!-- end of table -->$", re.DOTALL | re.MULTILINE)
_START = re.compile(r"^<!-- table ([^\n]+) -->$", re.MULTILINE)


@cache
def generated(name: str) -> str:
    """Returns the Markdown of the table `name`. Raises ValueError if no table has this name."""
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; the tables are {', '.join(TABLES)}")
    return TABLES[name]()


def with_tables(text: str) -> str:
    """Returns `text` with every table updated. Raises ValueError for an unknown table and for a missing end."""
    if len(_START.findall(text)) != len(_MARKED.findall(text)):
        raise ValueError("a table has no <!-- end of table -->")

    def updated(found: re.Match[str]) -> str:
        name = found["name"]
        return f"<!-- table {name} -->\n\n{generated(name)}\n\n<!-- end of table -->"

    return _MARKED.sub(updated, text)


def pages(root: Path) -> list[Path]:
    """Returns the Markdown files that may have tables: README.md and those below `docs/`."""
    readme = root / "README.md"
    return [*([readme] if readme.exists() else []), *sorted((root / "docs").rglob("*.md"))]


def missing_tables(root: Path) -> list[str]:
    """Returns the tables that no page has."""
    found = {name for page in pages(root) for name in _START.findall(page.read_text(encoding="utf-8"))}
    return [name for name in TABLES if name not in found]


def outdated_pages(root: Path) -> Iterator[tuple[Path, str]]:
    """Yields every page that is out of date, with its new text. Raises ValueError as `with_tables`."""
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        try:
            new = with_tables(text)
        except ValueError as error:
            raise ValueError(f"{page.relative_to(root)}: {error}") from None
        if new != text:
            yield page, new


def main(arguments: list[str], root: Path = Path()) -> int:
    """Checks or writes the pages below `root` and returns the exit code, which is 0 if they are up to date."""
    missing = missing_tables(root)
    for name in missing:
        sys.stderr.write(f"No page has the table {name}: add <!-- table {name} --> and <!-- end of table --> to one.\n")
    outdated = list(outdated_pages(root))
    for page, text in outdated:
        if "--write" in arguments:
            page.write_text(text, encoding="utf-8")
        else:
            sys.stderr.write(f"{page.relative_to(root)} is out of date: {COMMAND}\n")
    return 1 if missing or (outdated and "--write" not in arguments) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
