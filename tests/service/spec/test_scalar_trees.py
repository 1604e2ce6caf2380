"""Scalars read back into trees."""

from __future__ import annotations

import pytest

from service.spec.scalar import Scalar, column
from service.spec.scalar_trees import columns_by_name, conjuncts_of, scalar_from, tree_of, type_in
from service.spec.tree import Column, Null
from service.spec.types import BOOLEAN, INT, STRING, Field

COLUMNS = columns_by_name((Field("o.a", INT), Field("o.s", STRING)))


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("`o.a` > 1 AND `o.s` = 'ä\\'x\\u0024y'", ("o.a", "o.s")),
        ("CASE WHEN `o.a` IS NULL THEN -1 ELSE `o.a` % 3 END", ("o.a",)),
        ("upper(`o.s`) LIKE 'A%'", ("o.s",)),
        ("CAST('2020-01-01' AS DATE)", ()),
    ],
)
def test_a_text_reads_back_as_itself(text: str, columns: tuple[str, ...]) -> None:
    tree = tree_of(Scalar(text, columns, None), COLUMNS)
    assert tree is not None
    made = scalar_from(tree)
    assert made is not None
    assert (made.sql, made.columns) == (text, columns)


@pytest.mark.parametrize(
    ("text", "columns"), [("shiftright(`o.a`, 2)", ("o.a",)), ("`o.z` + 1", ("o.z",)), ("`o.a` +", ("o.a",))]
)
def test_what_cannot_be_read_has_no_tree(text: str, columns: tuple[str, ...]) -> None:
    scalar = Scalar(text, columns, None)
    assert tree_of(scalar, COLUMNS) is None
    assert conjuncts_of(scalar, COLUMNS) == (scalar,)


def test_names_stand_for_what_they_are_given() -> None:
    tree = tree_of(Scalar("`x` + 1", ("x",), INT), {"x": Column("o.a", INT)})
    assert tree is not None
    assert str(scalar_from(tree)) == "o.a + 1"
    assert tree_of(column("x", INT), {"x": Null()}) == Null()


def test_a_conjunction_falls_apart_and_nothing_else_does() -> None:
    both = Scalar("`o.a` > 1 AND (`o.s` = 'x' OR `o.a` = 2)", ("o.a", "o.s"), BOOLEAN)
    assert [str(term) for term in conjuncts_of(both, COLUMNS)] == ["o.a > 1", "o.s = 'x' OR o.a = 2"]
    either = Scalar("`o.a` > 1 OR `o.a` = 0", ("o.a",), BOOLEAN)
    assert conjuncts_of(either, COLUMNS) == (either,)


def test_types_are_those_of_the_columns() -> None:
    tree = tree_of(Scalar("`o.a` + 1", ("o.a",), None), COLUMNS)
    assert tree is not None
    assert type_in(tree) == INT
