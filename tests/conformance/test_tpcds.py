"""Tests of TPC-DS's 99 queries with default settings against DuckDB, at `SCALE`.

Rows are compared as multisets, and their order by the keys of ORDER BY (`tests/support/ordered_rows.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conformance.duckdb_comparison import DuckDBComparison
from tests.conformance.laboratory import interpreted
from tests.conformance.tpcds_workload import NULL_ORDER, QUERIES, generate, specified
from workers.engine.spark.statistics_cache import StatisticsCache

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCALE = os.environ.get("EVENKEEL_TPCDS_SCALE", "0.01")

WITHOUT_ROWS = 16
"""The queries that select no rows at scale factor 0.01."""


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBComparison]:
    """The generated tables. Queries share the statistics of their files, as on a worker."""
    root = generate(tmp_path_factory.mktemp("tpcds"), SCALE)
    comparison = DuckDBComparison(spark, root, known=StatisticsCache(), setting=NULL_ORDER)
    with interpreted(spark), comparison as found:
        yield found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("query", QUERIES)
def test_engine_agrees_with_duckdb(tables: DuckDBComparison, query: str) -> None:
    assert tables.ask_unordered(specified(query)).difference is None


def test_most_queries_select_rows(tables: DuckDBComparison) -> None:
    empty = [query for query in QUERIES if not tables.expected(specified(query))[1]]
    assert len(empty) <= WITHOUT_ROWS
