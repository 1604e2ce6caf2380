"""Hostile and broken texts: each a SpecError, and soon."""

from __future__ import annotations

import time

import pytest

from service.contract.problems import SpecError
from service.contract.query import NESTING, SQL_CHARACTERS
from service.sql.compile import compile_sql
from service.sql.expressions.compile_expression import TableScope, compile_expression
from service.sql.parser import Text, parse_expression, tokens_of, unescape
from service.sql.types.data_types import BOOLEAN, INT, STRING, Field, Schema

TABLE = Schema((Field("a", INT), Field("ok", BOOLEAN), Field("s", STRING)))
SCOPE = TableScope({"t": TABLE})

HOSTILE = {
    "parentheses": ("(" * 10_000 + "a" + ")" * 10_000, "query_too_deep"),
    "unclosed parentheses": ("(" * 10_000, "query_too_deep"),
    "just too many parentheses": ("(" * 33 + "a" + ")" * 33, "query_too_deep"),
    "a hundred thousand ORs": ("ok OR " * 100_000 + "ok", "query_too_deep"),
    "sums": ("+".join(["a"] * 9_000), "query_too_deep"),
    "deep CASE": ("CASE WHEN " * 3_000 + "ok" + " THEN 1 END" * 3_000, "query_too_deep"),
    "NOT without end": ("NOT " * 5_000 + "ok", "query_too_deep"),
    "minus without end": ("- " * 5_000 + "a", "query_too_deep"),
    "casts without end": ("a" + "::INT" * 3_000, "query_too_deep"),
    "nested types": ("CAST(a AS " + "ARRAY<" * 3_000 + "INT" + ">" * 3_000 + ")", "query_too_deep"),
    "brackets": ("a" + "[" * 5_000, "query_too_deep"),
    "braces": ("{" * 5_000, "query_too_deep"),
    "at signs": ("@" * 5_000 + "a", "query_too_deep"),
    "intervals": ("INTERVAL " * 5_000 + "1 DAY", "query_too_deep"),
    "arrows": ("a->" * 5_000 + "b", "query_too_deep"),
    "dots": ("a." * 10_000 + "b", "query_too_deep"),
    "a literal of a megabyte": ("'" + "x" * 1_000_000 + "'", "query_too_deep"),
    "digits": ("1" * 50_000, "sql_syntax"),
    "comments": ("/*" * 20_000, "sql_syntax"),
    "quotes": ("'" * 9_999, "sql_syntax"),
    "NUL": ("a\x00", "sql_syntax"),
    "escape": ("a\x1b[31m", "sql_syntax"),
    "half a pair": ("'\ud800'", "sql_syntax"),
    "half an escaped pair": (r"'\ud800'", "sql_syntax"),
    "a homoglyph": ("\u0430", "unknown_column"),
    "a wide letter": ("\uff41", "unknown_column"),
    "an infinite number": ("1e99999", "sql_syntax"),
    "a number too precise": ("0." + "0" * 50 + "1", "sql_syntax"),
}


@pytest.mark.not_quick
@pytest.mark.withstands(
    "SQL that is too deep or too long",
    kind="attack",
    how="10,000 nested parentheses, CASE, NOT, casts, brackets and others, 100,000 ORs, literals of a megabyte, "
    "unterminated comments and quotes",
    times=58,
    guaranteed="it is refused with an error code in bounded time: length, tokens and depth are limited before parsing",
)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_in_time(name: str) -> None:
    text, code = HOSTILE[name]
    for compiled in (
        lambda: compile_expression(text, SCOPE, "/x"),
        lambda: compile_sql(f"SELECT {text} FROM t", {"t": TABLE}),
    ):
        started = time.monotonic()
        with pytest.raises(SpecError) as caught:
            compiled()
        # Generous, for a machine under load: it takes well under a second.
        assert time.monotonic() - started < 5
        assert caught.value.code == code
        assert len(str(caught.value)) < 1_000


@pytest.mark.parametrize(
    "text",
    [
        "(" * NESTING.most + "a" + ")" * NESTING.most,
        "UPPER(" * 31 + "s" + ")" * 31,
        " OR ".join(["ok"] * 5_000),
        " AND ".join(["(ok OR a = 1)"] * 1_000),
        f"a IN ({', '.join(map(str, range(5_000)))})",
        "CASE WHEN " * 20 + "ok" + " THEN TRUE END" * 20,
    ],
    ids=["parentheses", "calls", "or", "and", "in", "case"],
)
def test_large_but_sane_text_passes(text: str) -> None:
    assert compile_expression(text, SCOPE, "/x").columns


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("a +", 1, 3),
        ("a b", 1, 3),
        ("a +\n  ) 2", 2, 3),
        (")", 1, 1),
        ("f(a", 1, 3),
        ("'abc", 1, 1),
        ("a +\n 'b", 2, 2),
        ("`abc", 1, 1),
    ],
)
def test_syntax_errors_tell_where(text: str, line: int, column: int) -> None:
    with pytest.raises(SpecError) as caught:
        parse_expression(Text(text, "/x"))
    issue = caught.value.issues[0]
    assert (issue.code, issue.pointer, issue.line, issue.column) == ("sql_syntax", "/x", line, column)
    assert "\x1b" not in issue.detail
    assert "sqlglot" not in issue.detail


def test_no_text_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    # sqlglot warns of what it cannot write in Spark's dialect.
    with pytest.raises(SpecError):
        compile_expression("CAST(a AS STRUCT<b INT DEFAULT (SELECT 1 FROM x FOR UPDATE)>)", SCOPE, "/x")
    assert not caplog.records


def test_the_limits_are_inclusive() -> None:
    text = "a" * SQL_CHARACTERS.most
    assert [token.text for token in tokens_of(Text(text, "/x"))] == [text]
    with pytest.raises(SpecError, match="at most 100000"):
        tokens_of(Text(text + "a", "/x"))


def test_a_trailing_semicolon_is_no_second_statement() -> None:
    assert compile_expression("a;", SCOPE, "/x").sql == "`t.a`"
    with pytest.raises(SpecError) as caught:
        compile_expression("a; b", SCOPE, "/x")
    assert caught.value.code == "unsupported_construct"


def test_unescape_leaves_plain_text() -> None:
    assert unescape("plain 'text'") == "plain 'text'"
    assert unescape(r"\\n\n") == "\\n\n"
