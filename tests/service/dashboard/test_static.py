"""The dashboard's scripts by themselves, and whether what it brings along is what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from service.dashboard.bundle import bundle
from tests.support.node import run_node

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.slow


def test_the_scripts_tests_pass() -> None:
    tests = sorted(SCRIPTS.glob("*.test.mjs"))
    assert tests
    done = run_node(["node", "--test", *tests], environment={"PYTHON": sys.executable})
    assert done.returncode == 0, done.stdout + done.stderr


def test_vendored_libraries_are_what_their_pinned_packages_make(tmp_path: Path) -> None:
    done = run_node(["node", "vendor.mjs", tmp_path])
    assert done.returncode == 0, done.stderr
    made = {f"vendor/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    kept = {path: asset.content for path, asset in bundle().assets.items() if path.startswith("vendor/")}
    assert made.keys() == kept.keys()
    assert [path for path in made if made[path] != kept[path]] == []
