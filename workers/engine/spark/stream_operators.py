"""Operators that only streams have: watermarks, time windows, duplicates within a mini-batch, and joins of two streams.

Each function takes and returns DataFrames.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.sql.types import StructField

from service.contract.query import JoinKind
from service.sql.expressions.analysis import columns_by_name, conjuncts_of
from service.sql.expressions.scalar import Scalar, column, quoted
from workers.engine.plan.explain import seconds
from workers.engine.plan.expressions import fresh_name
from workers.engine.plan.nodes import Join, Watermark, Windows, Within, output_of
from workers.engine.spark.logical_plans import analysed_plan, frame_of_plan

_JOIN_TYPES = {
    JoinKind.INNER: "inner",
    JoinKind.LEFT: "left_outer",
    JoinKind.RIGHT: "right_outer",
    JoinKind.FULL: "full_outer",
    JoinKind.LEFT_SEMI: "left_semi",
    JoinKind.LEFT_ANTI: "left_anti",
    JoinKind.CROSS: "cross",
}

_DELAY = "spark.watermarkDelayMs"
"""The metadata key of a column with a watermark."""

_NO_EVENT_TIME = {"evenkeel.eventTime": "in another column"}
"""Metadata that replaces that of a watermark. With empty metadata, Spark would keep the watermark."""


def watermark(node: Watermark, frame: DataFrame) -> DataFrame:
    """Returns `frame` with the watermark of the node."""
    # A name without dots: Spark splits the name at its dots, even in back quotes.
    taken = frozenset(frame.columns)
    plain = fresh_name("_event_time", taken)
    marked = frame.select("*", F.expr(node.column.sql).alias(plain)).withWatermark(
        plain, f"{node.delay_ms} milliseconds"
    )
    columns = (
        F.col(plain).alias(name) if name == node.column.column else F.col(quoted(name)) for name in frame.columns
    )
    return marked.select(*columns)


def windows(node: Windows, frame: DataFrame) -> DataFrame:
    """Returns `frame` with the column of the time windows of each row."""
    lengths = [f"{node.size_ms} milliseconds", f"{node.slide_ms} milliseconds"]
    window = F.window(F.expr(node.column.sql), *lengths).alias(node.name)
    # If two columns have a watermark, Spark uses one of them to drop state, and not always the window.
    columns = (
        F.col(quoted(name)).alias(name, metadata=_NO_EVENT_TIME) if name == node.column.column else F.col(quoted(name))
        for name in frame.columns
    )
    return frame.select("*", window).select(*columns, F.col(quoted(node.name)))


def distinct_in_batch(frame: DataFrame) -> DataFrame:
    """Returns the rows without those that occur twice in a mini-batch, partitioned and sorted by all columns.

    It has no state, so streams can use it. Almost all the time of a stream with distinct rows is spent on look-ups in
    its state; RocksDB takes twice as long if the row is there. So duplicates within a mini-batch are dropped before the
    shuffle and again before the look-up. Sorted rows also make look-ups faster.

    Spark has this operator: it plans it for `row_number() = 1`. But Spark refuses that window on a stream, although it
    needs no row of an earlier mini-batch. So the operator is inserted directly: Spark sorts by the columns, and keeps
    the first row of each group of equal rows, before and after the shuffle.
    """
    jvm: Any = frame.sparkSession._jvm
    # The analysed plan distinguishes columns with the same name.
    plan = analysed_plan(frame)
    # The operator requires an order among equal rows. Any order will do.
    order = analysed_plan(frame.sort(F.lit(""))).order()
    spark = jvm.org.apache.spark.sql
    number = spark.catalyst.expressions.RowNumber()
    first = spark.catalyst.plans.logical.WindowGroupLimit(plan.output(), order, number, 1, plan)
    return frame_of_plan(frame.sparkSession, first)


def join_of_streams(node: Join, within: Within, left: DataFrame, right: DataFrame) -> DataFrame:
    """Joins two streams within a time interval. Each side has its event time in one separate column.

    Spark derives from the keys and conditions how long it must keep a row. It takes every bound of a column for a bound
    of the event time and uses the lowest one: with `s.i > 1`, it would keep all rows, and never emit a row without a
    partner. So the only bounds in the condition are those of the interval.
    """
    sides, times = list[DataFrame](), list[Scalar]()
    for frame, time, stem in ((left, within.left, "_left_time"), (right, within.right, "_right_time")):
        name = fresh_name(stem, frozenset((*left.columns, *right.columns)))
        times.append(column(name, time.type))
        sides.append(frame.select(*map(_without_watermark, frame.schema.fields), F.expr(time.sql).alias(name)))
    one, other = (time.sql for time in times)
    # A row with a NULL time or key never has a partner. With this condition, Spark does not add it to the state, and
    # emits it at once if the join keeps it. In the state it would stay for ever, and two NULL keys would be equal.
    known = [scalar.sql for scalar in (*times, *(side for key in node.keys for side in key))]
    conditions = [f"({left.sql}) = ({right.sql})" for left, right in node.keys]
    conditions += [f"({each}) IS NOT NULL" for each in known]
    conditions += [f"{one} >= {other} + {_seconds(within.at_least_us)}"]
    conditions += [f"{one} <= {other} + {_seconds(within.at_most_us)}"]
    if node.residual is not None:
        columns = columns_by_name((*output_of(node.left), *output_of(node.right)))
        conditions += [f"greatest(({part.sql}), FALSE)" for part in conjuncts_of(node.residual, columns)]
    joined = sides[0].join(sides[1], F.expr(" AND ".join(conditions)), _JOIN_TYPES[node.kind])
    marked = {within.left.column: one, within.right.column: other}
    return joined.select(
        *(
            F.expr(marked[field.name]).alias(field.name)
            if field.name == within.event_time
            else F.col(quoted(field.name))
            for field in output_of(node)
        )
    )


def _without_watermark(field: StructField) -> Column:
    """Returns a column without its watermark."""
    plain = F.col(quoted(field.name))
    return plain.alias(field.name, metadata=_NO_EVENT_TIME) if _DELAY in field.metadata else plain


def _seconds(microseconds: int) -> str:
    return f"INTERVAL '{seconds(microseconds).removesuffix('s')}' SECOND"
