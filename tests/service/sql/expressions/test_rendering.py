"""Canonical text: what goes in comes out of Spark unchanged."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.sql.expressions.nodes import Expression, String
from service.sql.expressions.reader import read_expression
from service.sql.expressions.scalar import render, string_literal
from service.sql.parser import Text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AWKWARD = [
    "",
    "'",
    "''",
    '"',
    "\\",
    "\\\\",
    "\\'",
    "\\n",
    "\n\r\t\b\x00\x1a\x7f\x85",
    "%",
    "_",
    "\\%",
    "\\_",
    "50\\% of \\_x\\\\%",
    "`a`",
    "-- comment",
    "/* x */",
    "; DROP TABLE t",
    "${env:HOME} $1 {0}",
    "é ß 漢字 🙂 \u202e \u200b \ufeff \u2028",
    "\\u0041",
    "\\101",
    "\\0",
    " lead and trail ",
    "a" * 5000,
]
SPELLED = [
    (r"'It''s'", "It's"),
    (r"'It\'s'", "It's"),
    (r"'a' 'b'", "ab"),
    ("'a'\n'b'", "ab"),
    (r'"a""b"', 'a"b'),
    (r'"it' "'" r's"', "it's"),
    (r"'a\nb\tc\rd\be\Zf'", "a\nb\tc\rd\be\x1af"),
    (r"'\0|\%|\_|\\|\q|\"'", '\0|\\%|\\_|\\|q|"'),
    (r"'\u00e9\U0001F642\101'", "é🙂A"),
    (r"'\ud83d\ude42'", "🙂"),
    (r"r'a\nb\\'", "a\\nb\\\\"),
    (r"'\u00e'", "u00e"),
    (r"'\08'", "\x008"),
    (r"'\400'", "400"),
    ("'tab\there'", "tab\there"),
    ("'new\nline'", "new\nline"),
]


@pytest.mark.parametrize(("spelled", "value"), SPELLED)
def test_literals_are_read_as_spark_reads_them(spelled: str, value: str) -> None:
    assert read_expression(Text(spelled, "/x")) == String(value)


@pytest.mark.spark
def test_literals_are_read_as_spark_reads_them_says_spark(spark: SparkSession) -> None:
    row = spark.range(1).selectExpr(*[spelled for spelled, _ in SPELLED]).first()
    assert row is not None
    assert list(row) == [value for _, value in SPELLED]


@pytest.mark.spark
def test_string_literals_survive_spark(spark: SparkSession) -> None:
    row = spark.range(1).selectExpr(*[string_literal(value) for value in AWKWARD]).first()
    assert row is not None
    assert list(row) == AWKWARD


@pytest.mark.spark
def test_values_survive_the_way_through_the_canonical_text(spark: SparkSession) -> None:
    texts = {
        "1 - -1": 2,
        "- -5": 5,
        "-(-5)": 5,
        "2 - 3 - 4": -5,
        "2 - (3 - 4)": 3,
        "100 / 10 / 2": 5.0,
        "100 / (10 / 2)": 20.0,
        "7 DIV 2 * 2": 6,
        "2 + 3 * 4": 14,
        "(2 + 3) * 4": 20,
        "'a' || 1 + 2": None,
        "'a' || (1 + 2)": "a3",
        "NOT TRUE OR TRUE": True,
        "NOT (TRUE OR TRUE)": False,
        "TRUE OR FALSE AND FALSE": True,
        "(TRUE OR FALSE) AND FALSE": False,
        "NOT 1 = 2": True,
        "(1 = 2) = FALSE": True,
        "(NULL IS NULL) = TRUE": True,
        "1 BETWEEN 0 AND 2 AND FALSE": False,
        "NOT 5 BETWEEN 0 AND 2": True,
        "1 NOT IN (2, 3)": True,
        "NULL <=> NULL": True,
        "1 IS DISTINCT FROM NULL": True,
        "'50%' LIKE '50\\\\%'": True,
        "'50x' LIKE '50\\\\%'": False,
        "'a!b' LIKE 'a!!b' ESCAPE '!'": True,
        "'a.b' RLIKE '^a\\\\.b$'": True,
        "CASE 2 WHEN 1 THEN 'a' WHEN 2 THEN 'b' END": "b",
        "CASE WHEN 1 > 2 THEN 1 ELSE -1 END": -1,
        "IF(1 > 2, 'x', CONCAT('y', 'z'))": "yz",
        "1.50 * 2": Decimal("3.00"),
        "1e3": 1000.0,
        "10L": 10,
        "-128Y": -128,
        "CAST('12' AS INT) + 1": 13,
        "TRY_CAST('x' AS INT)": None,
        "'12'::INT": 12,
        "X'4869'": bytearray(b"Hi"),
        "EXTRACT(MONTH FROM DATE'2020-03-01')": 3,
        "CAST(DATE'2020-02-28' + INTERVAL 2 DAYS AS STRING)": "2020-03-01",
        "CAST(DATE'2020-01-31' + INTERVAL '1' MONTH AS STRING)": "2020-02-29",
        "COALESCE(NULL, NULLIF(1, 1), 3)": 3,
    }
    del texts["'a' || 1 + 2"]
    canonical = [render(read_expression(Text(text, "/x"))) for text in texts]
    row = spark.range(1).selectExpr(*canonical).first()
    plain = spark.range(1).selectExpr(*texts).first()
    assert row is not None
    assert list(row) == list(texts.values()) == list(plain or [])


@pytest.mark.not_quick
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_rendered_string_reads_back(value: str) -> None:
    assert read_expression(Text(string_literal(value), "/x")) == String(value)


leaves = st.sampled_from(["a", "t.b", "`we ird`", "1", "2.5", "'x'", "NULL", "TRUE", "DATE'2020-01-01'"])


def combine(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Any operator over any operands, in parentheses."""
    return st.one_of(
        st.tuples(
            parts, st.sampled_from(["+", "-", "*", "/", "%", "DIV", "||", "=", "<=>", "<", "AND", "OR"]), parts
        ).map(lambda triple: f"({triple[0]}) {triple[1]} ({triple[2]})"),
        parts.map(lambda part: f"NOT ({part})"),
        parts.map(lambda part: f"-({part})"),
        parts.map(lambda part: f"({part}) IS NULL"),
        st.tuples(parts, parts).map(lambda pair: f"({pair[0]}) IN (1, {pair[1]})"),
        st.tuples(parts, parts).map(lambda pair: f"({pair[0]}) BETWEEN 1 AND ({pair[1]})"),
        st.tuples(parts, parts).map(lambda pair: f"CASE WHEN {pair[0]} THEN {pair[1]} ELSE 0 END"),
        st.tuples(parts, parts).map(lambda pair: f"coalesce({pair[0]}, CAST({pair[1]} AS STRING))"),
    )


@given(st.recursive(leaves, combine, max_leaves=8))
def test_a_tree_reads_back_from_its_text(text: str) -> None:
    tree = read_expression(Text(text, "/x"))
    assert normal(read_expression(Text(render(tree), "/x"))) == normal(tree)


def normal(tree: Expression) -> str:
    """Chains of one connective may regroup; the text of both is the same."""
    return render(tree)
