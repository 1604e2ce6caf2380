"""Checks that generated documents are up to date, and that documents name only files and tests that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docs.rules import outdated
from service.cli.main import openapi_yaml
from service.cli.readme_tables import with_tables
from tests.support.withstood import with_table

MANY_TESTS = 50
"""The least number of tests that the README names."""


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every document below `root` that is out of date, with the command that writes it."""
    readme = (root / "README.md").read_text(encoding="utf-8")
    if with_tables(readme) != readme:
        yield "README.md: its tables are out of date. Run python -m service.cli.readme_tables --write"
    if with_table(readme) != readme:
        yield "README.md: its table of faults is out of date. Run python -m tests.support.withstood --write"
    if (root / "openapi.yaml").read_text(encoding="utf-8") != openapi_yaml():
        yield "openapi.yaml: it is out of date. Run evenkeel openapi -o openapi.yaml"
    yield from (f"{path}: it is out of date. Run python -m docs.rules --write" for path in outdated(root))
    for document in (path for path in ("README.md", "CONTRIBUTING.md") if (root / path).exists()):
        text = (root / document).read_text(encoding="utf-8")
        for name in sorted(set(re.findall(r"\b(?:service|workers|tests|migrations)/[\w/]+\.\w+", text))):
            if not (root / name).exists():
                yield f"{document}: there is no file {name}."
    tests = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", readme)))
    if len(tests) < MANY_TESTS:
        yield f"README.md: it names {len(tests)} tests as `file::test`; its tables of faults contain more."
    for path, test in tests:
        text = (root / path).read_text(encoding="utf-8") if (root / path).exists() else ""
        if not re.search(rf"^ *(async )?def {test}\(", text, re.MULTILINE):
            yield f"README.md: there is no test {path}::{test}."
