"""The cost of aggregating before a join."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from workers.engine.rules.cost import Cost
from workers.engine.rules.eager.eager_aggregation import CLEAR_GAIN, JoinInput, join_then_aggregate, output_profile
from workers.engine.statistics.cardinality import KeyProfile

NEITHER, LEFT, BOTH = (False, False), (True, False), (True, True)


def even(rows: float, distinct: float) -> JoinInput:
    profile = KeyProfile(rows, distinct, ())
    return JoinInput(profile, profile, True)


def hot(rows: float, distinct: float, share: float) -> JoinInput:
    profile = KeyProfile(rows, distinct, (("7", rows * share),))
    return JoinInput(profile, profile, True)


def cost(
    left: JoinInput,
    right: JoinInput,
    eager: tuple[bool, bool],
    kind: JoinKind = JoinKind.INNER,
    *,
    broadcast: bool = False,
    by_text: bool = False,
) -> Cost:
    return join_then_aggregate(left, right, kind, eager, slots=4, tasks=4, broadcast=broadcast, by_text=by_text)


def test_a_side_of_few_keys_is_cheaper_aggregated() -> None:
    many, unique = even(20e6, 1e6), even(3e6, 3e6)
    assert cost(many, unique, LEFT).slowest * CLEAR_GAIN < cost(many, unique, NEITHER).slowest
    assert cost(many, unique, BOTH).slowest > cost(many, unique, LEFT).slowest


def test_a_side_of_nearly_unique_keys_is_not() -> None:
    nearly, unique = even(20e6, 19e6), even(3e6, 3e6)
    assert cost(nearly, unique, LEFT).slowest * CLEAR_GAIN > cost(nearly, unique, NEITHER).slowest


def test_a_product_of_hot_keys_goes_away() -> None:
    one = hot(2e6, 1e6, 0.3)
    assert cost(one, one, NEITHER).hottest_task > 3e11
    assert cost(one, one, BOTH).slowest < 1e-4 * cost(one, one, NEITHER).slowest
    assert cost(one, one, BOTH).hottest_task < 1e6


def test_other_columns_leave_more_groups() -> None:
    rows = KeyProfile(20e6, 1e6, (("7", 6e6),))
    by_more = JoinInput(rows, KeyProfile(20e6, 10e6, ()), False)
    assert by_more.aggregated().rows == pytest.approx(10e6)
    assert by_more.aggregated().hot == (("7", 3e6),)
    alone = JoinInput(rows, rows, True)
    assert alone.aggregated() == KeyProfile(1e6, 1e6, ())
    unique = even(3e6, 3e6)
    assert cost(alone, unique, LEFT).slowest < cost(by_more, unique, LEFT).slowest


def test_a_broadcast_side_leaves_the_rows_where_they_are() -> None:
    many, small = even(20e6, 1e6), even(1e4, 1e4)
    assert cost(many, small, NEITHER, broadcast=True).shuffled == 0
    assert cost(many, small, NEITHER, broadcast=True).slowest < cost(many, small, NEITHER).slowest


def test_with_a_broadcast_side_only_a_join_that_multiplies_rows_is_worth_it() -> None:
    facts, cities = even(20e6, 1e5), even(1e5, 1e5)
    assert cost(facts, cities, LEFT, broadcast=True).slowest > cost(facts, cities, NEITHER, broadcast=True).slowest
    repeated = even(1e6, 1e4)
    multiplied = cost(facts, repeated, NEITHER, broadcast=True).slowest
    assert cost(facts, repeated, BOTH, broadcast=True).slowest * CLEAR_GAIN < multiplied


@pytest.mark.parametrize(
    ("keys", "by_text", "key_is_text", "rows", "pays"),
    [
        (1_000, True, False, 40e6, True),
        (20_000, True, False, 40e6, True),
        # As measured: numbers are as quickly grouped above, and many keys are slowly found.
        (1_000, False, False, 40e6, False),
        (100_000, True, False, 40e6, False),
        (1_000_000, True, False, 40e6, False),
        # Texts on both sides, and too few rows for a further stage.
        (1_000, True, True, 40e6, False),
        (1_000, True, False, 4e6, False),
    ],
)
def test_with_a_broadcast_side_grouping_by_texts_is_better_done_late(
    keys: int, by_text: bool, key_is_text: bool, rows: float, pays: bool
) -> None:
    facts, cities = replace(even(rows, keys), by_text=key_is_text), even(keys, keys)
    native = cost(facts, cities, NEITHER, broadcast=True, by_text=by_text).slowest
    assert (cost(facts, cities, LEFT, broadcast=True, by_text=by_text).slowest * CLEAR_GAIN < native) is pays


def test_what_joins_put_out() -> None:
    left, right = KeyProfile(100, 10, (("7", 50),)), KeyProfile(20, 10, ())
    assert output_profile(left, right, JoinKind.INNER).rows == 200
    assert output_profile(left, right, JoinKind.LEFT_SEMI).rows == 100
    assert output_profile(left, right, JoinKind.LEFT_ANTI).hot_at_most
    wide = KeyProfile(1000, 1000, ())
    assert output_profile(KeyProfile(10, 10, ()), wide, JoinKind.RIGHT).rows == 1000
    assert output_profile(wide, KeyProfile(10, 10, ()), JoinKind.LEFT).rows == 1000


def test_an_empty_side_costs_nothing() -> None:
    nothing = JoinInput(KeyProfile(0, 0, ()), KeyProfile(0, 0, ()), False)
    assert cost(nothing, nothing, BOTH).slowest == 0
