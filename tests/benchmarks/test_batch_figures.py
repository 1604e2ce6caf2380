"""Tests of the batch benchmark's arithmetic."""

from __future__ import annotations

import pytest

from tests.benchmarks.batch_figures import DUCKDB, ENGINE, PLAIN, TUNED, Side, hottest, line, makespan, ratio, summary


@pytest.mark.parametrize(
    ("stages", "slots", "expected"),
    [
        ([], 4, 0),
        ([[]], 4, 0),
        ([[5.0]], 4, 5),
        ([[1.0] * 8], 4, 2),
        ([[1.0] * 9], 4, 3),
        ([[10.0, 1.0, 1.0, 1.0]], 2, 10),
        ([[3.0, 3.0, 2.0, 2.0, 2.0]], 2, 7),  # not the optimum of 6: longest task first
        ([[4.0, 4.0], [1.0, 2.0]], 2, 6),
        ([[4.0, 4.0], [1.0, 2.0]], 1, 11),
    ],
)
def test_makespans(stages: list[list[float]], slots: int, expected: float) -> None:
    assert makespan(stages, slots) == expected


def test_hottest_task_is_compared_with_the_median_of_its_stage() -> None:
    assert hottest([[1.0, 1.0, 9.0], [8.0, 8.0]]) == (9.0, 9.0)
    assert hottest([]) == hottest([[]]) == (0.0, 1.0)


def test_ratios_are_of_medians() -> None:
    assert ratio(Side([3.0, 100.0, 6.0]), Side([1.0, 2.0, 3.0])) == 3.0
    assert ratio(Side(trouble="not in 60 s"), Side([1.0])) is None


def test_unfinished_sides_are_marked() -> None:
    sides = {
        PLAIN: Side(trouble="not in 60 s"),
        TUNED: Side([3.0]),
        ENGINE: Side(
            [2.0], [[300.0], [100.0, 200.0]], rules=["eager_aggregation"], reducing=[False, True], wide_rules=["x"]
        ),
        DUCKDB: Side([1.0]),
    }
    row = line("both hot", "< 30 s", sides)
    assert row.startswith(
        "| both hot | < 30 s | not in 60 s | 3.00 s | 2.00 s |  | 1.50x | 1.00 s | - | 0.30 s | - | 0.20 s |"
    )
    assert row.endswith("| -, 0.50 s | -, 0.50 s | -, 0.50 s | eager_aggregation |\n")
    assert summary(sides)[ENGINE] == {
        "seconds": [2.0],
        "median_seconds": 2.0,
        "trouble": None,
        "rules": ["eager_aggregation"],
        "rules_for_many_slots": ["x"],
        "faster_than_plain": None,
        "faster_than_tuned": 1.5,
        "hottest_task_ms": 300.0,
        "hottest_task_behind_a_shuffle_ms": 200.0,
        "hottest_to_median": 1.0,
        "makespan_ms": {16: 500.0, 64: 500.0, 256: 500.0},
    }
