"""Tests of the message for a missing or old Node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import node


@pytest.fixture(autouse=True)
def unchecked() -> Iterator[None]:
    """Clears the cached check of Node before and after these tests."""
    node._check_node.cache_clear()
    yield
    node._check_node.cache_clear()


def program(directory: Path, name: str, says: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\necho {says}\n", encoding="utf-8")
    path.chmod(0o755)


def test_missing_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match=r"need Node 20 or newer,? with npm.*apt install nodejs npm"):
        node.node_packages()


def test_old_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, "node", "v18.20.4")
    program(tmp_path, "npm", "10.7.0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AssertionError, match=r"need Node 20 or newer; .*/node is v18\.20\.4"):
        node.node_packages()
