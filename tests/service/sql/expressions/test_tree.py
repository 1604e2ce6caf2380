"""Expression trees as values."""

from __future__ import annotations

import pytest

from service.sql.expressions.nodes import (
    Call,
    Column,
    Name,
    String,
    children,
    columns_of,
    map_children,
    position_of,
    walk,
)
from service.sql.expressions.reader import read_expression
from service.sql.parser import Text
from service.sql.types.data_types import INT

TEXTS = [
    "a + b",
    "NOT a = b AND c IS NULL OR d",
    "a IN (b, 1)",
    "a BETWEEN b AND c",
    "a LIKE b",
    "CASE a WHEN b THEN c ELSE d END",
    "CASE WHEN a THEN b END",
    "CAST(a AS INT)",
    "-a",
    "coalesce(a, b)",
    "EXTRACT(YEAR FROM a)",
    "a + INTERVAL '1' DAY",
]


@pytest.mark.parametrize("text", TEXTS)
def test_an_unchanged_copy_is_equal(text: str) -> None:
    tree = read_expression(Text(text, "/x"))
    assert map_children(tree, lambda child: child) == tree
    assert hash(tree) == hash(map_children(tree, lambda child: child))


@pytest.mark.parametrize("text", TEXTS)
def test_every_name_is_walked_in_order(text: str) -> None:
    tree = read_expression(Text(text, "/x"))
    names = [part.name for part in walk(tree) if isinstance(part, Name)]
    assert names == sorted(names)
    assert names


def test_positions_do_not_count_in_comparisons() -> None:
    assert Name("t", "a", 3) == Name("t", "a", 9)
    assert Call("upper", (Name(None, "a", 1),), 0) == Call("upper", (Name(None, "a", 7),), 6)


def test_parts_positions_and_columns() -> None:
    tree = Call("concat", (String("x"), Column("t.b", INT, 5), Column("t.a", INT), Column("t.b", INT)), None)
    assert len(children(tree)) == 4
    assert columns_of(tree) == ("t.b", "t.a")
    assert position_of(tree) == 5
    assert position_of(String("x")) is None
