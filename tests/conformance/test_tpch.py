"""Tests of TPC-H's 22 queries with default settings against DuckDB, at `SCALE`.

Rows are compared in order; floats within 1e-9, quotients within 1e-6: DuckDB divides decimals as doubles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conformance.duckdb_comparison import DuckDBComparison
from tests.conformance.tpch_workload import QUERIES, generate, specified

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCALE = os.environ.get("EVENKEEL_TPCH_SCALE", "0.1")


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBComparison]:
    """The generated tables."""
    with DuckDBComparison(spark, generate(tmp_path_factory.mktemp("tpch"), SCALE)) as found:
        yield found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("query", QUERIES)
def test_engine_agrees_with_duckdb(tables: DuckDBComparison, query: str) -> None:
    answer = tables.ask(specified(query), specified(query))
    assert answer.rows
    assert answer.difference is None
