"""Trees of scalars over the columns of other rows."""

from __future__ import annotations

import pytest

from service.sql.expressions.analysis import columns_by_name, conjuncts_of, scalar_from, tree_of, type_in
from service.sql.expressions.nodes import Column, Null
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BOOLEAN, INT, STRING, Field
from tests.support.scalars import scalar

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
def test_a_tree_is_rendered_as_it_was_read(text: str, columns: tuple[str, ...]) -> None:
    tree = tree_of(scalar(text, None), COLUMNS)
    assert tree is not None
    made = scalar_from(tree)
    assert made is not None
    assert (made.sql, made.columns) == (text, columns)


@pytest.mark.parametrize("text", ["bitmap_count(`o.a`) > 1 AND `o.a` > 0", "`o.z` + 1 > 0 AND `o.a` > 0"])
def test_what_no_query_may_have_has_no_tree(text: str) -> None:
    condition = scalar(text, None)
    assert tree_of(condition, COLUMNS) is None
    assert conjuncts_of(condition, COLUMNS) == (condition,)


def test_names_stand_for_what_they_are_given() -> None:
    tree = tree_of(scalar("`x` + 1", INT), {"x": Column("o.a", INT)})
    assert tree is not None
    assert str(scalar_from(tree)) == "o.a + 1"
    assert tree_of(column("x", INT), {"x": Null()}) == Null()


def test_a_conjunction_falls_apart_and_nothing_else_does() -> None:
    both = scalar("`o.a` > 1 AND (`o.s` = 'x' OR `o.a` = 2)", BOOLEAN)
    assert [str(term) for term in conjuncts_of(both, COLUMNS)] == ["o.a > 1", "o.s = 'x' OR o.a = 2"]
    either = scalar("`o.a` > 1 OR `o.a` = 0", BOOLEAN)
    assert conjuncts_of(either, COLUMNS) == (either,)


def test_types_are_those_of_the_columns() -> None:
    tree = tree_of(scalar("`o.a` + 1", None), COLUMNS)
    assert tree is not None
    assert type_in(tree) == INT
