"""Tests of TPC-H's 22 queries with default settings against DuckDB, at `SCALE`.

Rows are compared in order; floats within 1e-9, quotients within 1e-6: DuckDB divides decimals as doubles.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from service.contract.problems import SpecError
from tests.conformance.duckdb_comparison import DuckDBComparison
from tests.conformance.tpch_workload import QUERIES, accepted, generate, specified

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SCALE = os.environ.get("EVENKEEL_TPCH_SCALE", "0.1")

REFUSED_AS_SPECIFIED = {
    "q02": "A subquery",
    "q04": "EXISTS with a subquery",
    "q11": "A subquery",
    "q15": "A subquery",
    "q16": "A subquery",
    "q17": "A subquery",
    "q18": "A subquery",
    "q20": "A subquery",
    "q21": "EXISTS with a subquery",
    "q22": "A subquery",
}
"""The reasons for refused texts; all other texts run as specified."""


@pytest.fixture(scope="module")
def tables(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDBComparison]:
    """The generated tables."""
    with DuckDBComparison(spark, generate(tmp_path_factory.mktemp("tpch"), SCALE)) as found:
        yield found


@pytest.mark.parametrize("query", QUERIES)
def test_engine_agrees_with_duckdb(tables: DuckDBComparison, query: str) -> None:
    answer = tables.ask(accepted(query), specified(query))
    assert answer.rows
    assert answer.difference is None


def test_refusals_name_the_construct(tables: DuckDBComparison) -> None:
    refused = {}
    for query in QUERIES:
        try:
            tables.compiled(specified(query))
        except SpecError as error:
            refused[query] = error.issues[0].detail.partition(" is not supported here.")[0]
        assert (specified(query) == accepted(query)) is (query not in refused)
    assert refused == REFUSED_AS_SPECIFIED
