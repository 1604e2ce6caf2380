"""The shuffle files of a failed query, and those of another query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.processes import wait_for
from workers.engine.spark.shuffle_files import remove_shuffle_files

pytestmark = pytest.mark.spark


@pytest.fixture
def context(spark: SparkSession) -> Iterator[SparkContext]:
    yield spark.sparkContext
    spark.sparkContext.clearJobTags()


def shuffles(context: SparkContext) -> set[str]:
    """The numbers of the shuffles that have files."""
    place = Path(context.getConf().get("spark.local.dir") or "")
    return {path.name.split("_")[1] for path in place.rglob("shuffle_*.index")}


def groups(spark: SparkSession, item: str) -> DataFrame:
    return spark.range(0, 1000, 1, 10).selectExpr(f"{item} % 10 AS k").groupBy("k").count()


def test_files_of_a_failed_stage_are_removed_and_others_are_kept(spark: SparkSession, context: SparkContext) -> None:
    before = shuffles(context)
    # This session keeps the files of a query that succeeded.
    kept = groups(spark, "id")
    kept.collect()
    own = shuffles(context) - before
    assert own
    context.addJobTag("fails in a stage of a shuffle")
    failing = groups(spark, "if(id = 999, raise_error('zz'), id)")
    with pytest.raises(PySparkException, match="zz"):
        failing.collect()
    failed = shuffles(context) - before - own
    assert failed
    remove_shuffle_files(context)
    wait_for("the files of the failed query to be removed", lambda: not shuffles(context) & failed)
    assert shuffles(context) >= own
    # Spark itself removes the files of frames that are no longer used.
    assert failing.columns == kept.columns
