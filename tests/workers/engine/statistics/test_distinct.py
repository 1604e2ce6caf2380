"""The estimate of distinct values: exact where it can be, near where the data is kind, bounded always."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.statistics.cardinality import estimate_distinct


def estimate(values: list[int], sampled: int, seed: int = 7) -> int:
    sample = Random(seed).sample(values, sampled)
    return estimate_distinct(Counter(Counter(sample).values()), len(values))


def test_a_sample_of_everything_is_counted() -> None:
    assert estimate_distinct({1: 10, 5: 2}, rows=20) == 12


@pytest.mark.parametrize(
    ("values", "distinct"),
    [
        (list(range(100_000)), 100_000),
        ([number % 13_000 for number in range(100_000)], 13_000),
        ([number % 20 for number in range(100_000)], 20),
        # Half of the rows on one key, all others unique.
        ([0] * 50_000 + list(range(1, 50_001)), 50_001),
    ],
    ids=["unique", "eight a key", "few", "one hot among unique"],
)
def test_near_the_truth(values: list[int], distinct: int) -> None:
    assert estimate(values, 5_000) == pytest.approx(distinct, rel=0.1)


def test_an_empty_sample_has_no_distinct_values() -> None:
    assert estimate_distinct({}, rows=100) == 0


@given(st.dictionaries(st.integers(1, 200), st.integers(1, 1000), max_size=20), st.integers(0, 10**6))
def test_the_estimate_is_between_the_sampled_values_and_the_rows(frequencies: dict[int, int], more_rows: int) -> None:
    rows = sum(times * values for times, values in frequencies.items()) + more_rows
    assert sum(frequencies.values()) <= estimate_distinct(frequencies, rows) <= max(rows, 0)
