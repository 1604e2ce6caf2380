"""Checks the layout: sizes of files, docstrings of modules, places of tests, and marks of unfinished work."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.lint.sources import PACKAGES, product_files, test_files

MAX_LINES = 600
"""The most lines of a product file. A longer file has more than one subject."""

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
"""Unfinished work belongs in an issue; `TODO(#12)` names it."""


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every file below `root` that breaks the layout."""
    sources, tests = product_files(root), test_files(root)
    for source in sources:
        text = (root / source).read_text(encoding="utf-8")
        if len(text.splitlines()) > MAX_LINES:
            yield f"{source}: it has more than {MAX_LINES} lines."
        if text.strip() and not text.lstrip().startswith(('"""', 'r"""')):
            yield f"{source}: it has no docstring."
    for test in tests:
        package = test.parent.relative_to("tests")
        if package.parts[:1] and package.parts[0] in PACKAGES and not (root / package).is_dir():
            yield f"{test}: there is no package {package.as_posix()} that it could test."
    for path in (*sources, *tests):
        for comment in comments_of((root / path).read_text(encoding="utf-8")):
            if UNFINISHED.search(comment):
                yield f"{path}: unfinished work without an issue: {comment}"


def comments_of(text: str) -> Iterator[str]:
    """Yields the comments of a module's source."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
