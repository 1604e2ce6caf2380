"""A few of many items."""

from __future__ import annotations

import pytest

from service.data.spread import spread


@pytest.mark.parametrize(
    ("size", "count", "expected"),
    [(3, 8, [0, 1, 2]), (10, 4, [0, 3, 6, 9]), (100, 1, [50]), (0, 4, []), (9, 8, [0, 1, 2, 3, 5, 6, 7, 8])],
)
def test_items_are_evenly_spread(size: int, count: int, expected: list[int]) -> None:
    assert spread(range(size), count) == expected


def test_both_ends_are_chosen() -> None:
    chosen = spread(range(1000), 64)
    assert (len(set(chosen)), chosen[0], chosen[-1]) == (64, 0, 999)
