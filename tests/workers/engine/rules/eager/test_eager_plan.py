"""The plan that aggregates sides of a join before the join."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from service.sql.joins import Side
from service.sql.types.data_types import INT
from tests.support.joined import call, col, joined, scan, text
from tests.support.plan_parts import lines_of
from workers.engine.plan.explain import line_of, text_of
from workers.engine.plan.joined_aggregate import joined_aggregate
from workers.engine.plan.nodes import Aggregate, Filter, Join, Node, output_of
from workers.engine.plan.traversal import walk_up
from workers.engine.plan.validation import check
from workers.engine.rules.eager.rewrite import aggregate_below, group_columns, has_one_row_a_group, pushed_over_joins

BOTH, LEFT, RIGHT = frozenset(Side), frozenset({Side.LEFT}), frozenset({Side.RIGHT})


def eager(node: Aggregate, sides: frozenset[Side]) -> Node:
    over = joined_aggregate(node)
    assert over is not None
    after = aggregate_below(node, over, sides)
    check(after, "the test", output_of(node))
    return after


def test_a_side_is_grouped_by_its_keys_and_what_it_carries() -> None:
    assert lines_of(eager(joined(call("SUM", col("l.i")), by=("l.t", "r.t")), LEFT)) == [
        "Aggregate BY l.k, l.t [SUM(l.i) AS $l0]",
        "Join INNER ON l.k = r.k",
        "Aggregate BY l.t AS l_t, r.t AS r_t [SUM($l0) AS $f0]",
        "Project l_t, r_t, $f0 AS sum_l.i",
    ]


def test_a_side_that_only_decides_is_made_distinct() -> None:
    node = joined(call("MIN", col("l.i")), kind=JoinKind.LEFT_ANTI, residual=text("l.b > r.b", "l.b", "r.b"))
    assert lines_of(eager(node, BOTH))[:3] == [
        "Aggregate BY l.k, l.t, l.b [MIN(l.i) AS $l0]",
        "Aggregate BY r.k, r.b []",
        "Join LEFT_ANTI ON l.k = r.k AND l.b > r.b",
    ]


def test_keys_that_are_expressions_get_names() -> None:
    node = joined(call("COUNT"))
    assert isinstance(node.input, Join)
    key = (text("l.i % 3", "l.i", type_=INT), text("r.i % 3", "r.i", type_=INT))
    after = lines_of(eager(replace(node, input=replace(node.input, keys=(key,))), LEFT))
    assert after[:2] == ["Aggregate BY l.i % 3 AS $kl0, l.t [COUNT(*) AS $l0]", "Join INNER ON $kl0 = r.i % 3"]


def test_what_stays_above_the_join_is_checked_there() -> None:
    node = joined(call("COUNT"), kind=JoinKind.LEFT)
    node = replace(node, input=Filter(node.input, text("r.i IS NULL", "r.i")))
    assert lines_of(eager(node, BOTH))[1:4] == [
        "Aggregate BY r.k, r.i [COUNT(*) AS $r0]",
        "Join LEFT ON l.k = r.k",
        "Filter r.i IS NULL",
    ]


def test_groups_that_are_the_joins_keys_need_no_final_aggregate() -> None:
    where = text("r.i > 0", "r.i")
    after = eager(joined(call("COUNT"), call("MIN", col("l.t"), where=where), by=("l.k",)), BOTH)
    assert [type(part).__name__ for part in walk_up(after)].count("Aggregate") == 2
    assert "Project l.k AS l_k, $l0 * $r0 AS $f0, if($r1 > 0L, $l1, NULL) AS $f1" in lines_of(after)


@pytest.mark.parametrize(
    ("kind", "by", "one"),
    [
        (JoinKind.INNER, ("l.k", "r.t"), True),
        (JoinKind.INNER, ("l.k", "l.t"), True),
        (JoinKind.INNER, ("r.k", "l.t", "r.t"), True),
        (JoinKind.INNER, ("l.k",), False),
        (JoinKind.LEFT, ("l.k", "l.t"), True),
        (JoinKind.LEFT, ("r.k", "r.t"), False),
        (JoinKind.RIGHT, ("r.k", "r.t"), True),
        (JoinKind.LEFT_SEMI, ("l.k", "l.t"), False),
        (JoinKind.INNER, ("l.k", "l.t", "l.d"), False),
    ],
)
def test_when_there_is_one_row_a_group(kind: JoinKind, by: tuple[str, ...], one: bool) -> None:
    over = joined_aggregate(joined(call("COUNT"), kind=kind, by=by, on=("k", "t")))
    assert over is not None
    assert has_one_row_a_group(over, BOTH) is one
    assert not has_one_row_a_group(over, LEFT)


def test_keys_of_two_types_may_have_several_partners() -> None:
    node = joined(call("COUNT"), by=("l.k",))
    over = joined_aggregate(node)
    assert over is not None
    mixed = replace(over, join=replace(over.join, keys=((col("l.k"), col("r.t")),)))
    assert not has_one_row_a_group(mixed, BOTH)


def test_distinct_values_of_the_key_need_the_final_aggregate() -> None:
    after = eager(joined(call("COUNT", col("l.k"), distinct=True), by=("l.k",)), BOTH)
    assert "Aggregate BY l.k AS l_k [COUNT(DISTINCT l.k) AS $f0]" in lines_of(after)


def test_group_columns_have_the_key_once() -> None:
    over = joined_aggregate(joined(call("COUNT", col("l.k"), distinct=True), by=("l.k", "l.t")))
    assert over is not None
    assert [str(scalar) for scalar in group_columns(over, Side.LEFT, BOTH)] == ["l.k", "l.t"]


def test_names_of_the_callers_columns_are_left_alone() -> None:
    made = call("COUNT")
    made = replace(made, output=replace(made.output, name="$L0"))
    after = eager(joined(made), LEFT)
    assert "$l0_" in text_of(after)
    assert output_of(after)[-1] == made.output
    assert scan("l") in set(walk_up(after))


def test_aggregates_that_are_pushed_over_joins_are_found() -> None:
    lower = joined(call("COUNT")).input
    chain = Join(scan("v"), Filter(lower, text("l.i > 0", "l.i")), JoinKind.LEFT, ((col("v.i"), col("l.i")),))
    node = Aggregate(chain, joined(call("COUNT")).keys, (call("COUNT"), call("MAX", col("v.t"))))
    found = pushed_over_joins(node, eager(node, BOTH))
    assert [line_of(part) for part in found] == ["Aggregate BY l.i, l.t [COUNT(*) AS $r0]"]
    assert pushed_over_joins(node, eager(node, LEFT)) == ()
    # One that stood there before is none of the rewrite's.
    made = eager(node, BOTH)
    (side,) = pushed_over_joins(node, made)
    assert pushed_over_joins(Aggregate(side, (), ()), made) == ()
