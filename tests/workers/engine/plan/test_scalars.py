"""Expressions that are composed of expressions."""

from __future__ import annotations

import pytest

from service.sql.expressions.nodes import Connective
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BOOLEAN
from tests.support.scalars import scalar
from workers.engine.plan.expressions import compose, conjunction, fresh_name

A, B = column("t.a", BIGINT), column("t.b", BIGINT)


def test_columns_are_listed_once_in_order_of_appearance() -> None:
    assert compose("{1} + {0} + {1}", (A, B), BIGINT).columns == ("t.b", "t.a")


def test_braces_in_an_operand_are_left_alone() -> None:
    literal = scalar("concat(`t.a`, '{0}')", None)
    assert compose("upper({0})", (literal,), None).sql == "upper(concat(`t.a`, '{0}'))"


def test_a_conjunction_keeps_both_sides_whole() -> None:
    either = scalar("`t.a` = 1 OR `t.b` = 1", BOOLEAN)
    assert str(conjunction(either, column("t.c", BOOLEAN))) == "(t.a = 1 OR t.b = 1) AND t.c"
    assert conjunction(None, either) is either


def test_a_conjunction_is_one_node() -> None:
    a, b, c = (column(f"t.{name}", BOOLEAN) for name in "abc")
    assert conjunction(conjunction(a, b), c).tree == Connective("AND", (a.tree, b.tree, c.tree))


@pytest.mark.parametrize(
    ("template", "sql"),
    [
        ("shiftleft({0}, 6) | CAST({1} - 1 AS BIGINT)", "shiftleft(`t.a`, 6) | CAST(`t.b` - 1 AS BIGINT)"),
        ("({0} & 63L) + 1", "(`t.a` & 63L) + 1"),
        ("{0} * 0.25D + 10BD", "`t.a` * 0.25D + 10BD"),
        ("({0}) * ({1})", "`t.a` * `t.b`"),
        ("{0}.`start`", "`t.a`.`start`"),
        ("({0}) IS NOT NULL", "`t.a` IS NOT NULL"),
        ("NOT ({0} <=> {1})", "NOT `t.a` <=> `t.b`"),
        ("COALESCE(element_at(array({0}, {1}), 1), 0L)", "coalesce(element_at(array(`t.a`, `t.b`), 1), 0L)"),
    ],
)
def test_templates_have_what_rules_write(template: str, sql: str) -> None:
    assert compose(template, (A, B), None).sql == sql


def test_operands_keep_their_parentheses() -> None:
    added = compose("{0} + {1}", (A, B), BIGINT)
    assert compose("{0} * {1}", (added, added), BIGINT).sql == "(`t.a` + `t.b`) * (`t.a` + `t.b`)"


def test_a_fresh_name_differs_from_taken_ones_whatever_the_case() -> None:
    assert fresh_name("$p0", frozenset()) == "$p0"
    assert fresh_name("$p0", frozenset({"$P0", "$p0_"})) == "$p0__"
