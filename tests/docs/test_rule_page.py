"""Tests of the page about the rules, which is generated from their docstrings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from docs.rules import PAGE, PICTURES, ROOT, examples_of, files, outdated, page_of, pictures
from workers.engine.plan.nodes import Filter, Project
from workers.engine.rules.rule import Rule
from workers.engine.rules.rulebook import RULES


def test_every_rule_is_described_with_its_plans() -> None:
    text = files(ROOT)[PAGE]
    for number, rule in enumerate(RULES, start=1):
        assert f"## {number}. `{rule.name}`" in text
        assert next(caption for _, caption, _ in pictures(rule)) == "Before"
        assert all(name in text for name, _, _ in pictures(rule))


def test_plans_are_those_of_the_example() -> None:
    (example,) = examples_of(RULES[0])
    assert isinstance(example.before, Filter)
    assert isinstance(example.after, Project)
    assert example.choice == "PRUNED"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_drawings_are_xml_and_highlight_a_change(rule: Rule[Any]) -> None:
    drawings = [content for _, _, content in pictures(rule)]
    for content in drawings:
        ElementTree.fromstring(content)
    assert any('class="replaced"' in content or 'class="changed"' in content for content in drawings)


def test_outdated_and_superfluous_files_are_found(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    assert list(outdated(tmp_path)) == []
    changed = tmp_path / PICTURES / "skewed_join-1-before.svg"
    changed.write_text("<svg/>")
    (tmp_path / PICTURES / "no_rule.svg").write_text("<svg/>")
    page = tmp_path / PAGE
    page.write_text(page.read_text().replace("## 1. ", "## 2. "))
    assert list(outdated(tmp_path)) == [PAGE, PICTURES / changed.name, PICTURES / "no_rule.svg"]


def test_page_needs_its_marks() -> None:
    with pytest.raises(ValueError, match="marks"):
        page_of("# The rules\n")
