"""A file is made once, and wholly."""

from __future__ import annotations

from pathlib import Path

from service.data.file_io import create


def test_the_first_one_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    assert create(path, "first")
    assert not create(path, "second")
    assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]
