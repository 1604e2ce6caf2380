"""The allow-list: what a scalar expression may be, and what is told of the rest."""

from __future__ import annotations

import pytest

from service.spec.dialect import Text
from service.spec.errors import SpecError
from service.spec.parsing import read_expression
from service.spec.rendering import render

ACCEPTED = {
    "a": "`a`",
    "t.a": "`t`.`a`",
    "`we``ird`": "`we``ird`",
    "(((a)))": "`a`",
    "a+b*c": "`a` + `b` * `c`",
    "(a+b)*c": "(`a` + `b`) * `c`",
    "a-(b-c)": "`a` - (`b` - `c`)",
    "a || b + c": "`a` || `b` + `c`",
    "a and b and c or d": "`a` AND `b` AND `c` OR `d`",
    "a and (b or c)": "`a` AND (`b` OR `c`)",
    "a != 1": "`a` <> 1",
    "a <=> NULL": "`a` <=> NULL",
    "a IS NOT DISTINCT FROM b": "`a` <=> `b`",
    "a is not null": "NOT `a` IS NULL",
    "a is unknown": "`a` IS NULL",
    "a not in (1,2)": "NOT `a` IN (1, 2)",
    "a between -1 and 1": "`a` BETWEEN -1 AND 1",
    "a like 'x%'": "`a` LIKE 'x%'",
    "a ilike 'x%' escape '!'": "`a` ILIKE 'x%' ESCAPE '!'",
    "a not like 'x%'": "NOT `a` LIKE 'x%'",
    "not a not like 'x%' and b": "NOT (NOT `a` LIKE 'x%') AND `b`",
    "a not ilike 'x%' escape '!'": "NOT `a` ILIKE 'x%' ESCAPE '!'",
    "a not rlike 'x'": "NOT `a` RLIKE 'x'",
    "a regexp 'x'": "`a` RLIKE 'x'",
    "case a when 1 then 'x' else 'y' end": "CASE `a` WHEN 1 THEN 'x' ELSE 'y' END",
    "a::decimal(5,2)": "CAST(`a` AS DECIMAL(5,2))",
    "cast(a as decimal)": "CAST(`a` AS DECIMAL(10,0))",
    "cast(a as long)": "CAST(`a` AS BIGINT)",
    "try_cast(a as timestamp_ntz)": "TRY_CAST(`a` AS TIMESTAMP_NTZ)",
    "date '2020-01-01'": "CAST('2020-01-01' AS DATE)",
    "timestamp '2020-01-01'": "CAST('2020-01-01' AS TIMESTAMP)",
    "12L": "12L",
    "12l": "12L",
    "cast(12 as bigint)": "CAST(12 AS BIGINT)",
    "12::bigint": "CAST(12 AS BIGINT)",
    "12L::bigint": "CAST(12L AS BIGINT)",
    "128Y": "CAST(128 AS TINYINT)",
    "-128Y": "-128Y",
    "1.5BD": "CAST('1.5' AS DECIMAL(2,1))",
    "x'0aFF'": "X'0AFF'",
    "interval 3 days": "INTERVAL '3' DAY",
    "extract(dayofweek from a)": "EXTRACT(DAYOFWEEK FROM `a`)",
    "UPPER(a)": "upper(`a`)",
    "IF(a, 1, 2)": "if(`a`, 1, 2)",
    "left(a, 1)": "left(`a`, 1)",
    "replace(a, 'x', 'y')": "replace(`a`, 'x', 'y')",
    "to_date(a, 'dd.MM.yyyy')": "to_date(`a`, 'dd.MM.yyyy')",
    "date_trunc('MONTH', a)": "date_trunc('MONTH', `a`)",
    "date_add(a, 1)": "date_add(`a`, 1)",
    "log(2, a)": "log(2, `a`)",
    "current_date()": "current_date()",
    "a /* comment */ + -- another\n 1": "`a` + 1",
    "current_date": "`current_date`",
    "a = b IS NULL": "(`a` = `b`) IS NULL",
    "a IS NULL = b": "(`a` IS NULL) = `b`",
    "CAST(a AS VARCHAR(5))": "CAST(`a` AS STRING)",
}

