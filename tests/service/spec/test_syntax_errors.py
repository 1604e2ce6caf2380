"""Texts that cannot be read: what is told, where, and what to write."""

from __future__ import annotations

import pytest

from service.spec.dialect import Text, parse_expression, parse_query
from service.spec.errors import SpecError

TYPES = (
    "BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL, STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ"
)


@pytest.mark.parametrize(
    ("sql", "line", "column", "detail"),
    [
        ("SELECT k FROM t\nWHRE k = 1", 2, 6, "'k' is not expected here."),
        ("SELEKT k FROM t", 1, 1, "'SELEKT' is not expected here."),
        ("SELECT k FROM t WHERE k = 1 AND", 1, 29, "An operand of AND is missing near 'AND'."),
        ("SELECT k FROM t WHERE k = = 1", 1, 27, "An operand of = is missing near '='."),
        ("SELECT k FROM t ORDER BY", 1, 17, "An operand of ORDER BY is missing near 'ORDER BY'."),
        ("SELECT k FROM t JOIN", 1, 17, "The name of a table is missing near 'JOIN'."),
        ("SELECT k FROM t JOIN u ON\nWHERE k = 1", 1, 24, "Something is missing behind 'ON'."),
        ("SELECT k, FROM t", 1, 9, "Something is missing behind ','."),
        ("SELECT coalesce(k,) FROM t", 1, 18, "Something is missing behind ','."),
        ("SELECT k FROM t AS", 1, 17, "Something is missing behind 'AS'."),
        ("SELECT CAST(k AS MONEY) FROM t", 1, 18, f"'MONEY' is no type; there are {TYPES}."),
        ("SELECT TOP 5 k FROM t", 1, 12, "'5' is not expected here. Write LIMIT at the end."),
        ("SELECT k ** 2 FROM t", 1, 13, "'2' is not expected here. Write power(x, n)."),
        ("SELECT k\n FROM t # all", 2, 9, "'#' is not expected here. A comment begins with --."),
        ("SELECT a && b FROM t", 1, 10, "'&&' is not expected here. Write AND."),
        ("SELECT SUBSTRING(s FROM 1 FOR 2) FROM t", 1, 20, "Expecting ) near 'FROM'. Write substring(x, 1, 2)."),
        (
            "SELECT COUNT(*) FROM t GROUP BY window(ts, '1 hour')",
            1,
            42,
            "Expecting ) near ','. To group by time write GROUP BY TUMBLE(t, INTERVAL '10' MINUTE) over a stream, else "
            "GROUP BY date_trunc('hour', t).",
        ),
        (
            "SELECT COUNT(*) FROM TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), INTERVAL '1' HOUR))",
            1,
            41,
            "Expecting ) near 't'. A table is its name alone. To group a stream by time write GROUP BY TUMBLE(t, "
            "INTERVAL '10' MINUTE).",
        ),
        ("SELECT (upper(k) FROM t", 1, 18, "Expecting ) near 'FROM'."),
    ],
)
def test_what_is_wrong_is_told_in_words(sql: str, line: int, column: int, detail: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_query(Text(sql, "/sql"))
    issue = caught.value.issues[0]
    assert (issue.code, issue.line, issue.column, issue.detail) == ("sql_syntax", line, column, detail)


@pytest.mark.parametrize(
    ("sql", "line", "column", "words"),
    [
        ("SELECT k FROM t LIMIT 3\nORDER BY k", 2, 1, "ORDER BY stands behind LIMIT"),
        ("SELECT k FROM t GROUP BY k WHERE k = 1", 1, 28, "WHERE stands behind GROUP BY"),
        ("SELECT k FROM t HAVING COUNT(*) > 1 GROUP BY k", 1, 37, "GROUP BY stands behind HAVING"),
        ("SELECT k FROM t WHERE k = 1 JOIN u ON t.k = u.k", 1, 29, "JOIN stands behind WHERE"),
        ("SELECT 1 FROM (SELECT k FROM t LIMIT 3 WHERE k = 1) a", 1, 40, "WHERE stands behind LIMIT"),
        ("SELECT k FROM t UNION SELECT k FROM t LIMIT 1 ORDER BY k", 1, 47, "ORDER BY stands behind LIMIT"),
    ],
)
def test_clauses_stand_in_order(sql: str, line: int, column: int, words: str) -> None:
    with pytest.raises(SpecError, match="the order is FROM, JOIN, WHERE, GROUP BY, HAVING, ORDER BY, LIMIT") as caught:
        parse_query(Text(sql, "/sql"))
    issue = caught.value.issues[0]
    assert (issue.code, issue.line, issue.column) == ("sql_syntax", line, column)
    assert words in issue.detail


@pytest.mark.parametrize(
    "sql",
    [
        "FROM t JOIN u ON t.k = u.k SELECT k WHERE k > 1 GROUP BY k HAVING COUNT(*) > 1 ORDER BY k LIMIT 3",
        "(SELECT k FROM t ORDER BY k LIMIT 3) UNION ALL SELECT k FROM t WHERE k > 1 ORDER BY k LIMIT 4",
        "SELECT limit FROM t WHERE limit > 1 ORDER BY limit LIMIT 1",
        "SELECT COUNT(*) FILTER (WHERE k > 1) FROM t WHERE k > (0) ORDER BY (k)",
        "WITH a AS (SELECT k FROM t LIMIT 1), b AS (SELECT k FROM t ORDER BY k) SELECT 1 FROM a JOIN b ON a.k = b.k",
        "SELECT k FROM t WHERE k = 1 UNION SELECT k FROM t JOIN u ON t.k = u.k WHERE EXTRACT(YEAR FROM d) > 1",
    ],
)
def test_what_is_in_order_is_read(sql: str) -> None:
    parse_query(Text(sql, "/sql"))


@pytest.mark.parametrize("text", ["a +", "coalesce(a,)", "CASE WHEN a", "CAST(a AS)"])
def test_expressions_too(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_expression(Text(text, "/query/where"))
    assert (caught.value.code, caught.value.issues[0].column is not None) == ("sql_syntax", True)


@pytest.mark.parametrize("text", ["a, b", "SELECT"])
def test_no_word_of_the_parsers_own_is_told(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_expression(Text(text, "/query/where"))
    assert not {"Token", "sqlglot", "Expression"} & set(str(caught.value).replace("<", " ").split())
