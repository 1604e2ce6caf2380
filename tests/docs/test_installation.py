"""The commands that install Evenkeel, and the pinned versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTEST = ".venv/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder"


def documents() -> str:
    """Returns the text of README.md and of all pages."""
    return "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))


@pytest.mark.parametrize(
    ("name", "ends_with"), [("demo", ".venv/bin/evenkeel demo --state-dir flights"), ("tests", PYTEST)]
)
def test_demo_and_test_commands_are_complete(name: str, ends_with: str) -> None:
    found = re.findall(rf"<!-- command: {name} -->\n```sh\n(.*)\n```\n", documents())
    assert found
    for command in found:
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -c constraints.txt ")
        assert command.endswith(f"&& {ends_with}")


def test_every_version_is_pinned_without_an_index() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 60
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.+!]*( ; .+)?", pin) for pin in pins)
