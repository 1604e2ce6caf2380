"""Sums of products of both sides. `tests/conformance` compares them with those of the query."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contract.query import JoinKind
from service.sql.expressions.scalar import column
from service.sql.joins import Side
from service.sql.types.data_types import BIGINT, DOUBLE, FLOAT, INT, DataType, decimal
from tests.support.joined import TYPES, call, col, joined, text
from workers.engine.plan.joined_aggregate import JoinedAggregate, joined_aggregate
from workers.engine.plan.nodes import Call, Join, Scan
from workers.engine.rules.eager.pushdown import carried_columns, multiplying_sides, placement_of, refusal_of
from workers.engine.rules.eager.wide_sums import Factor, Parts, as_addend, factors_of, summed_product

BOTH, LEFT, RIGHT = frozenset(Side), frozenset({Side.LEFT}), frozenset({Side.RIGHT})


def over_of(made: Call, kind: JoinKind = JoinKind.INNER, **types: DataType) -> JoinedAggregate:
    """`made` over the join, with columns of other types."""
    node = joined(made, kind=kind)
    assert isinstance(node.input, Join)

    def typed(scan: Scan) -> Scan:
        columns = tuple((replace(field, type=types.get(name, field.type)), name) for field, name in scan.columns)
        return replace(scan, columns=columns)

    assert isinstance(node.input.left, Scan)
    assert isinstance(node.input.right, Scan)
    join = replace(node.input, left=typed(node.input.left), right=typed(node.input.right))
    over = joined_aggregate(replace(node, input=join))
    assert over is not None
    return over


@pytest.mark.parametrize(
    ("sql", "names", "type_"),
    [
        ("l.i * r.i", ("l.i", "r.i"), INT),
        ("r.b * l.i", ("r.b", "l.i"), BIGINT),
        ("l.x * r.i", ("l.x", "r.i"), DOUBLE),
        ("l.m * r.m", ("l.m", "r.m"), decimal(21, 4)),
        ("l.m * (1 - r.m)", ("l.m", "r.m"), decimal(22, 4)),
        ("coalesce(l.i, 7) * r.i", ("l.i", "r.i"), INT),
    ],
)
def test_a_product_of_both_sides_has_factors(sql: str, names: tuple[str, ...], type_: DataType) -> None:
    made = call("SUM", text(sql, *names, type_=type_))
    over = over_of(made) if "1 -" not in sql else over_of(made, m=decimal(9, 2))
    factors = factors_of(made, over)
    assert factors is not None
    assert [factor.side for factor in factors] == [Side.LEFT if name[0] == "l" else Side.RIGHT for name in names]
    for sides in (BOTH, LEFT, RIGHT):
        placement = placement_of(made, over, sides)
        assert placement.factors == factors
        assert multiplying_sides(placement, over, sides) == ()
        assert carried_columns(Side.LEFT, over, sides) == ("l.t",)
        assert refusal_of(over, sides) is None


@pytest.mark.parametrize(
    ("made", "types"),
    [
        (call("SUM", text("l.i * l.b", "l.i", "l.b", type_=BIGINT)), {}),
        (call("SUM", text("l.i * 2", "l.i", type_=INT)), {}),
        (call("SUM", text("l.i + r.i", "l.i", "r.i", type_=INT)), {}),
        (call("SUM", text("l.i * r.i * l.i", "l.i", "r.i", "l.i", type_=INT)), {}),
        (call("SUM", text("l.i * r.i", "l.i", "r.i", type_=INT), distinct=True), {}),
        (call("AVG", text("l.i * r.i", "l.i", "r.i", type_=INT)), {}),
        (call("SUM", text("l.i * r.i", "l.i", "r.i", type_=None)), {}),
        (call("SUM", text("l.t * r.i", "l.t", "r.i", type_=BIGINT)), {}),
        # Rounded row by row.
        (call("SUM", text("l.x * r.x", "l.x", "r.x", type_=FLOAT)), {"x": FLOAT}),
        # Too many digits, and too many behind the point.
        (call("SUM", text("l.m * r.m", "l.m", "r.m", type_=decimal(27, 4))), {"m": decimal(13, 2)}),
        (call("SUM", text("l.m * r.m", "l.m", "r.m", type_=decimal(17, 8))), {"m": decimal(8, 4)}),
        (call("SUM", text("l.b * r.m", "l.b", "r.m", type_=decimal(31, 2))), {}),
    ],
)
def test_anything_else_has_none(made: Call, types: dict[str, DataType]) -> None:
    over = over_of(made, JoinKind.INNER, **types)
    assert factors_of(made, over) is None
    assert placement_of(made, over, BOTH).factors is None


@pytest.mark.parametrize(
    ("sql", "kind", "sides"),
    [
        # May fail of rows that the join leaves out.
        ("(10 / l.i) * r.x", JoinKind.INNER, BOTH),
        ("(l.i + 1) * r.i", JoinKind.INNER, BOTH),
        # May fail where the FILTER is false.
        ("(10 / l.i) * r.x", JoinKind.INNER, RIGHT),
        # Not NULL where the row is missing.
        ("l.i * coalesce(r.i, 7)", JoinKind.LEFT, BOTH),
    ],
)
def test_a_factor_that_cannot_be_computed_below_is_carried(sql: str, kind: JoinKind, sides: frozenset[Side]) -> None:
    names = tuple(name for name in TYPES if f"l.{name}" in sql or f"r.{name}" in sql)
    used = tuple(f"{side}.{name}" for side in "lr" for name in names if f"{side}.{name}" in sql)
    made = call("SUM", text(sql, *used, type_=DOUBLE))
    over = over_of(made, kind)
    assert placement_of(made, over, sides).factors is None


def test_a_factor_of_a_missing_row_is_null_where_its_side_is_left_alone() -> None:
    made = call("SUM", text("l.i * coalesce(r.i, 7)", "l.i", "r.i", type_=INT))
    over = over_of(made, JoinKind.LEFT)
    expected = (Factor(Side.LEFT, col("l.i")), Factor(Side.RIGHT, text("coalesce(r.i, 7)", "r.i", type_=INT)))
    assert placement_of(made, over, LEFT).factors == expected


def parts(name: str, type_: DataType, total: DataType) -> Parts:
    low, high, sum_, scaled = (column(f"{name}{part}", made) for part, made in zip("lhts", [type_] * 4, strict=True))
    return Parts(low, high, replace(sum_, type=total), scaled)


def test_integers_are_multiplied_after_their_extremes() -> None:
    rows, made = summed_product(parts("a", INT, decimal(20, 0)), parts("b", BIGINT, decimal(32, 0)), BIGINT)
    corners = "al * bl, al * bh, ah * bl, ah * bh"
    assert str(rows) == f"if(greatest({corners}) >= al * bl, at * bt, NULL)"
    assert made == rows.type == decimal(38, 0)


def test_decimals_cannot_overflow_and_need_no_extremes() -> None:
    rows, made = summed_product(
        parts("a", decimal(10, 2), decimal(20, 2)), parts("b", decimal(10, 2), decimal(20, 2)), decimal(21, 4)
    )
    assert (str(rows), made) == ("at * bt", decimal(38, 4))


def test_a_side_left_alone_has_one_value() -> None:
    value = col("r.i")
    rows, _ = summed_product(parts("a", INT, decimal(20, 0)), Parts(value, value, as_addend(value)), INT)
    expected = "if(greatest(al * r.i, ah * r.i) >= al * r.i, at * CAST(r.i AS DECIMAL(20,0)), NULL)"
    assert str(rows) == expected
    assert as_addend(col("r.m")) == col("r.m")


SPECIAL = st.sampled_from([0.0, -0.0, 1.5, -2.25, 1e200, -1e200, math.inf, -math.inf, math.nan])
FEW = st.lists(SPECIAL, min_size=1, max_size=4)


@given(left=FEW, right=FEW)
def test_the_extremes_show_what_is_not_finite(left: list[float], right: list[float]) -> None:
    """The reasoning of the module, by itself: of all products, those of the extremes decide whether and which way the
    sum is not finite. NaN is the largest, as in Spark.
    """

    def extremes(values: list[float]) -> tuple[float, float]:
        ordered = sorted(values, key=lambda value: (math.isnan(value), value if not math.isnan(value) else 0.0))
        return ordered[0], ordered[-1]

    four = sum(one * other * 0.25 for one, other in product(extremes(left), extremes(right)))
    every = [one * other for one, other in product(left, right)]
    if all(math.isfinite(value) for value in every):
        assert math.isfinite(four)
    else:
        whole = sum(every)
        assert (math.isnan(four) and math.isnan(whole)) or four == whole
