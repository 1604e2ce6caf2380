"""Bounds of sums below a join. `tests/conformance/test_eager_aggregation.py` checks the sums."""

from __future__ import annotations

import pytest

from service.sql.expressions.scalar import column
from service.sql.joins import Side
from service.sql.types.data_types import BIGINT, INT, DataType
from tests.support.scalars import scalar
from workers.engine.rules.eager.wide_sums import NOTHING_KNOWN, SumBounds

V = column("l.v", BIGINT)
MOST = 2**63 - 1


def bounds(low: int, high: int, left: float | None = 1000, right: float | None = 1000) -> SumBounds:
    rows = {side: most for side, most in ((Side.LEFT, left), (Side.RIGHT, right)) if most is not None}
    return SumBounds({"l.v": (low, high)}, rows)


@pytest.mark.parametrize(
    ("known", "fits"),
    [
        (bounds(0, MOST // 1000), True),
        (bounds(0, MOST // 1000 + 1), False),
        (bounds(-(MOST // 1000) - 1, 0), False),
        (bounds(0, 1, left=None), False),
        (bounds(0, 1, left=0), True),
        (NOTHING_KNOWN, False),
    ],
)
def test_sums_of_one_side(known: SumBounds, fits: bool) -> None:
    assert known.sum_fits(V, Side.LEFT) is fits


@pytest.mark.parametrize(
    ("known", "fits"),
    [
        (bounds(-1, MOST // 1001**2), True),
        (bounds(-1, MOST // 1001**2 + 1), False),
        (bounds(0, MOST, left=None), True),
        (bounds(-(2**63), 0, left=None), True),
        (bounds(-1, 1, right=None), False),
        (NOTHING_KNOWN, False),
    ],
)
def test_multiples(known: SumBounds, fits: bool) -> None:
    assert known.multiples_fit(V) is fits


@pytest.mark.parametrize(("type_", "fits"), [(INT, True), (BIGINT, False), (None, False)])
def test_a_type_has_a_range_of_its_own(type_: DataType | None, fits: bool) -> None:
    value = scalar("`l.v` + 1", type_)
    assert bounds(0, 1).sum_fits(value, Side.LEFT) is fits
