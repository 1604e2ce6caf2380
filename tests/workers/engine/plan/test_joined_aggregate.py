"""An aggregate over a join, in terms of the join's columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from service.sql.expressions.scalar import column
from service.sql.joins import Side
from service.sql.types.data_types import INT
from tests.support.joined import call, col, joined, scan, text
from workers.engine.plan.explain import text_of
from workers.engine.plan.expressions import all_of, is_not_null
from workers.engine.plan.joined_aggregate import is_over_join, joined_aggregate
from workers.engine.plan.nodes import Filter, Limit, Named, Project

LEFT_ONLY, RIGHT_ONLY = text("l.i > 0", "l.i"), text("r.i > 0", "r.i")
MIXED = text("l.i > r.i", "l.i", "r.i")
ALL = text("l.i > 0 AND r.i > 0 AND l.i > r.i", "l.i", "r.i")


def test_what_is_not_over_a_join_is_not_its_business() -> None:
    node = joined(call("COUNT"))
    assert is_over_join(node)
    for other in (replace(node, input=scan("l")), replace(node, input=Limit(node.input, 1))):
        assert not is_over_join(other)
        assert joined_aggregate(other) is None


@pytest.mark.parametrize(
    ("kind", "below_left", "below_right", "above"),
    [
        (JoinKind.INNER, ["l.i > 0"], ["r.i > 0"], ["l.i > r.i"]),
        (JoinKind.LEFT, ["l.i > 0"], [], ["r.i > 0", "l.i > r.i"]),
        (JoinKind.RIGHT, [], ["r.i > 0"], ["l.i > 0", "l.i > r.i"]),
        (JoinKind.FULL, [], [], ["l.i > 0", "r.i > 0", "l.i > r.i"]),
    ],
)
def test_conditions_above_go_where_they_change_nothing(
    kind: JoinKind, below_left: list[str], below_right: list[str], above: list[str]
) -> None:
    node = joined(call("COUNT"), kind=kind)
    over = joined_aggregate(replace(node, input=Filter(node.input, ALL)))
    assert over is not None
    assert [str(term) for term in over.conditions] == above
    for side, terms in ((Side.LEFT, below_left), (Side.RIGHT, below_right)):
        made = over.input(side)
        assert ([str(made.condition)] if isinstance(made, Filter) else []) == terms


@pytest.mark.parametrize(
    ("kind", "below_left", "below_right"),
    [
        (JoinKind.INNER, True, True),
        (JoinKind.LEFT, False, True),
        (JoinKind.RIGHT, True, False),
        (JoinKind.LEFT_SEMI, True, True),
        (JoinKind.LEFT_ANTI, False, True),
    ],
)
def test_conditions_in_the_join_too(kind: JoinKind, below_left: bool, below_right: bool) -> None:
    over = joined_aggregate(joined(call("COUNT"), kind=kind, residual=ALL))
    assert over is not None
    assert isinstance(over.join.left, Filter) is below_left
    assert isinstance(over.join.right, Filter) is below_right
    assert "l.i > r.i" in str(over.join.residual)


def test_projections_are_seen_through() -> None:
    node = joined(call("COUNT"))
    items = (Named(text("l.i % 3", "l.i", type_=INT), "a"), Named(col("r.k"), "b"))
    between = Filter(Project(node.input, items), text("a > 0", "a"))
    made = call("SUM", text("a * 2", "a", type_=INT), where=text("b > 1", "b"))
    over = joined_aggregate(replace(node, input=between, keys=(Named(column("a", INT), "g"),), calls=(made,)))
    assert over is not None
    assert text_of(over.join.left).splitlines()[0] == "Filter l.i % 3 > 0"
    assert [str(key.expression) for key in over.keys] == ["l.i % 3"]
    assert [str(argument) for argument in over.calls[0].arguments] == ["l.i % 3 * 2"]
    assert str(over.calls[0].filter) == "r.k > 1"
    assert over.calls[0].output == made.output


def test_what_cannot_be_read_is_left_alone() -> None:
    node = joined(call("COUNT"))
    items = (Named(text("bitmap_count(l.i)", "l.i", type_=INT), "a"),)
    over = replace(node, input=Project(node.input, items), keys=(Named(column("a", INT), "g"),))
    assert is_over_join(over)
    assert joined_aggregate(over) is None


def test_sides_of_expressions() -> None:
    over = joined_aggregate(joined(call("COUNT"), kind=JoinKind.LEFT))
    assert over is not None
    assert (over.side_of(LEFT_ONLY), over.side_of(RIGHT_ONLY)) == (Side.LEFT, Side.RIGHT)
    assert over.side_of(MIXED) is over.side_of(text("1 > 0")) is None
    assert (over.null_extended(Side.LEFT), over.null_extended(Side.RIGHT)) == (False, True)
    assert over.key(Side.RIGHT) == (col("r.k"),)


def test_only_a_side_that_is_emitted_multiplies() -> None:
    semi = joined_aggregate(joined(call("COUNT"), kind=JoinKind.LEFT_SEMI))
    assert semi is not None
    assert (semi.multiplies(Side.LEFT), semi.multiplies(Side.RIGHT)) == (True, False)


def test_conjunctions_of_what_is_there() -> None:
    assert all_of((None, None)) is None
    assert str(all_of((LEFT_ONLY, None, RIGHT_ONLY))) == "l.i > 0 AND r.i > 0"
    assert str(is_not_null((col("l.i"), col("l.k")))) == "l.i IS NOT NULL AND l.k IS NOT NULL"
    assert is_not_null(()) is None
