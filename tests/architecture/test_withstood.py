"""Tests of the tables of faults and attacks, which are generated from the tests' marks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.withstood import Withstood, marks, table

MARKED = """
@pytest.mark.withstands("a cut", how="with scissors", times=3, guaranteed="it heals")
@pytest.mark.slow
def test_cut() -> None: ...
"""


def marks_of(directory: Path, text: str) -> list[Withstood]:
    (directory / "tests").mkdir()
    (directory / "tests" / "test_one.py").write_text(text)
    return list(marks(directory))


def test_mark_becomes_a_row(tmp_path: Path) -> None:
    found = marks_of(tmp_path, MARKED)
    assert found == [Withstood("fault", "a cut", "with scissors", 3, "it heals", "tests/test_one.py::test_cut")]
    assert "| a cut | with scissors | 3 | it heals | `tests/test_one.py::test_cut` |" in table(found, "fault")


def test_tables_have_one_kind() -> None:
    found = [Withstood("attack", "a flood", "with requests", 1, "it is refused", "tests/test_one.py::test_flood")]
    assert "a flood" in table(found, "attack")
    assert "a flood" not in table(found, "fault")


@pytest.mark.parametrize(
    ("old", "new"), [("times=3", "times=n"), (", times=3", ""), ("times=3", "kind='joke', times=3"), ("how", "why")]
)
def test_invalid_mark_is_an_error(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ValueError, match="test_cut"):
        marks_of(tmp_path, MARKED.replace(old, new))
