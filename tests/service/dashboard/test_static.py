"""Unit tests of the dashboard's scripts in Node, and a comparison of the vendored libraries with their packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.api.dashboard import bundle
from tests.support.node import run_node

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.slow


def test_unit_tests_of_the_scripts_pass() -> None:
    tests = sorted(SCRIPTS.glob("*.test.mjs"))
    assert tests
    done = run_node(["node", "--test", *tests], environment={"PYTHON": sys.executable})
    assert done.returncode == 0, done.stdout + done.stderr


def test_vendored_libraries_match_their_pinned_packages(tmp_path: Path) -> None:
    done = run_node(["node", "vendor.mjs", tmp_path])
    assert done.returncode == 0, done.stderr
    built = {f"vendor/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    vendored = {path: asset.content for path, asset in bundle().assets.items() if path.startswith("vendor/")}
    assert built.keys() == vendored.keys()
    assert [path for path in built if built[path] != vendored[path]] == []
