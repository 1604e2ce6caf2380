"""Names: which column each means, and what is told where there is none or more than one."""

from __future__ import annotations

import pytest

from service.spec.dialect import Text
from service.spec.errors import SpecError
from service.spec.expressions import compile_expression
from service.spec.scope import TableScope, matching
from service.spec.tree import Name
from service.spec.types import BIGINT, INT, STRING, UNKNOWN, DataType, Field, Schema, TypeName

NESTED = DataType(TypeName.OTHER, text="STRUCT<x: INT>")
SCOPE = TableScope(
    {
        "o": Schema((Field("uid", BIGINT), Field("category", STRING), Field("Key", INT), Field("s", NESTED))),
        "U": Schema((Field("uid", BIGINT), Field("name", STRING), Field("x", INT), Field("X", INT))),
    }
)


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("o.uid", "o.uid"),
        ("O.UID", "o.uid"),
        ("u.name", "U.name"),
        ("`o`.`category`", "o.category"),
        ("category", "o.category"),
        ("KEY", "o.Key"),
        ("u.x", "U.x"),
        ("u.X", "U.X"),
    ],
)
def test_found(text: str, column: str) -> None:
    assert compile_expression(text, SCOPE, "/x").column == column


@pytest.mark.parametrize(
    ("text", "code", "suggestions"),
    [
        ("uid", "ambiguous_column", ("o.uid", "U.uid")),
        ("o.categry", "unknown_column", ("o.category",)),
        ("nam", "unknown_column", ("name",)),
        ("orders.uid", "unknown_table", ()),
        ("oo.uid", "unknown_table", ("o",)),
        ("`o.uid`", "unknown_column", ("uid",)),
        ("s.x", "unsupported_construct", ()),
        ("s.uid", "unsupported_construct", ()),
    ],
)
def test_not_found(text: str, code: str, suggestions: tuple[str, ...]) -> None:
    with pytest.raises(SpecError) as caught:
        compile_expression(f"1 +\n {text}", SCOPE, "/query/where")
    issue = caught.value.issues[0]
    assert (issue.code, issue.suggestions) == (code, suggestions)
    assert (issue.pointer, issue.line, issue.column) == ("/query/where", 2, 2)


def test_columns_that_differ_in_case_alone_are_ambiguous_in_a_third_spelling() -> None:
    scope = TableScope({"t": Schema((Field("ab", INT), Field("AB", INT)))})
    assert compile_expression("t.AB", scope, "/x").column == "t.AB"
    with pytest.raises(SpecError) as caught:
        compile_expression("t.Ab", scope, "/x")
    assert caught.value.code == "ambiguous_column"


def test_a_semi_joined_table_is_told_from_an_unknown_one() -> None:
    with pytest.raises(SpecError, match="semi or anti join") as caught:
        SCOPE.without("U").find(Name("u", "name"), Text("u.name", "/x"))
    assert caught.value.code == "unknown_table"


def test_an_unknown_type_is_no_type() -> None:
    scope = TableScope({"t": Schema((Field("a", UNKNOWN),))})
    assert compile_expression("a", scope, "/x").type is None
    assert compile_expression("a + 1", scope, "/x").type is None


def test_matching_prefers_the_exact_spelling() -> None:
    assert matching("A", ["a", "A"]) == "A"
    assert matching("B", ["a", "b"]) == "b"
    assert matching("c", ["a", "b"]) is None
