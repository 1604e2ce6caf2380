"""Expressions: the allow-list, texts that are none, and the advice for functions that are not taken.

What the SQL of a job may hold is in `tests/sql/cases`.
"""

from __future__ import annotations

import pytest

from service.contract.problems import SpecError
from service.sql import refusals
from service.sql.expressions.calls import function_named
from service.sql.expressions.reader import read_expression
from service.sql.parser import Text, parse_expression
from service.sql.types.functions import FUNCTIONS


@pytest.mark.parametrize("text", ["SELECT 1", "DROP TABLE t", "a FROM t", "a AS b", "a, b", "", "  ", "-- only this"])
def test_an_expression_is_not_a_statement(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_expression(Text(text, "/x"))
    assert caught.value.code in {"sql_syntax", "unsupported_construct"}


@pytest.mark.parametrize("text", ["sum(a)", "COUNT(*)", "upper(max(a))"])
def test_an_expression_has_no_aggregate(text: str) -> None:
    with pytest.raises(SpecError, match="The aggregate ") as caught:
        read_expression(Text(text, "/x"))
    assert caught.value.code == "unsupported_construct"


@pytest.mark.parametrize("text", ["a +", "coalesce(a,)", "CASE WHEN a", "CAST(a AS)"])
def test_an_expression_that_is_broken_off_is_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_expression(Text(text, "/query/where"))
    assert (caught.value.code, caught.value.issues[0].column is not None) == ("sql_syntax", True)


@pytest.mark.parametrize("text", ["a, b", "SELECT"])
def test_no_word_of_the_parser_is_in_a_message(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_expression(Text(text, "/query/where"))
    assert not {"Token", "sqlglot", "Expression"} & set(str(caught.value).replace("<", " ").split())


def test_no_function_with_advice_is_taken() -> None:
    named = {*refusals.UNSUPPORTED_AGGREGATES, *refusals.UNSUPPORTED_SCALARS, *refusals.UNSUPPORTED_KINDS}
    assert not named & set(FUNCTIONS)
    assert not {name for name in named if function_named(name) is not None}
    listed = sum(len(names.split()) for _, names in refusals._KINDS)
    sizes = [len(refusals.UNSUPPORTED_AGGREGATES), len(refusals.UNSUPPORTED_SCALARS), listed]
    assert len(named) == sum(sizes)


@pytest.mark.parametrize(
    "form",
    [
        "if(condition, x, y)",
        "split_part(text, ',', 1)",
        "(unix_timestamp(b) - unix_timestamp(a)) DIV 3600",
        "CASE x WHEN 1 THEN 'a' ELSE 'b' END",
        "x RLIKE 'pattern'",
        "x / nullif(y, 0)",
        "date_format(t, 'yyyy-MM-dd')",
        "t + INTERVAL '1' HOUR",
        "EXTRACT(YEAR FROM t)",
        "date_trunc('hour', t)",
        "pmod(xxhash64(k), 100) < 10",
        "position(a, b)",
        "substring(x, 1, 2)",
        "concat(left(x, 2), 'new', substring(x, 5))",
        "btrim(x, ' ')",
        "power(x, n)",
        "x DIV 4",
    ],
)
def test_the_advice_can_be_read(form: str) -> None:
    read_expression(Text(form, "/x"))
