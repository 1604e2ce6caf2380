"""Where the parts of an aggregate over a join are computed, and the obstacles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.query import JoinKind
from service.sql.joins import Side
from service.sql.types.data_types import INT, DataType, TypeName
from tests.support.joined import call, col, joined, scan, text
from workers.engine.plan.joined_aggregate import JoinedAggregate, joined_aggregate
from workers.engine.plan.nodes import Aggregate, Filter, Named, PlanFunction
from workers.engine.rules.eager.pushdown import Placement, carried_columns, multiplying_sides, placement_of, refusal_of

BOTH, LEFT, RIGHT = frozenset(Side), frozenset({Side.LEFT}), frozenset({Side.RIGHT})
RISKY = text("10 / l.i", "l.i", type_=INT)
FILLED = text("coalesce(r.i, 7)", "r.i", type_=INT)
ON_RIGHT = text("r.i > 0", "r.i")
ABSENT = text("r.i IS NULL", "r.i")


def over_of(node: Aggregate) -> JoinedAggregate:
    over = joined_aggregate(node)
    assert over is not None
    return over


@pytest.mark.parametrize(
    ("made", "kind", "sides", "placement"),
    [
        (call("SUM", col("l.i")), JoinKind.INNER, BOTH, Placement(Side.LEFT)),
        (call("SUM", col("l.i")), JoinKind.INNER, RIGHT, Placement()),
        (call("COUNT"), JoinKind.INNER, BOTH, Placement()),
        (call("COUNT", where=ON_RIGHT), JoinKind.INNER, BOTH, Placement(None, Side.RIGHT)),
        (call("SUM", col("l.i"), where=ON_RIGHT), JoinKind.LEFT, BOTH, Placement(Side.LEFT, Side.RIGHT)),
        (call("SUM", col("l.i"), where=ABSENT), JoinKind.INNER, BOTH, Placement(Side.LEFT, Side.RIGHT)),
        (call("SUM", col("l.i"), where=ABSENT), JoinKind.LEFT, BOTH, Placement(Side.LEFT)),
        (call("SUM", RISKY), JoinKind.INNER, BOTH, Placement()),
        (call("SUM", RISKY, where=ON_RIGHT), JoinKind.INNER, BOTH, Placement()),
        (call("MAX", RISKY, where=ON_RIGHT), JoinKind.INNER, BOTH, Placement(None, Side.RIGHT)),
        (call("SUM", col("l.i"), where=ON_RIGHT), JoinKind.INNER, RIGHT, Placement(None, Side.RIGHT)),
        (call("SUM", FILLED), JoinKind.INNER, BOTH, Placement(Side.RIGHT)),
        (call("SUM", FILLED), JoinKind.LEFT, BOTH, Placement()),
        (call("COUNT", col("l.i"), distinct=True, where=ON_RIGHT), JoinKind.INNER, BOTH, Placement()),
        (call("MAX", col("l.i"), distinct=True), JoinKind.INNER, BOTH, Placement(Side.LEFT)),
        (call("FIRST_VALUE", col("r.i")), JoinKind.LEFT, BOTH, Placement(Side.RIGHT)),
    ],
)
def test_parts_are_placed(made: Any, kind: JoinKind, sides: frozenset[Side], placement: Placement) -> None:
    assert placement_of(made, over_of(joined(made, kind=kind)), sides) == placement


def test_the_other_sides_rows_weigh() -> None:
    over = over_of(joined(call("COUNT")))
    assert multiplying_sides(Placement(), over, BOTH) == (Side.LEFT, Side.RIGHT)
    assert multiplying_sides(Placement(Side.LEFT), over, BOTH) == (Side.RIGHT,)
    assert multiplying_sides(Placement(Side.LEFT), over, LEFT) == ()
    semi = over_of(joined(call("COUNT"), kind=JoinKind.LEFT_SEMI))
    assert multiplying_sides(Placement(), semi, BOTH) == (Side.LEFT,)


def test_what_is_needed_above_is_carried() -> None:
    node = joined(
        call("COUNT", col("l.d"), distinct=True),
        call("SUM", RISKY),
        call("MAX", col("r.x")),
        by=("l.t", "r.t"),
        residual=text("l.b > r.b", "l.b", "r.b"),
    )
    over = over_of(replace(node, input=Filter(node.input, text("l.m > r.m", "l.m", "r.m"))))
    assert carried_columns(Side.LEFT, over, BOTH) == ("l.t", "l.m", "l.b", "l.d", "l.i")
    assert carried_columns(Side.RIGHT, over, BOTH) == ("r.t", "r.m", "r.b")


def test_what_can_be_done_is_not_refused() -> None:
    calls = [call("COUNT"), call("SUM", col("l.b")), call("AVG", col("r.m")), call("LAST_VALUE", col("l.t"))]
    over = over_of(joined(*calls, by=("l.x", "r.t")))
    assert [refusal_of(over, sides) for sides in (BOTH, LEFT, RIGHT)] == [None, None, None]


@pytest.mark.parametrize(
    ("node", "sides", "words"),
    [
        (joined(call("SUM", col("l.w"))), LEFT, "SUM(l.w) is over DECIMAL(30,2): parts of the sum could need more"),
        (joined(call("SUM", col("l.y"))), BOTH, "its product with a count would lose digits"),
        (joined(call("AVG", col("l.w"))), LEFT, "would be rounded twice"),
        (joined(call("SUM", col("l.t"))), LEFT, "is over STRING, which cannot be summed in parts"),
        (joined(call("SUM", text("l.i", type_=None))), LEFT, "has an argument whose type is not known"),
        (
            joined(replace(call("COUNT", col("l.i")), function=PlanFunction.BIT_OR)),
            LEFT,
            "cannot be computed from rows that represent several rows",
        ),
        (
            joined(call("COUNT"), on=("x",), residual=text("l.x > r.i", "l.x", "r.i")),
            LEFT,
            "distinguish -0.0 from 0.0 in l.x",
        ),
    ],
)
def test_what_is_not_exact_is_refused(node: Aggregate, sides: frozenset[Side], words: str) -> None:
    assert words in str(refusal_of(over_of(node), sides))


def test_a_side_that_is_left_alone_refuses_nothing() -> None:
    over = over_of(joined(call("SUM", col("l.y")), call("MIN", col("l.w"))))
    assert refusal_of(over, LEFT) is None
    assert refusal_of(over_of(joined(call("COUNT", col("r.t"), distinct=True))), BOTH) is None


def test_nested_columns_are_not_grouped_by() -> None:
    nested = DataType(TypeName.OTHER, text="MAP<STRING,INT>")
    node = joined(call("COUNT"))
    over = over_of(replace(node, keys=(Named(replace(col("l.t"), type=nested), "g"),)))
    left = scan("l")
    columns = tuple((replace(made, type=nested) if made.name == "l.t" else made, name) for made, name in left.columns)
    over = replace(over, join=replace(over.join, left=replace(left, columns=columns)))
    assert "l.t is needed above the join" in str(refusal_of(over, LEFT))
    key = ((replace(col("l.k"), type=nested), col("r.k")),)
    assert "The join key l.k" in str(refusal_of(replace(over, join=replace(over.join, keys=key)), LEFT))
