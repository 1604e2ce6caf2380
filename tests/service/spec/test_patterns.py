"""Where patterns stand in a query, and what is said of those that are not taken."""

from __future__ import annotations

import pytest

from service.spec.errors import SpecError
from service.spec.expressions import compile_expression
from service.spec.scope import TableScope
from service.spec.types import STRING, Field, Schema

SCOPE = TableScope({"t": Schema((Field("s", STRING), Field("p", STRING)))})


def refusal(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        compile_expression(text, SCOPE, "/query/where")
    return caught.value


@pytest.mark.parametrize(
    "text",
    [
        "s RLIKE '^a.b$'",
        "s RLIKE NULL",
        "NOT s RLIKE 'x'",
        "regexp_replace(s, '[0-9]+', '#')",
        "regexp_extract(s, '(a)(b)', 2)",
        "s LIKE '%x%'",
        "s LIKE p",
        "s LIKE concat('%', p, '%')",
        "s ILIKE 'a_%'",
    ],
)
def test_patterns_that_are_taken(text: str) -> None:
    compile_expression(text, SCOPE, "/query/where")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s RLIKE p", "RLIKE with a pattern that is computed cannot be used here"),
        ("s RLIKE concat('(a', '+)+')", "that is computed"),
        ("s RLIKE '(a' '+)+'", "The pattern of RLIKE repeats a group"),
        ("s RLIKE '(a\\u002b)\\053'", "The pattern of RLIKE repeats a group"),
        ("s = 'x' AND NOT (s NOT RLIKE '(a|b)*')", "The pattern of RLIKE repeats a group"),
        ("upper(regexp_replace(s, '(a+)+', '')) = 'X'", "The pattern of regexp_replace repeats a group"),
        ("regexp_replace(s, p, '') = 'X'", "regexp_replace with a pattern that is computed"),
        ("regexp_extract(s, p, 1)", "regexp_extract with a pattern that is computed"),
        ("CASE WHEN s RLIKE '(a+)+' THEN 1 END", "repeats a group"),
        (f"s LIKE '{'%a' * 13}'", "A pattern of LIKE has at most"),
        (f"s NOT ILIKE '{'a' * 1001}'", "A pattern of ILIKE has at most"),
    ],
)
def test_patterns_that_are_not(text: str, said: str) -> None:
    error = refusal(text)
    assert error.code == "unsupported_construct"
    assert said in str(error)
    assert error.issues[0].pointer == "/query/where"
