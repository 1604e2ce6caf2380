"""Test that the example in every rule's docstring yields the plans of the docstring."""

from __future__ import annotations

import doctest
import importlib
from typing import Any

import pytest

from service.contract import options, query
from service.sql.expressions import scalar
from service.sql.types import data_types
from workers.engine.plan import explain, expressions, nodes
from workers.engine.rules import rule as rule_module
from workers.engine.rules.rule import Match, Rule
from workers.engine.rules.rulebook import RULES
from workers.engine.statistics import model


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_example_of_the_rule(rule: Rule[Any]) -> None:
    names: dict[str, object] = {}
    module = importlib.import_module(type(rule).__module__)
    for imported in (
        data_types,
        scalar,
        query,
        options,
        explain,
        rule_module,
        model,
        nodes,
        expressions,
        expressions,
        module,
    ):
        names.update(vars(imported))
    names["Match"] = Match
    examples = doctest.DocTestFinder(recurse=False).find(type(rule), rule.name, globs=names)
    results = doctest.DocTestRunner(verbose=False).run(examples[0])
    assert results.attempted > 3
    assert results.failed == 0
