"""Shared nodes are computed once, and their rows do not outlive the job or reach other jobs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, Field
from workers.engine.plan.nodes import Aggregate, Call, Join, Named, Project, Scan, Shared
from workers.engine.spark.lowering import SharedFrames, lower, physical_plan

pytestmark = pytest.mark.spark

ORDERS = Scan("orders", "o", ((Field("o.k", BIGINT), "k"), (Field("o.v", BIGINT), "v")))
COUNTS = Aggregate(
    ORDERS,
    (Named(column("o.k", BIGINT), "k"),),
    (Call(AggregateFunction.SUM, (column("o.v", BIGINT),), Field("s", BIGINT)),),
)


def use(alias: str, shared: Shared) -> Project:
    return Project(shared, tuple(Named(column(name, BIGINT), f"{alias}.{name}") for name in ("k", "s")))


def twice(second: Aggregate = COUNTS) -> Join:
    left, right = use("a", Shared(COUNTS, 1)), use("b", Shared(second, 1))
    return Join(left, right, JoinKind.INNER, ((column("a.k", BIGINT), column("b.k", BIGINT)),))


def write(spark: SparkSession, path: Path, factor: int) -> None:
    """Writes one file, with the same name each time."""
    rows = spark.range(100).selectExpr("id % 3 AS k", f"id * {factor} AS v").toPandas()
    rows.to_parquet(path, index=False)


def read(spark: SparkSession, path: Path) -> dict[str, DataFrame]:
    return {"o": spark.read.parquet(f"file://{path}").toDF("o.k", "o.v")}


@pytest.fixture
def shared(spark: SparkSession) -> Iterator[SharedFrames]:
    """Nothing else is cached: other tests of the process may keep frames of their tables in the session."""
    spark.catalog.clearCache()
    frames = SharedFrames()
    yield frames
    frames.release()
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()
    assert not spark.sparkContext._jsc.getPersistentRDDs()


def test_both_uses_read_the_rows_of_one(spark: SparkSession, shared: SharedFrames, tmp_path: Path) -> None:
    write(spark, tmp_path / "orders.parquet", 1)
    scans = read(spark, tmp_path / "orders.parquet")
    frame = lower(twice(), scans, shared=shared)
    assert frame.columns == ["a.k", "a.s", "b.k", "b.s"]
    assert physical_plan(frame).count("InMemoryTableScan (") >= 2
    rows = sorted(map(tuple, frame.collect()))
    assert rows == [(0, 1683, 0, 1683), (1, 1617, 1, 1617), (2, 1650, 2, 1650)]
    assert rows == sorted(map(tuple, lower(twice(), scans).collect()))
    assert len(spark.sparkContext._jsc.getPersistentRDDs()) == 1


def test_other_queries_do_not_read_the_kept_rows(spark: SparkSession, shared: SharedFrames, tmp_path: Path) -> None:
    """Spark finds cached plans by their equality, and that of files is by their paths."""
    path = tmp_path / "orders.parquet"
    write(spark, path, 1)
    kept = lower(twice(), read(spark, path), shared=shared)
    assert sorted(map(tuple, kept.collect()))[0] == (0, 1683, 0, 1683)
    write(spark, path, 2)
    other = spark.newSession()
    assert sorted(map(tuple, lower(COUNTS, read(other, path)).collect()))[0] == (0, 3366)
    assert sorted(map(tuple, kept.collect()))[0] == (0, 1683, 0, 1683)


def test_a_node_that_differs_is_computed_by_itself(spark: SparkSession, shared: SharedFrames, tmp_path: Path) -> None:
    write(spark, tmp_path / "orders.parquet", 1)
    largest = Aggregate(
        ORDERS, COUNTS.keys, (Call(AggregateFunction.MAX, (column("o.v", BIGINT),), Field("s", BIGINT)),)
    )
    frame = lower(twice(largest), read(spark, tmp_path / "orders.parquet"), shared=shared)
    assert sorted(map(tuple, frame.collect())) == [(0, 1683, 0, 99), (1, 1617, 1, 97), (2, 1650, 2, 98)]
