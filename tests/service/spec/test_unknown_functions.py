"""Functions that are not taken: what is told in place of a bare refusal."""

from __future__ import annotations

import pytest

from service.spec import unknown_functions
from service.spec.dialect import Text
from service.spec.errors import SpecError
from service.spec.functions import FUNCTIONS
from service.spec.parsing import read_expression
from service.spec.sql_aggregates import function_named
from service.spec.unknown_functions import unknown_function, wrong_arity


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rank", "is a window function, and there is no OVER here"),
        ("explode", "makes several rows of one"),
        ("array_contains", "Keep their parts in columns of their own"),
        ("get_json_object", "Keep their parts in columns of their own"),
        ("uuid", "another value each time"),
        ("iif", "Write if(condition, x, y)."),
        ("group_concat", "Write LISTAGG(x, ',') WITHIN GROUP (ORDER BY t)"),
        ("max_by", "Write LAST_VALUE(x ORDER BY t)."),
        ("corr", "there are COUNT, SUM, AVG"),
        ("window", "GROUP BY date_trunc('hour', t)"),
        ("hop_rowtime", "TUMBLE_END or HOP_END"),
        ("reflect", "There is no function reflect here."),
    ],
)
def test_the_form_that_works_is_told(name: str, words: str) -> None:
    detail, suggestions = unknown_function(name)
    assert words in detail
    assert suggestions == ()


def test_else_the_nearest_names_are() -> None:
    assert unknown_function("uppr") == ("There is no function uppr here. Did you mean upper?", ("upper",))


def test_none_of_them_is_taken() -> None:
    named = {*unknown_functions._AGGREGATES, *unknown_functions._SCALARS, *unknown_functions._KIND_OF}
    assert not named & set(FUNCTIONS)
    assert not {name for name in named if function_named(name) is not None}
    listed = sum(len(names.split()) for _, names in unknown_functions._KINDS)
    sizes = [len(unknown_functions._AGGREGATES), len(unknown_functions._SCALARS), listed]
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
def test_what_is_told_to_write_can_be_read(form: str) -> None:
    read_expression(Text(form, "/x"))


@pytest.mark.parametrize(
    ("name", "count", "words"),
    [
        ("upper", 0, "upper takes 1 argument, not 0."),
        ("datediff", 3, "datediff takes 2 arguments, not 3. For other units write (unix_timestamp(b)"),
        ("coalesce", 0, "coalesce takes at least 1 argument, not 0."),
        ("isnull", 2, "Write coalesce(x, 0)."),
    ],
)
def test_how_many_arguments_a_function_takes(name: str, count: int, words: str) -> None:
    assert words in wrong_arity(name, count)
    with pytest.raises(SpecError) as caught:
        read_expression(Text(f"{name}({', '.join('a' * count)})", "/x"))
    assert (caught.value.code, str(caught.value)) == ("unsupported_function", wrong_arity(name, count))
