"""Parameters are literals: a query with parameters is the query with literals, whatever the values contain."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.contract.query import SQL_CHARACTERS
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.expressions.nodes import Binary, Boolean, Cast, Expression, Negation, Null, Number, String, walk
from service.sql.expressions.reader import read_expression
from service.sql.expressions.scalar import render, string_literal
from service.sql.parameters import literal_of
from service.sql.parser import Text
from service.sql.resolve.bound import BoundQuery
from service.sql.types.inference import Typing

SCHEMAS = {"t": parse_schema("a BIGINT, s STRING, x DOUBLE, d DATE, m DECIMAL(10,2), q BOOLEAN", "/x")}
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NASTY = (
    "'",
    "\\",
    "\\'",
    "''; --",
    "' OR 1 = 1 --",
    '"',
    "`",
    "\0",
    "\n\r\t\b\x1a",
    "${env:HOME}",
    ":a",
    "?",
    "%_\\%",
    "*/",
    "/*+ BROADCAST(t) */",
    "\u2028\ufeff\U0010ffff",
    "e\u0301",
)


def bound(sql: str, parameters: Any = None, **parts: Any) -> BoundQuery:
    tables = {"t": {"format": "parquet", "path": "t"}}
    return compile_job(
        JobSpec.model_validate({"tables": tables, "sql": sql, "parameters": parameters, **parts}), SCHEMAS
    )


def refusal(sql: str, parameters: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        bound(sql, parameters)
    return caught.value


def literal(value: object) -> Expression:
    """The literal of a value without a type, as the contract reads it."""
    parameters = JobSpec.model_validate(
        {"tables": {"t": {"format": "parquet", "path": "t"}}, "sql": "SELECT 1 FROM t", "parameters": [value]}
    ).parameters
    assert isinstance(parameters, tuple)
    return literal_of(parameters[0], "/parameters/0")


def typed(type_: str, value: object) -> Expression:
    return literal({"type": type_, "value": value})


SHAPES = (
    "SELECT a FROM t WHERE s = {0} AND {1} = a",
    "SELECT s || {0} AS k, COUNT(*) AS n FROM t GROUP BY s || {0} HAVING MAX(a + {1}) > {1} ORDER BY k",
    "SELECT CASE WHEN s LIKE concat({0}, '%') THEN {0} ELSE concat(s, {0}, {0}) END AS k, -{1} AS n FROM t",
    "WITH w AS (SELECT s, a FROM t WHERE s IN ({0}, 'x')) SELECT w.a FROM w JOIN t ON w.a = t.a AND t.s <> {0} "
    "WHERE t.a BETWEEN {1} AND ({1}) + 1",
    "SELECT MIN(s) FILTER (WHERE s > {0}) AS s, COUNT(DISTINCT a + {1}) AS n FROM t",
    "SELECT a FROM t WHERE x > {1} UNION ALL SELECT length({0}) FROM t",
)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.parametrize("shape", SHAPES)
@given(text=TEXTS | st.sampled_from(NASTY), number=NUMBERS)
@example(text="' OR '' = '", number=-(1 << 63))
@example(text="\\", number=-(1 << 31))
@example(text="\0", number=0)
def test_a_parameter_is_its_literal(shape: str, text: str, number: int) -> None:
    # In parentheses, like a literal: `- -1` and `1 - -1` mean the same as with parentheses.
    with_literals = shape.format(string_literal(text), f"({number})")
    named = bound(shape.format(":text", ":number"), {"text": text, "number": number})
    assert named == bound(with_literals)
    order = [text if part.startswith("0}") else number for part in shape.split("{")[1:]]
    assert bound(shape.format("?", "?"), order) == named


@given(TEXTS | st.sampled_from(NASTY))
def test_a_string_never_changes_the_shape(text: str) -> None:
    sql = "SELECT :p AS p, s FROM t WHERE s = :p AND a = 1 ORDER BY s LIMIT 3"
    usual, other = bound(sql, {"p": "x"}), bound(sql, {"p": text})
    assert other.output == usual.output
    assert other.where is not None
    assert usual.where is not None
    assert [type(node) for node in walk(other.where.tree)] == [type(node) for node in walk(usual.where.tree)]
    assert String(text) in walk(other.where.tree)


@given(TEXTS | st.sampled_from(NASTY))
def test_a_string_reads_back_from_its_text(text: str) -> None:
    assert read_expression(Text(render(literal(text)), "/x")) == String(text)


@given(NUMBERS)
def test_an_integer_has_the_type_of_its_literal(number: int) -> None:
    tree = literal(number)
    assert read_expression(Text(str(number), "/x")) == tree
    assert str(Typing(Text("", "/x")).type_of(tree)) == ("INT" if -(1 << 31) <= number < 1 << 31 else "BIGINT")


@given(st.floats(allow_nan=False, allow_infinity=False))
@example(-0.0)
@example(5e-324)
@example(1e22)
def test_a_double_is_exact(number: float) -> None:
    tree = literal(number)
    assert str(Typing(Text("", "/x")).type_of(tree)) == "DOUBLE"
    text = render(tree)
    assert repr(float(text)) == repr(number)
    assert read_expression(Text(text, "/x")) == tree
    assert typed("DOUBLE", repr(number)) == tree == typed("double", number)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**31), max_value=10**31))
def test_a_decimal_is_exact(number: Decimal) -> None:
    tree = typed("DECIMAL(38,6)", format(number, "f"))
    assert isinstance(tree, Cast)
    assert Decimal(render(tree.operand)) == number
    assert str(Typing(Text("", "/x")).type_of(tree)) == "DECIMAL(38,6)"


@given(st.binary(max_size=30))
def test_bytes_are_exact(value: bytes) -> None:
    assert typed("BINARY", base64.b64encode(value).decode()) == Binary(value.hex().upper())


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)), st.integers(-14, 14))  # noqa: DTZ001
def test_a_time_with_an_offset_is_in_utc(moment: datetime, hours: int) -> None:
    offset = f"{'-' if hours < 0 else '+'}{abs(hours):02}:00"
    tree = typed("TIMESTAMP", f"{moment.isoformat()}{offset}")
    assert isinstance(tree, Cast)
    assert isinstance(tree.operand, String)
    assert datetime.fromisoformat(tree.operand.value) == datetime.fromisoformat(f"{moment.isoformat()}{offset}")
    local = typed("TIMESTAMP_NTZ", moment.isoformat(" "))
    assert isinstance(local, Cast)
    assert local.operand == String(moment.isoformat(" "))


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        ("INT", "-2147483648", "-2147483648"),
        ("INT", "+7", "7"),
        ("BIGINT", 5, "5L"),
        ("SMALLINT", -32768, "-32768S"),
        ("TINYINT", 127, "127Y"),
        ("BIGINT", -(1 << 31), "-2147483648L"),
        ("BIGINT", 1 << 31, "2147483648L"),
        ("BIGINT", 1 << 40, "1099511627776"),
        ("FLOAT", 0.1, "CAST(0.1e0 AS FLOAT)"),
        ("DECIMAL", 12, "CAST(12 AS DECIMAL(10,0))"),
        ("DECIMAL(38,38)", "-0." + "0" * 37 + "1", "CAST(-0." + "0" * 37 + "1 AS DECIMAL(38,38))"),
        ("DECIMAL(4,2)", ".5", "CAST(0.5 AS DECIMAL(4,2))"),
        ("DECIMAL(4,2)", "0012.500", "CAST(12.5 AS DECIMAL(4,2))"),
        ("DECIMAL(12,8)", 1e-7, "CAST(0.0000001 AS DECIMAL(12,8))"),
        ("DATE", "2024-02-29", "CAST('2024-02-29' AS DATE)"),
        ("TIMESTAMP", "2024-01-31", "CAST('2024-01-31 00:00:00' AS TIMESTAMP)"),
        ("TIMESTAMP_LTZ", "2024-01-31T12:30Z", "CAST('2024-01-31 12:30:00Z' AS TIMESTAMP)"),
        ("STRING", "5", "'5'"),
        ("BOOLEAN", "true", "TRUE"),
        ("BOOLEAN", False, "FALSE"),
        ("DATE", None, "CAST(NULL AS DATE)"),
    ],
)
def test_values_with_types(type_: str, value: object, text: str) -> None:
    assert render(typed(type_, value)) == text


@pytest.mark.parametrize(("value", "tree"), [(None, Null()), (True, Boolean(True)), (7, Number("7"))])
def test_values_without_types(value: object, tree: Expression) -> None:
    assert literal(value) == tree


def test_equal_numbers_of_other_types_are_other_queries() -> None:
    """In Python 1 == 1.0 == True; no cache may confuse them."""
    sql = "SELECT :p AS p FROM t"
    types = [str(bound(sql, {"p": value}).output.fields[0].type) for value in (1, 1.0, True, 1)]
    assert types == ["INT", "DOUBLE", "BOOLEAN", "INT"]


def test_half_of_a_surrogate_pair_is_refused() -> None:
    error = refusal("SELECT :p AS p FROM t", {"p": "a\ud800"})
    assert [(issue.code, issue.pointer) for issue in error.issues] == [("parameter_value", "/parameters/p")]


@pytest.mark.parametrize("uses", [1, 10, 1_000])
def test_values_count_as_text_at_each_use(uses: int) -> None:
    sql = f"SELECT a FROM t WHERE s IN ({', '.join([':p'] * uses)})"
    most = (SQL_CHARACTERS.most - len(sql)) // uses
    assert bound(sql, {"p": "x" * most}).where is not None
    error = refusal(sql, {"p": "x" * (most + 1)})
    assert [(issue.code, issue.pointer) for issue in error.issues] == [("query_too_deep", "/parameters")]


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("SELECT a + :n, a + :n + 1 FROM t", ["a + :n", "a + :n + 1"]),
        ("SELECT MAX(a + ?), COUNT(*) FILTER (WHERE s = ?) FROM t", ["MAX(a + ?)", "COUNT(*) FILTER (WHERE s = ?)"]),
        ("SELECT :n FROM t GROUP BY a", [":n"]),
        ("SELECT k FROM (SELECT :n AS k FROM t) w", ["k"]),
    ],
)
def test_names_of_columns_do_not_depend_on_values(sql: str, names: Sequence[str]) -> None:
    found = []
    for number in (1, 2):
        parameters: Any = [number, "x"] if "?" in sql else {"n": number}
        found.append([field.name for field in bound(sql, parameters).output.fields])
    assert found == [list(names)] * 2


def test_an_accepted_job_keeps_its_parameters() -> None:
    spec = JobSpec.model_validate(
        {
            "tables": {"t": {"format": "parquet", "path": "t"}},
            "sql": "SELECT a FROM t WHERE x > :x AND s = :s",
            "parameters": {"x": 1e22, "s": "'"},
        }
    )
    again = JobSpec.model_validate(spec.stored())
    assert compile_job(again, SCHEMAS, is_accepted=True) == compile_job(spec, SCHEMAS)


@pytest.mark.parametrize(
    "expression",
    ["a = :p", "a = ?"],
)
def test_a_structured_query_has_no_placeholders(expression: str) -> None:
    query = {
        "source": {"kind": "table", "table": "t"},
        "where": expression,
        "select": [{"expression": "a", "name": "a"}],
    }
    spec = {"tables": {"t": {"format": "parquet", "path": "t"}}, "query": query}
    with pytest.raises(SpecError) as caught:
        compile_job(JobSpec.model_validate(spec), SCHEMAS)
    issue = caught.value.issues[0]
    assert (issue.code, issue.pointer, issue.column) == ("unsupported_construct", "/query/where", 5)
    assert "In a job's `sql`, write :name" in issue.detail


def test_negation_of_a_negative_parameter() -> None:
    query = bound("SELECT -:n AS n, 1 - :n AS m FROM t", {"n": -5})
    assert query.select[0].expression.tree == Negation(Negation(Number("5")))
    assert [item.expression.sql for item in query.select] == ["-(-5)", "1 - -5"]
