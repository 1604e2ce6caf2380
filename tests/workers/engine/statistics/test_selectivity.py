"""The terms of a condition by table, and the share of rows that they keep together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import BIGINT, BOOLEAN, Field
from tests.support.joined import call, joined, text
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Filter, Scan
from workers.engine.statistics.cardinality import UNKNOWN_CONDITION, combined, conditions_of, share_of, terms_by_table
from workers.engine.statistics.model import Statistics

TABLE_OF = {"l.a": "l", "l.b": "l", "r.a": "r"}


def condition(sql: str) -> Scalar:
    return scalar(sql, BOOLEAN)


def test_terms_go_to_their_tables() -> None:
    found, unknown = terms_by_table(
        condition("`l.a` > 1 AND `r.a` = 2 AND `l.b` IS NULL AND `l.a` < `r.a` AND TRUE AND `n` > 1"), TABLE_OF
    )
    assert {alias: (terms.text, terms.columns) for alias, terms in found.items()} == {
        "l": ("`l.a` > 1 AND `l.b` IS NULL", frozenset({"l.a", "l.b"})),
        "r": ("`r.a` = 2", frozenset({"r.a"})),
    }
    assert unknown == 3
    for whole in ("`l.a` > 1", "`l.a` > 1 OR `l.b` > 1"):
        found, unknown = terms_by_table(condition(whole), TABLE_OF)
        assert ([terms.text for terms in found.values()], unknown) == ([whole], 0)


def test_an_expression_that_is_not_standard_is_unknown() -> None:
    assert terms_by_table(condition("bitmap_count(`l.a`) > 1"), TABLE_OF) == ({}, 1)


@pytest.mark.parametrize(
    ("shares", "unknown", "share"),
    [
        ([], 1, None),
        ([None], 0, None),
        ([0.5], 0, 0.5),
        ([0.5, 0.1], 0, 0.05),
        ([0.5], 2, 0.5 * UNKNOWN_CONDITION),
        ([0.5, None], 0, 0.5 * UNKNOWN_CONDITION),
    ],
)
def test_shares_of_tables_multiply(shares: list[float | None], unknown: int, share: float | None) -> None:
    assert combined(shares, unknown) == pytest.approx(share)


def test_a_condition_that_is_not_known_keeps_a_third() -> None:
    known = Statistics({}, {}, 2, selectivities={"`l.a` > 1": 0.01})
    assert share_of(condition("`l.a` > 1"), known) == 0.01
    assert share_of(condition("`l.a` > 2"), known) == UNKNOWN_CONDITION


def test_conditions_of_a_plan() -> None:
    scan = Scan("l", "l", ((Field("l.a", BIGINT), "a"),))
    one, other = condition("`l.a` > 1"), condition("`l.a` > 2")
    assert conditions_of(Filter(Filter(Filter(scan, one), other), one)) == (one, other)


def test_conditions_are_known_where_aggregating_below_a_join_puts_them() -> None:
    node = joined(call("COUNT"))
    both = text("l.i > 0 AND l.q AND r.i > 1", "l.i", "l.q", "r.i")
    found = [one.sql for one in conditions_of(replace(node, input=Filter(node.input, both)))]
    assert found == [both.sql, "`l.i` > 0 AND `l.q`", "`r.i` > 1"]
