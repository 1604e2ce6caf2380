"""Which sums have parts, by type; that they add up is proven where the planner uses it."""

from __future__ import annotations

import pytest

from service.sql.types.aggregates import product_has_parts, refusal_of_parts
from service.sql.types.data_types import BIGINT, DOUBLE, FLOAT, INT, STRING, DataType, decimal


@pytest.mark.parametrize(
    ("of", "is_average", "weighed", "words"),
    [
        (BIGINT, True, True, None),
        (DOUBLE, False, True, None),
        (decimal(28, 9), False, False, None),
        (decimal(29, 9), False, False, "is over DECIMAL(29,9): parts of the sum could need more than 38 digits"),
        (decimal(20, 6), False, True, None),
        (decimal(21, 6), False, True, "could need more than 38 digits"),
        (decimal(20, 7), False, True, "its product with a count would lose digits"),
        (decimal(12, 2), True, True, None),
        (decimal(13, 2), True, True, "with more than 12 digits its quotient would be rounded twice"),
        (STRING, False, False, "is over STRING, which cannot be summed in parts"),
        (None, False, False, "has an argument whose type is not known"),
    ],
)
def test_sums_by_type(of: DataType | None, is_average: bool, weighed: bool, words: str | None) -> None:
    told = refusal_of_parts(of, is_average=is_average, weighed=weighed)
    assert (told is None) if words is None else (words in (told or ""))


@pytest.mark.parametrize(
    ("product", "one", "other", "expected"),
    [
        (INT, INT, INT, True),
        (DOUBLE, DOUBLE, INT, True),
        (FLOAT, FLOAT, FLOAT, False),
        (decimal(21, 4), decimal(10, 2), decimal(10, 2), True),
        (decimal(25, 4), decimal(14, 2), decimal(10, 2), True),
        (decimal(26, 4), decimal(15, 2), decimal(10, 2), False),
        (decimal(21, 7), decimal(10, 4), decimal(10, 3), False),
        (None, INT, INT, False),
        (DOUBLE, STRING, DOUBLE, False),
    ],
)
def test_products_by_type(
    product: DataType | None, one: DataType | None, other: DataType | None, expected: bool
) -> None:
    assert product_has_parts(product, one, other) is expected
