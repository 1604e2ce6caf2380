"""What is known to be safe to evaluate on rows that the query leaves out."""

from __future__ import annotations

import re

import pytest

from service.sql.expressions.analysis import cannot_fail, columns_by_name, never_true_of_nulls, null_of_nulls, tree_of
from service.sql.expressions.nodes import Expression
from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, DOUBLE, INT, STRING, Field, decimal
from tests.support.scalars import scalar

COLUMNS = columns_by_name(
    (
        Field("i", INT),
        Field("b", BIGINT),
        Field("x", DOUBLE),
        Field("m", decimal(10, 2)),
        Field("w", decimal(38, 10)),
        Field("s", STRING),
        Field("q", BOOLEAN),
        Field("d", DATE),
    )
)


def read(text: str) -> Expression:
    named = re.sub(r"\b([ibxmwsqd])\b(?![('])", r"`\1`", text)
    tree = tree_of(scalar(named, None), COLUMNS)
    assert tree is not None, named
    return tree


@pytest.mark.parametrize(
    "text",
    [
        "i",
        "1",
        "x * 2 - i",
        "m * (1 - m)",
        "-x",
        "-1 + x",
        "i > 0 AND s = 'A'",
        "i IN (1, 2) OR b BETWEEN i AND 9",
        "d >= '2013-01-31'",
        "d >= CAST('2013-01-31' AS DATE)",
        "s LIKE 'A%'",
        "CASE WHEN q THEN m WHEN i = 1 THEN NULL ELSE m END",
        "CASE i WHEN 1 THEN 'A' END",
        "coalesce(i, 7)",
        "if(q, x, x)",
        "upper(s) || 'A'",
        "year(d)",
        "EXTRACT(YEAR FROM d)",
        "abs(m)",
        "CAST(i AS BIGINT)",
        "CAST(i AS DECIMAL(12,2))",
        "CAST(i AS STRING)",
        "TRY_CAST(s AS INT)",
        "isnotnull(s)",
        "NOT q",
        "i > 4 + 2",
        "b < 3 * -2",
        "d + 5",
        "d - i",
    ],
)
def test_it_has_a_value_for_every_row(text: str) -> None:
    assert cannot_fail(read(text))


@pytest.mark.parametrize(
    "text",
    [
        "i + 1",
        "d + b",
        "b * b",
        "-i",
        "10 / i",
        "x / x",
        "x % 2",
        "w * w",
        "w + 1",
        "s > 1",
        "CAST(s AS INT)",
        "CAST(b AS INT)",
        "CAST(x AS DECIMAL(10,2))",
        "CAST('31.1.2013' AS DATE)",
        "d > 'someday'",
        "s LIKE 'A\\\\'",
        "s RLIKE '['",
        "abs(i)",
        "sqrt(s)",
        "year(s)",
        "coalesce(i, s)",
        "CASE WHEN q THEN i ELSE s END",
        "upper(s || CAST(10 / i AS STRING))",
        "x > 1 AND 1 / i > 2",
        "100Y + 100Y",
        "2147483647 + 1",
    ],
)
def test_it_might_fail(text: str) -> None:
    assert not cannot_fail(read(text))


@pytest.mark.parametrize(
    "text", ["i", "i + 1", "NOT (i > 1)", "upper(s)", "i IN (1, 2)", "s LIKE 'A'", "x * 2 > i", "5 BETWEEN i AND b"]
)
def test_nulls_alone_make_a_null(text: str) -> None:
    assert null_of_nulls(read(text))
    assert never_true_of_nulls(read(text))


@pytest.mark.parametrize(
    "text", ["1", "coalesce(i, 7)", "i IS NULL", "i <=> 1", "5 BETWEEN i AND 3", "CASE WHEN q THEN 1 ELSE 2 END"]
)
def test_nulls_may_make_something_else(text: str) -> None:
    assert not null_of_nulls(read(text))
    assert not never_true_of_nulls(read(text))


@pytest.mark.parametrize(
    ("text", "never"),
    [("q AND i IS NULL", True), ("i IS NULL AND d IS NULL", False), ("q OR i > 1", True), ("q OR i IS NULL", False)],
)
def test_conditions_over_nulls(text: str, never: bool) -> None:
    assert never_true_of_nulls(read(text)) is never
