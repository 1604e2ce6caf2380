"""Tests a fixed sample of the random queries of `tests/conformance/fuzz.py`."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.conformance.fuzz import run
from tests.support.counts import count

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20_261_126
SECONDS = 3_000.0


def test_random_queries_have_the_rows_of_spark_and_duckdb(spark: SparkSession) -> None:
    queries = count(sample=40, full=2_000)
    tally = run(spark, SEED, range(queries), SECONDS)
    assert tally.differences == []
    assert tally.outcomes["queries"] == queries
    assert tally.outcomes["refused"] <= queries // 20
