"""Checks that generated documents are up to date, and that documents name only files and tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs import rules as rule_page
from service.cli.main import openapi_yaml
from service.cli.readme_tables import with_tables
from tests.support.withstood import with_table

MANY_TESTS = 50
"""The least number of tests that the documents name."""


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every document below `root` that is out of date, with the command that writes it."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    if with_tables(readme) != readme:
        yield "README.md: its tables are out of date. Run python -m service.cli.readme_tables --write"
    if with_table(readme) != readme:
        yield "README.md: its table of faults is out of date. Run python -m tests.support.withstood --write"
    if (root / "openapi.yaml").read_text(encoding="utf-8") != openapi_yaml():
        yield "openapi.yaml: it is out of date. Run evenkeel openapi -o openapi.yaml"
    for path in rule_page.outdated(root):
        yield f"{path}: it is out of date. Run python -m docs.rules --write"
    texts = {path.relative_to(root): path.read_text(encoding="utf-8") for path in _documents(root)}
    for document, text in texts.items():
        for name in sorted(set(re.findall(r"\b(?:service|workers|tests|migrations)/[\w/]+\.\w+", text))):
            if not (root / name).exists():
                yield f"{document}: there is no file {name}."
    named = {
        (path, test, document)
        for document, text in texts.items()
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text)
    }
    if len(named) < MANY_TESTS:
        yield f"README.md and docs: they name {len(named)} tests as `file::test`; their tables of faults contain more."
    for path, test, document in sorted(named):
        text = (root / path).read_text(encoding="utf-8") if (root / path).exists() else ""
        if not re.search(rf"^ *(async )?def {test}\(", text, re.MULTILINE):
            yield f"{document}: there is no test {path}::{test}."


def _documents(root: Path) -> list[Path]:
    """Returns the documents for readers of the project; a part of a tree may have only some of them."""
    return [
        path
        for path in (root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md")))
        if path.exists()
    ]
