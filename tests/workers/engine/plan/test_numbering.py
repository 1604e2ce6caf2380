"""Ids of nodes: unique, and kept by the nodes that stay in the plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.options import JoinSkew
from service.contract.query import JoinKind
from service.sql.types.data_types import BIGINT, Field
from workers.engine.plan.nodes import Join, JoinStrategy, Limit, Scan, Union
from workers.engine.plan.traversal import NodeIds, id_of, walk_up, with_ids

A = Scan("a", "a", ((Field("a.x", BIGINT), "x"),))
JOIN = Join(A, A, JoinKind.CROSS, ())
PLAN = Limit(JOIN, 3)


def test_each_place_of_a_shared_node_has_an_id_of_its_own() -> None:
    assert [node.id for node in walk_up(with_ids(PLAN))] == [0, 1, 2, 3]


def test_a_plan_with_ids_keeps_them() -> None:
    plan = with_ids(PLAN)
    assert with_ids(plan) is plan


def test_a_changed_copy_keeps_its_id_and_copies_of_it_get_new_ones() -> None:
    join = with_ids(JOIN)
    assert isinstance(join, Join)
    ids = NodeIds.after(join)
    made = ids.number(Union((replace(join, strategy=JoinStrategy(skew=JoinSkew.NONE)), join)), join)
    assert [node.id for node in walk_up(made)] == [0, 1, 2, 3, 4, 5, 6]
    # The rule changed the join of the first branch and made the union. The second branch is a copy of what was there.
    assert ids.new == {2, 6}
    assert ids.copies == {3: 0, 4: 1, 5: 2}


def test_a_node_over_another_input_is_not_new() -> None:
    plan = with_ids(PLAN)
    assert isinstance(plan, Limit)
    assert isinstance(plan.input, Join)
    ids = NodeIds.after(plan)
    ids.number(replace(plan, input=replace(plan.input, kind=JoinKind.INNER)), plan)
    assert ids.new == {id_of(plan.input)}
    ids.number(replace(plan, input=plan.input.left), plan)
    assert ids.new == set()
    ids.number(replace(plan, count=4), plan)
    assert ids.new == {id_of(plan)}


def test_ids_take_no_part_in_comparisons() -> None:
    assert with_ids(PLAN) == PLAN
    assert hash(with_ids(PLAN)) == hash(PLAN)


def test_a_plan_without_ids_has_none() -> None:
    with pytest.raises(ValueError, match="Scan has no id"):
        id_of(A)
