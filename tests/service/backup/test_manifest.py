"""Files are copied whole or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from service.backup.manifest import copy_with_sum, sum_of


def test_a_copy_and_its_sum(tmp_path: Path) -> None:
    content = b"rows" * 700_000
    (tmp_path / "a").write_bytes(content)
    expected = hashlib.sha256(content).hexdigest()
    assert copy_with_sum(tmp_path / "a", tmp_path / "b") == (expected, len(content))
    assert sum_of(tmp_path / "b") == expected


def test_a_copy_replaces_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    with pytest.raises(FileNotFoundError):
        copy_with_sum(tmp_path / "missing", tmp_path / "b")
    assert not (tmp_path / "b").exists()
