"""Distinct rows of a mini-batch, by Spark's operator for the first rows of a group."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.support.rows import difference
from workers.engine.spark.stream_operators import distinct_in_batch

pytestmark = pytest.mark.spark


def test_rows_of_all_types_become_distinct(spark: SparkSession) -> None:
    frame = spark.range(0, 2000, 1, 5).selectExpr(
        "id % 3 AS `a.b`",
        "IF(id % 5 = 0, NULL, CAST(id % 7 AS STRING)) AS `a``c`",
        "NAMED_STRUCT('x', id % 2, 'y', ARRAY(id % 4)) AS nested",
        "IF(id % 11 = 0, DOUBLE('NaN'), DOUBLE(id % 2)) AS d",
        "UNHEX(HEX(id % 2)) AS raw",
    )
    once = distinct_in_batch(frame)
    assert once.columns == frame.columns
    assert difference(frame.distinct().collect(), once.collect()) is None


def test_rows_are_dropped_before_and_after_the_shuffle(spark: SparkSession) -> None:
    once = distinct_in_batch(spark.range(100).selectExpr("id % 3 AS k"))
    physical = once._jdf.queryExecution().executedPlan().toString()
    operators = [line.strip(" +-*:()0123456789").split(" ")[0] for line in physical.splitlines()]
    wanted = ["WindowGroupLimit", "Sort", "Exchange", "WindowGroupLimit", "Sort"]
    assert [one for one in operators if one in wanted] == wanted
