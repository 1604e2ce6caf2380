"""The terms of a condition by table, and the share of rows that they keep together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import BIGINT, BOOLEAN, Field
from tests.support.joined import call, joined, text
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Filter, Join, Scan
from workers.engine.statistics.cardinality import (
    UNKNOWN_CONDITION,
    combined,
    conditions_of,
    estimate_rows,
    share_of,
    terms_by_table,
)
from workers.engine.statistics.model import KeptKeys, Statistics, TableSize, ValueRange

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


@pytest.mark.parametrize(
    ("kind", "kept_days", "rows"),
    [
        # 365 of 73,000 days, and all of them in the five years of the sales.
        (JoinKind.INNER, (36_500, 36_864), 200),
        # The days are anywhere in the 200 years.
        (JoinKind.INNER, (0, 72_999), 5),
        # No day is in the five years.
        (JoinKind.INNER, (0, 364), 0),
        (JoinKind.LEFT, (36_500, 36_864), 5),
    ],
)
def test_a_condition_keeps_more_where_the_other_side_has_a_part_of_the_keys(
    kind: JoinKind, kept_days: tuple[int, int], rows: int
) -> None:
    days = Scan("days", "d", ((Field("d.day", BIGINT), "day"), (Field("d.year", BIGINT), "year")))
    sales = Scan("sales", "s", ((Field("s.day", BIGINT), "day"),))
    join = Join(sales, days, kind, ((scalar("`s.day`", BIGINT), scalar("`d.day`", BIGINT)),))
    of_a_year = condition("`d.year` = 2001")
    known = Statistics(
        {"s": TableSize("s", 1, 1_000, 1_000, True), "d": TableSize("d", 1, 1_000, 1_000, True)},
        {},
        2,
        ranges={"s.day": ValueRange(36_000, 37_824), "d.day": ValueRange(0, 72_999)},
        selectivities={of_a_year.sql: 0.005},
        kept_keys={of_a_year.sql: (KeptKeys({"d.day": kept_days}),)},
    )
    assert estimate_rows(Filter(join, of_a_year), known) == rows
