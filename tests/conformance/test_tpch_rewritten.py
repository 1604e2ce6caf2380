"""Tests of TPC-H's 22 queries with rewritten plans against DuckDB.

The tables are so small that the engine would keep most of Spark's plans. Here, they are planned as if they were a
thousand times larger, as at scale factor 10, and once more with all rewrites forced. The tests list the rules that must
fire for each query, so that none stops firing unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.conformance.combinations import ALL_FORCED
from tests.conformance.duckdb_comparison import DuckDBComparison, rules_for
from tests.conformance.tpch_workload import QUERIES, generate, specified

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCALE, TIMES = "0.01", 1000

BY_COST = {
    "eager_aggregation": {"q04", "q13", "q22"},
    "join_order": {"q07", "q21"},
    "join_strategy": {"q03", "q20"},
    "semi_join_reduction": {"q02", "q07", "q08", "q09", "q16", "q17"},
}
"""The queries for which a rule fires with large tables and default settings, by rule. The others run as in
`test_tpch.py`."""

JOINLESS = {"q01", "q06"}
FORCED = {
    "eager_aggregation": {"q02", "q04", "q11", "q12", "q13", "q17", "q18", "q21", "q22"},
    "join_strategy": set(QUERIES) - JOINLESS,
    "skewed_join": {"q02", "q03", "q05", "q07", "q08", "q09", "q10", "q18", "q20", "q21"},
    "split_distinct_aggregate": {"q16"},
    "two_phase_aggregate": set(QUERIES) - {"q03", "q06", "q14", "q16", "q19"},
}
"""The queries for which a rule fires if all supported rewrites are forced, by rule."""


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBComparison]:
    """The generated tables."""
    with DuckDBComparison(spark, generate(tmp_path_factory.mktemp("tpch"), SCALE)) as found:
        yield found


@pytest.mark.parametrize("query", sorted(set().union(*BY_COST.values())))
def test_engine_agrees_with_duckdb_for_large_tables(tables: DuckDBComparison, query: str) -> None:
    answer = tables.ask(specified(query), specified(query), times=TIMES)
    assert answer.rows
    assert answer.difference is None
    assert answer.fired >= rules_for(query, BY_COST)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("query", QUERIES)
def test_engine_agrees_with_duckdb_with_all_rewrites_forced(tables: DuckDBComparison, query: str) -> None:
    answer = tables.ask(specified(query), specified(query), ALL_FORCED, times=TIMES)
    assert answer.rows
    assert answer.difference is None
    assert answer.fired >= rules_for(query, FORCED)
