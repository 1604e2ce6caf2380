"""SQL queries in Spark's status store: the right one, after its end, with a limited number of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from workers.engine.spark import status_store
from workers.engine.spark.monitor import SparkMonitor, operators_of
from workers.engine.spark.status_store import StatusStore

pytestmark = pytest.mark.spark

Jobs = Callable[[str, Callable[[], object]], list[int]]


@pytest.fixture
def jobs(spark: SparkSession) -> Iterator[Jobs]:
    """Runs something, and gives the numbers of its Spark jobs."""
    context: SparkContext = spark.sparkContext

    def run(tag: str, work: Callable[[], object]) -> list[int]:
        context.addJobTag(tag)
        try:
            work()
        finally:
            context.removeJobTag(tag)
        # Waits until Spark has heard of their end.
        SparkMonitor(context).outcome(tag)
        return StatusStore(context).job_ids(tag)

    yield run
    context.clearJobTags()


def test_the_query_of_these_jobs_is_found_among_others(spark: SparkSession, jobs: Jobs, tmp_path: Path) -> None:
    wanted = jobs("wanted", lambda: spark.range(40).write.parquet(str(tmp_path / "wanted")))
    jobs("other", lambda: spark.range(7).write.parquet(str(tmp_path / "other")))
    found = StatusStore(spark.sparkContext).execution(spark.newSession(), wanted)
    assert found is not None
    operators = operators_of(found)
    assert operators[0].operator.startswith("Execute InsertInto")
    assert operators[0].rows == 40
    assert not found.is_cut


def test_there_is_no_query_without_jobs_or_after_a_failure(spark: SparkSession, jobs: Jobs, tmp_path: Path) -> None:
    def fail() -> None:
        failing = spark.range(10).selectExpr("raise_error('zz') AS e")
        with pytest.raises(PySparkException, match="zz"):
            failing.write.parquet(str(tmp_path / "failed"))

    store = StatusStore(spark.sparkContext, sleep=lambda _: None)
    assert store.execution(spark, jobs("fails", fail)) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status_store, "_SETTLE_SECONDS", 0.0)
        assert store.execution(spark, []) is None
        assert store.execution(spark, [1_000_000]) is None


def test_a_plan_of_many_operators_is_cut(
    spark: SparkSession, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status_store, "MOST_OPERATORS", 5)
    monkeypatch.setattr(status_store, "_MOST_MEASURED", 6)
    query = spark.range(20).repartition(3).selectExpr("id % 3 AS k").groupBy("k").count()
    found = StatusStore(spark.sparkContext).execution(
        spark, jobs("many", lambda: query.write.parquet(str(tmp_path / "many")))
    )
    assert found is not None
    assert found.is_cut
    assert len(found.nodes) == 5
    assert found.values == {}, "what so many counted is not read"
    assert all(each.rows is None for each in operators_of(found))
