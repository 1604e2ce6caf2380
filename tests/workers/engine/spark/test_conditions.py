"""A condition on a sample keeps the rows that Spark would keep, or is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from itertools import count

import pyarrow as pa
import pytest

from service.sql.expressions.nodes import Expression
from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, DOUBLE, STRING, DataType, TypeName, decimal
from tests.support.scalars import scalar
from workers.engine.spark import predicate_evaluation
from workers.engine.spark.predicate_evaluation import (
    MAX_PATTERN_LENGTH,
    MAX_PATTERNS,
    PATTERN_ROWS,
    ranges_kept,
    share_kept,
    typed,
)

SAMPLE = {
    "t.i": pa.chunked_array([[1, 2, 3, 4], [5, 6, None, -7]]),
    "t.d": pa.chunked_array([[0.5, 1.5, float("nan"), None, 2.5, 3.5, 4.5, 5.5]]),
    "t.s": pa.chunked_array([["a", "ab", "b", None, "", "A", "x%", "é"]]),
    "t.q": pa.chunked_array([[True, False, None, True, True, False, False, None]]),
    "t.day": pa.chunked_array([[date(2013, 1, number) for number in range(1, 9)]]),
}


def tree(text: str) -> Expression:
    return scalar(text, BOOLEAN).tree


def shares(
    terms: Sequence[Expression], sample: Mapping[str, pa.ChunkedArray], rows: int, *, is_whole: bool
) -> tuple[float | None, int]:
    """The result of `share_kept` without a time limit."""
    return share_kept(terms, sample, rows, is_whole, clock=lambda: 0.0)


def kept(text: str) -> float | None:
    share, unknown = shares([tree(text)], SAMPLE, 8, is_whole=True)
    assert unknown == (share is None)
    return None if share is None else share * 8


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("`t.i` > 2", 4),
        ("`t.i` <> 2", 6),
        ("2 >= `t.i`", 3),
        ("NOT `t.i` > 2", 3),
        ("`t.i` <=> NULL", 1),
        ("NOT (`t.i` <=> 5)", 7),
        ("`t.i` = -7", 1),
        ("`t.i` % 2 = 0", 3),
        ("`t.i` % 2 = -1", 1),
        ("`t.i` + 1 > 2 * 3", 1),
        ("`t.i` > 1.5", 5),
        ("`t.i` > '4'", 2),
        ("`t.i` IS NULL", 1),
        ("`t.d` IS NOT NULL", 7),
        ("`t.i` IN (1, 2, 99)", 2),
        ("`t.i` NOT IN (1, 2)", 5),
        ("`t.i` IN (1, NULL, 2 + 1, 4.0)", 3),
        ("`t.i` NOT IN (1, NULL)", 0),
        ("`t.i` IN (-7, '5')", 2),
        ("`t.s` IN ('a', 'b', 'é')", 3),
        ("NOT `t.s` IN ('a')", 6),
        ("1 IN (1, 2)", 8),
        ("`t.i` BETWEEN 2 AND 4", 3),
        ("`t.i` > 4 OR `t.s` = 'a'", 3),
        ("`t.i` > 4 OR NULL", 2),
        ("`t.s` LIKE 'a%'", 2),
        ("`t.s` ILIKE 'a%'", 3),
        ("`t.s` RLIKE '^[ab]+$'", 3),
        ("`t.q`", 3),
        ("`t.q` IS FALSE", 3),
        ("`t.q` IS NOT TRUE", 5),
        ("`t.day` >= DATE '2013-01-06'", 3),
        ("`t.day` < '2013-01-03'", 2),
        ("TRUE", 8),
        ("FALSE", 0),
    ],
)
def test_rows_kept(text: str, rows: int) -> None:
    assert kept(text) == rows


@pytest.mark.parametrize(
    "text",
    ["upper(`t.s`) = 'A'", "`t.other` > 1", "`t.s` > `t.q`", "`t.i`", "`t.i` = 'x'", "`t.s` LIKE 'x|%' ESCAPE '|'"],
)
def test_unsupported_expressions_are_unknown(text: str) -> None:
    assert kept(text) is None


def test_terms_are_taken_together() -> None:
    terms = [tree("`t.i` > 2"), tree("`t.i` < 3"), tree("upper(`t.s`) = 'A'")]
    assert shares(terms, SAMPLE, 8, is_whole=True) == (0.0, 1)
    assert shares(terms, SAMPLE, 8, is_whole=False) == (0.5 / 8, 1)
    assert shares([], SAMPLE, 8, is_whole=True) == (None, 0)


def test_many_patterns_and_long_ones_are_unknown() -> None:
    def alternatives(number: int, pattern: str) -> list[Expression]:
        return [tree(" OR ".join([f"`t.s` LIKE '{pattern}'"] * number))]

    assert shares(alternatives(MAX_PATTERNS, "a%"), SAMPLE, 8, is_whole=True) == (2 / 8, 0)
    assert shares(alternatives(MAX_PATTERNS + 1, "a%"), SAMPLE, 8, is_whole=True) == (None, 1)
    assert shares(alternatives(1, "a" * MAX_PATTERN_LENGTH), SAMPLE, 8, is_whole=True) == (0.0, 0)
    assert shares(alternatives(1, "a" * (MAX_PATTERN_LENGTH + 1)), SAMPLE, 8, is_whole=True) == (None, 1)


def test_patterns_are_tried_on_some_of_the_rows() -> None:
    rows = 4 * PATTERN_ROWS
    sample = {"t.s": pa.chunked_array([["a"] * PATTERN_ROWS, ["b"] * (rows - PATTERN_ROWS)])}
    assert shares([tree("`t.s` LIKE 'a%'")], sample, rows, is_whole=True) == (0.25, 0)
    assert shares([tree("`t.s` LIKE 'c%'")], sample, rows, is_whole=True) == (0.5 / PATTERN_ROWS, 0)
    assert shares([tree("`t.s` = 'a'")], sample, rows, is_whole=True) == (0.25, 0)


def test_a_long_condition_is_unknown_after_the_time_limit() -> None:
    ticks = count()
    long = tree(" OR ".join(f"`t.i` + {number} = 4" for number in range(500)))
    terms = [tree("`t.i` > 2"), long, tree("`t.i` < 3")]
    assert share_kept(
        terms, SAMPLE, 8, is_whole=True, clock=lambda: next(ticks) * predicate_evaluation.SECONDS / 100
    ) == (0.5, 2)


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        (["1", "2"], BIGINT, [1, 2]),
        (["1.5", None], DOUBLE, [1.5, None]),
        (["2013-01-01"], DATE, [date(2013, 1, 1)]),
        ([Decimal("1.50")], decimal(10, 2), [1.5]),
        (["x"], BIGINT, ["x"]),
        (["x"], STRING, ["x"]),
        ([b"x"], DataType(TypeName.BINARY), [b"x"]),
    ],
)
def test_texts_of_files_are_read_as_their_types(values: list[object], type_: DataType, expected: list[object]) -> None:
    assert typed(pa.chunked_array([values]), type_).to_pylist() == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("`t.q`", {"i": (1, 5)}),
        ("`t.d` > 2", {"i": (-7, 6)}),
        ("`t.d` > 100", {}),
        ("`t.s` LIKE 'a%'", {}),
    ],
)
def test_the_keys_that_a_condition_keeps_have_a_range(text: str, found: dict[str, tuple[int, int]]) -> None:
    keys = {"i": SAMPLE["t.i"], "s": SAMPLE["t.s"]}
    assert ranges_kept([tree(text)], SAMPLE, keys, clock=lambda: 0.0) == found
