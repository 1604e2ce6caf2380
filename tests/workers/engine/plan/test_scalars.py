"""Expressions made out of expressions."""

from __future__ import annotations

from service.spec.scalar import Scalar, column
from service.spec.types import BIGINT, BOOLEAN
from workers.engine.plan.scalars import compose, conjunction, fresh_name

A, B = column("t.a", BIGINT), column("t.b", BIGINT)


def test_columns_stand_once_in_order_of_appearance() -> None:
    assert compose("{1} + {0} + {1}", (A, B), BIGINT).columns == ("t.a", "t.b")


def test_braces_in_an_operand_are_left_alone() -> None:
    literal = Scalar("concat(`t.a`, '{0}')", ("t.a",), None)
    assert compose("upper({0})", (literal,), None).sql == "upper(concat(`t.a`, '{0}'))"


def test_a_conjunction_keeps_both_sides_whole() -> None:
    either = Scalar("`t.a` = 1 OR `t.b` = 1", ("t.a", "t.b"), BOOLEAN)
    assert str(conjunction(either, column("t.c", BOOLEAN))) == "(t.a = 1 OR t.b = 1) AND (t.c)"
    assert conjunction(None, either) is either


def test_a_fresh_name_differs_from_taken_ones_whatever_the_case() -> None:
    assert fresh_name("$p0", frozenset()) == "$p0"
    assert fresh_name("$p0", frozenset({"$P0", "$p0_"})) == "$p0__"
