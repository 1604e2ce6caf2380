"""The ranges of an order column in the sampled rows of hot keys."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, INT, STRING, DataType, decimal
from workers.engine.statistics.orders import RANGES, ordered_keys

ROWS = 20_000


def column(values: list[Any], type_: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([values], type=type_)


def test_boundaries_divide_the_rows_of_each_hot_key_evenly() -> None:
    keys = column([7 if row % 2 else 8 if row % 4 else row for row in range(ROWS)])
    order = column([row if row % 2 else 3 for row in range(ROWS)])
    seven, eight = ordered_keys([keys], [BIGINT], order, INT)
    assert ([str(one) for one in seven.literals], [str(one) for one in eight.literals]) == (["7L"], ["8L"])
    found = [int(str(boundary)) for boundary in seven.boundaries]
    assert len(found) == RANGES - 1
    steps = [above - below for below, above in zip([0, *found], [*found, ROWS], strict=True)]
    assert max(steps) < 1.1 * min(steps)
    assert (eight.boundaries, eight.top_share) == ((), 1.0)


def test_a_key_may_be_null_or_all_rows() -> None:
    keys = column([None if row % 2 else row for row in range(ROWS)])
    order = column([row % 10 for row in range(ROWS)])
    (null,) = ordered_keys([keys], [BIGINT], order, INT)
    assert [str(boundary) for boundary in null.boundaries] == ["3", "5", "7", "9"]
    assert null.top_share == pytest.approx(0.2)
    (every,) = ordered_keys([], [], order, INT)
    assert (every.literals, len(every.boundaries)) == ((), 9)


@pytest.mark.parametrize(
    ("values", "type_", "expected"),
    [
        ([None] * 30, INT, []),
        ([], INT, []),
        (["b", "a", None] * 10, STRING, ["'b'"]),
        ([date(2026, 1, 2), date(2026, 1, 1)] * 10, DATE, ["CAST('2026-01-02' AS DATE)"]),
        ([Decimal("1.50"), Decimal("-2.00")] * 10, decimal(5, 2), ["CAST(1.50 AS DECIMAL(5,2))"]),
        ([True, False] * 10, BOOLEAN, ["TRUE"]),
    ],
)
def test_boundaries_are_exact_literals(values: list[Any], type_: DataType, expected: list[str]) -> None:
    (every,) = ordered_keys([], [], column(values, None if values else pa.int64()), type_)
    assert [str(boundary) for boundary in every.boundaries] == expected
