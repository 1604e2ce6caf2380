"""Checks that generated documents are up to date, and that documents name only files and tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs.rules import outdated
from docs.tables import COMMAND, missing_tables, outdated_pages, pages
from service.cli.main import openapi_yaml

MANY_TESTS = 50
"""The least number of tests that the documents name."""

_FILE = re.compile(r"\b(?:service|workers|tests|migrations)/[\w/]+\.\w+")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every document below `root` that is out of date, with the command that writes it."""
    yield from (f"docs: no page has the table {name}." for name in missing_tables(root))
    for page, _ in outdated_pages(root):
        yield f"{page.relative_to(root)}: its tables are out of date. Run {COMMAND}"
    if (root / "openapi.yaml").read_text(encoding="utf-8") != openapi_yaml():
        yield "openapi.yaml: it is out of date. Run evenkeel openapi -o openapi.yaml"
    yield from (f"{path}: it is out of date. Run python -m docs.rules --write" for path in outdated(root))
    yield from _names(root)


def _names(root: Path) -> Iterator[str]:
    """Yields a sentence for every file and test that a document names and that does not exist."""
    contributing = root / "CONTRIBUTING.md"
    named = set[tuple[str, str]]()
    for document in [*([contributing] if contributing.exists() else []), *pages(root)]:
        name, text = document.relative_to(root), document.read_text(encoding="utf-8")
        yield from (
            f"{name}: there is no file {one}." for one in sorted(set(_FILE.findall(text))) if not _exists(root, one)
        )
        tests = set(_TEST.findall(text))
        named |= tests
        yield from (
            f"{name}: there is no test {path}::{test}." for path, test in sorted(tests) if not _has(root, path, test)
        )
    if len(named) < MANY_TESTS:
        yield f"The documents name {len(named)} tests as `file::test`; the tables of faults contain more."


def _exists(root: Path, name: str) -> bool:
    return (root / name).exists()


def _has(root: Path, path: str, test: str) -> bool:
    text = (root / path).read_text(encoding="utf-8") if (root / path).exists() else ""
    return re.search(rf"^ *(async )?def {test}\(", text, re.MULTILINE) is not None
