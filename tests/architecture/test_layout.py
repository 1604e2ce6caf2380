"""Tests mirror the source, and the tree stays in the shape that the README describes."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("service", "workers")


def python_files(folder: Path, pattern: str) -> list[Path]:
    found = (path for package in PACKAGES for path in (folder / package).rglob(pattern))
    return sorted(path.relative_to(ROOT) for path in found)


SOURCES = python_files(ROOT, "*.py")
TESTS = python_files(ROOT / "tests", "test_*.py")
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b(?!\(#\d+\))")
"""What is left to do stands in an issue: `TODO(#12)` names it."""

MAX_LINES = 400

MIRRORED = ("workers/engine/plan", "workers/engine/rules", "workers/engine/stats")
"""Packages in which every module with something in it to run has a test of its own name."""

DECLARATIONS = frozenset({"nodes", "statistics", "rule", "rulebook"})
"""Modules of these that only declare."""


@pytest.mark.parametrize("test", TESTS, ids=str)
def test_a_test_stands_where_its_source_does(test: Path) -> None:
    below = test.relative_to("tests")
    module = below.with_name(below.name.removeprefix("test_"))
    assert (ROOT / module).is_file() or (ROOT / module.with_suffix("")).is_dir()


@pytest.mark.parametrize(
    "source",
    [path for path in SOURCES if path.as_posix().startswith(MIRRORED) and path.stem not in DECLARATIONS | {"__init__"}],
    ids=str,
)
def test_a_module_of_the_engine_has_its_test(source: Path) -> None:
    assert (ROOT / "tests" / source.with_name(f"test_{source.name}")).is_file()


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_files_stay_small(source: Path) -> None:
    assert len((ROOT / source).read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@pytest.mark.parametrize("source", SOURCES, ids=str)
def test_a_module_says_what_it_is_for(source: Path) -> None:
    text = (ROOT / source).read_text(encoding="utf-8")
    assert not text.strip() or text.lstrip().startswith(('"""', 'r"""'))


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=str)
def test_nothing_is_left_to_do_without_an_issue(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert [comment for comment in comments_of(text) if UNFINISHED.search(comment)] == []


def comments_of(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
