"""Tests that the planning benchmark's cases are accepted queries with the stated number of joins."""

from __future__ import annotations

import pytest

from tests.benchmarks.planning import growth
from tests.benchmarks.planning_cases import COLUMNS, SHAPES, TABLES, VARIANTS, Variant, planning_case
from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Join, Scan
from workers.engine.plan.traversal import walk_up


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("joins", [5, 37])
def test_case_is_an_accepted_query_with_the_number_of_joins(shape: str, variant: Variant, joins: int) -> None:
    case = planning_case(shape, variant, joins)
    plan = build(compiled(dict.fromkeys(TABLES, COLUMNS), case.sql, name="planning"))
    found = [node for node in walk_up(plan) if isinstance(node, Join)]
    assert len(found) == joins
    assert sum(len(join.keys) for join in found) == case.conditions
    assert sum(isinstance(node, Scan) for node in walk_up(plan)) == joins + 1


def test_growth_is_the_exponent_of_the_time() -> None:
    assert growth([(10, 0.1), (20, 0.4), (40, 1.6)]) == pytest.approx(2.0)
    assert growth([(10, 0.1)]) is None
