"""Every rule keeps the house's contract: its name, its docstring, its doctest, its tests, its golden cases."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path
from types import ModuleType

import pytest

from service.spec import options, query, scalar, types
from service.spec.options import declared_settings
from workers.engine.plan import explain, nodes
from workers.engine.rules import rule as rule_module
from workers.engine.rules.rule import Match, Rule
from workers.engine.rules.rulebook import RULES
from workers.engine.stats import statistics

ROOT = Path(__file__).parents[2]
RULES_FOLDER = ROOT / "workers" / "engine" / "rules"
SECTIONS = (
    "Fires when:",
    "Does not fire when:",
    "Why the result is the same:",
    "Settings read:",
)

by_name = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


def module_of(rule: Rule[nodes.Aggregate]) -> ModuleType:
    return importlib.import_module(type(rule).__module__)


def contract_of(rule: Rule[nodes.Aggregate]) -> str:
    contract = inspect.getdoc(type(rule))
    assert contract is not None
    return contract


def settings_read(rule: Rule[nodes.Aggregate]) -> set[str]:
    """The keys that the contract names; "none" stands for no setting."""
    return set(re.findall(r"[a-z_]+(?:\.[a-z_]+)?", contract_of(rule).rpartition("Settings read:")[2])) - {"none"}


def test_every_module_beside_the_rulebook_is_a_rule_of_it() -> None:
    found = {path.stem for path in RULES_FOLDER.glob("*.py")} - {"__init__", "rule", "rulebook"}
    assert {rule.name for rule in RULES} == found


@by_name
def test_one_name_everywhere(rule: Rule[nodes.Aggregate]) -> None:
    assert module_of(rule).__name__.rpartition(".")[2] == rule.name
    assert type(rule).__name__ == "".join(word.capitalize() for word in rule.name.split("_"))
    assert (ROOT / f"tests/workers/engine/rules/test_{rule.name}.py").is_file()
    assert list((ROOT / "tests" / "golden" / rule.name).glob("*.yaml"))


@by_name
def test_the_docstring_is_a_contract(rule: Rule[nodes.Aggregate]) -> None:
    contract = contract_of(rule)
    first, _, rest = contract.partition("\n\n")
    assert first.endswith(".")
    assert first.count(". ") == 0
    assert rest.startswith(">>> ")
    places = [contract.find(section) for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)


@by_name
def test_the_example_runs(rule: Rule[nodes.Aggregate]) -> None:
    names: dict[str, object] = {}
    for module in (types, scalar, query, options, explain, rule_module, statistics, nodes, module_of(rule)):
        names.update(vars(module))
    names["Match"] = Match
    examples = doctest.DocTestFinder(recurse=False).find(type(rule), rule.name, globs=names)
    results = doctest.DocTestRunner(verbose=False).run(examples[0])
    assert results.attempted > 3
    assert results.failed == 0


@by_name
def test_the_settings_it_reads_are_declared_and_read(rule: Rule[nodes.Aggregate]) -> None:
    declared = {declaration.key for declaration in declared_settings()}
    assert settings_read(rule) <= declared
    source = inspect.getsource(module_of(rule))
    for key in settings_read(rule):
        group, _, leaf = key.partition(".")
        # skew.* is read where the cost model asks for the whole group.
        assert f"settings.{key}" in source or (group == "skew" and leaf and "settings.skew" in source)
    for used in re.findall(r"ctx\.settings\.([a-z_]+(?:\.[a-z_]+)?)", source):
        assert any(key == used or key.startswith(used + ".") for key in settings_read(rule))


@by_name
def test_the_rulebook_says_in_a_comment_what_each_rule_is_for(rule: Rule[nodes.Aggregate]) -> None:
    lines = (RULES_FOLDER / "rulebook.py").read_text(encoding="utf-8").splitlines()
    place = next(number for number, line in enumerate(lines) if line.strip() == f"{type(rule).__name__}(),")
    assert lines[place - 1].strip().startswith("# ")