UNSUPPORTED = {
    "(SELECT 1)": "A subquery",
    "a IN (SELECT 1)": "A subquery",
    "EXISTS (SELECT 1)": "EXISTS",
    "a = ANY (SELECT 1)": "ANY",
    "a = ALL (SELECT 1)": "ALL",
    "a LIKE ANY ('x', 'y')": "ANY",
    "sum(a)": "The aggregate SUM",
    "COUNT(*)": "The aggregate COUNT",
    "upper(max(a))": "The aggregate MAX",
    "sum(a) OVER (PARTITION BY b)": "A window function",
    "lag(a) OVER (ORDER BY b)": "A window function",
    "a[0]": "Access to an element",
    "a['k']": "Access to an element",
    "a.b.c": "A name of more than two parts",
    "upper(a).b": "Access to a field",
    "x -> x + 1": "A lambda",
    "(x, y) -> x": "A lambda",
    ":p": "A parameter",
    "?": "A parameter",
    "*": "*",
    "t.*": "*",
    "(a, b)": "A row value",
    "(a, b) IN ((1, 2))": "A row value",
    "a & 1": "&",
    "a | 1": "|",
    "a ^ 1": "^",
    "~a": "~",
    "a << 1": "BITWISE",
    "a COLLATE utf8": "COLLATE",
    "a = b = c": "A comparison of a comparison",
    "NOT a = NOT b": "A comparison of a comparison",
    "CAST(a AS ARRAY<INT>)": "ARRAY",
    "CAST(a AS STRUCT<b: INT>)": "STRUCT",
    "CAST(a AS DECIMAL(39, 1))": "DECIMAL",
    "CAST(a AS DECIMAL(²))": "DECIMAL",
    "INTERVAL '²' DAY": "interval",
    "CAST(a AS DECIMAL(5, 6))": "DECIMAL",
    "CAST(a AS INTERVAL DAY)": "INTERVAL",
    "INTERVAL '1-2' YEAR TO MONTH": "interval",
    "INTERVAL a DAY": "interval",
    "EXTRACT(EPOCH FROM a)": "EXTRACT",
    "upper(DISTINCT a)": "DISTINCT",
    "upper(a ORDER BY b)": "ORDER BY",
    "`upper`(a)": "quoted function name",
}

UNKNOWN_FUNCTIONS = [
    "java_method('java.lang.System', 'exit', 0)",
    "reflect('java.lang.System', 'exit', 0)",
    "try_reflect('java.lang.Runtime', 'getRuntime')",
    "input_file_name()",
    "rand()",
    "uuid()",
    "repeat('a', 1000000000)",
    "transform(a, b)",
    "explode(a)",
    "array(1, 2)",
    "struct(1, 2)",
    "map(1, 2)",
    "named_struct('a', 1)",
    "from_json(a, 'x INT')",
    "get_json_object(a, '$.x')",
    "xpath(a, 'x')",
    "skewness(a)",
    "collect_list(a)",
    "first(a)",
    "percentile_approx(a, 0.5)",
    "grouping_set(a)",
    "window(a, '1 hour')",
    "nosuch(a)",
    "any(a)",
    "raise_error('x')",
    "assert_true(a)",
    "version()",
    "current_user()",
    "secret()",
    "f(g(h(1)))",
    "upper()",
    "upper(a, b)",
    "date_add(DAY, 1, a)",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    assert render(read_expression(Text(text, "/x"))) == ACCEPTED[text]


@pytest.mark.parametrize("text", UNSUPPORTED)
def test_unsupported_constructs_are_named(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_expression(Text(text, "/x"))
    assert caught.value.code == "unsupported_construct"
    assert UNSUPPORTED[text].lower() in str(caught.value).lower()


@pytest.mark.parametrize("text", UNKNOWN_FUNCTIONS)
def test_functions_outside_the_table_are_refused(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_expression(Text(text, "/x"))
    assert caught.value.code == "unsupported_function"


def test_an_unknown_function_has_neighbours() -> None:
    with pytest.raises(SpecError) as caught:
        read_expression(Text("a + uppr(b)", "/x"))
    issue = caught.value.issues[0]
    assert issue.suggestions[0] == "upper"
    assert (issue.line, issue.column) == (1, 5)


@pytest.mark.parametrize("text", ["SELECT 1", "DROP TABLE t", "a FROM t", "a AS b", "a, b", "", "  ", "-- only this"])
def test_an_expression_is_not_a_statement(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        read_expression(Text(text, "/x"))
    assert caught.value.code in {"sql_syntax", "unsupported_construct"}
