"""Traversing and rebuilding frozen plans."""

from __future__ import annotations

import pytest

from service.contract.query import JoinKind
from service.sql.types.data_types import BIGINT, Field
from workers.engine.plan.nodes import Join, Limit, Node, Scan, Union
from workers.engine.plan.traversal import transform_up, walk_up, with_inputs

A = Scan("a", "a", ((Field("a.x", BIGINT), "x"),))
B = Scan("b", "b", ((Field("b.x", BIGINT), "x"),))
PLAN = Limit(Join(A, B, JoinKind.CROSS, ()), 3)


def test_walking_meets_inputs_first_left_before_right() -> None:
    assert list(walk_up(PLAN)) == [A, B, PLAN.input, PLAN]


def test_the_same_inputs_leave_the_same_node() -> None:
    assert with_inputs(PLAN.input, (A, B)) is PLAN.input


def test_other_inputs_make_another_node() -> None:
    assert with_inputs(PLAN.input, (B, A)) == Join(B, A, JoinKind.CROSS, ())
    assert with_inputs(PLAN, (A,)) == Limit(A, 3)


def test_the_number_of_inputs_is_checked() -> None:
    with pytest.raises(ValueError, match="Join has 2 inputs, not 1"):
        with_inputs(PLAN.input, (A,))


def test_a_node_over_other_inputs_replaces_the_same_node() -> None:
    parted = Union((PLAN.input, PLAN.input), replaces=PLAN.input)
    assert parted == Union((PLAN.input, PLAN.input))
    assert hash(parted) == hash(Union((PLAN.input, PLAN.input)))
    moved = with_inputs(parted, (B, B))
    assert isinstance(moved, Union)
    assert moved.replaces == PLAN.input


def test_a_rewrite_sees_rewritten_inputs() -> None:
    def limit_scans(node: Node) -> Node:
        return Limit(node, 1) if isinstance(node, Scan) else node

    assert transform_up(PLAN, limit_scans) == Limit(Join(Limit(A, 1), Limit(B, 1), JoinKind.CROSS, ()), 3)
