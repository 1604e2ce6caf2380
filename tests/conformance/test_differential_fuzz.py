"""Tests random queries of `tests/conformance/fuzz.py` for ten minutes. The queries are the same in every run; how many
of them run depends on the machine.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.conformance.fuzz import run
from tests.support.counts import count

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MINUTES = 5


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [7_201, 7_202])
def test_random_queries_have_the_rows_of_spark_and_duckdb(spark: SparkSession, seed: int) -> None:
    queries = count(sample=2_000, full=4_000)
    tally = run(spark, seed, range(queries), count(sample=MINUTES, full=3 * MINUTES) * 60.0)
    assert tally.differences == []
    assert tally.outcomes["queries"] >= 20
    assert tally.outcomes["refused"] <= max(2, tally.outcomes["queries"] // 20)
