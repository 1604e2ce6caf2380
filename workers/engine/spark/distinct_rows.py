"""Each of a DataFrame's rows once, within a task and then within a partition: without a state, so that streams may."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame


def rows_once(frame: DataFrame) -> DataFrame:
    """The rows, parted and sorted by all columns, without those that a mini-batch has twice.

    Nearly all of the time of a stream that tells its rows apart goes into looking rows up in its state, RocksDB's twice
    for one that it has. What comes twice in a mini-batch is dropped here before it is shuffled and before it is looked
    up; and in order, neighbours are found where the last one was.

    Spark has just that operator, which it plans for `row_number() = 1`, a window that it refuses over a stream though
    no row of an earlier mini-batch is in it. So the operator is put there by itself: a sort by the columns, and the
    first row of each group of equals, before the shuffle and behind it.
    """
    session: Any = frame.sparkSession
    # As it was analysed, by which the names of its columns are told from others alike.
    plan = _plan(frame)
    # The operator wants an order among equals, for which any will do.
    order = _plan(frame.sort(F.lit(""))).order()
    spark = session._jvm.org.apache.spark.sql
    number = spark.catalyst.expressions.RowNumber()
    first = spark.catalyst.plans.logical.WindowGroupLimit(plan.output(), order, number, 1, plan)
    return ClassicDataFrame(spark.classic.Dataset.ofRows(session._jsparkSession, first), session)


def _plan(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()
