"""Names: which column each means, and what is told where there is none or more than one."""

from __future__ import annotations

import pytest

from service.contract.problems import SpecError
from service.sql.expressions.compile_expression import TableScope, compile_expression, matching
from service.sql.types.data_types import INT, UNKNOWN, Field, Schema


def test_columns_that_differ_in_case_alone_are_ambiguous_in_a_third_spelling() -> None:
    scope = TableScope({"t": Schema((Field("ab", INT), Field("AB", INT)))})
    assert compile_expression("t.AB", scope, "/x").column == "t.AB"
    with pytest.raises(SpecError) as caught:
        compile_expression("t.Ab", scope, "/x")
    assert caught.value.code == "ambiguous_column"


def test_an_unknown_type_is_no_type() -> None:
    scope = TableScope({"t": Schema((Field("a", UNKNOWN),))})
    assert compile_expression("a", scope, "/x").type is None
    assert compile_expression("a + 1", scope, "/x").type is None


def test_matching_prefers_the_exact_spelling() -> None:
    assert matching("A", ["a", "A"]) == "A"
    assert matching("B", ["a", "b"]) == "b"
    assert matching("c", ["a", "b"]) is None
