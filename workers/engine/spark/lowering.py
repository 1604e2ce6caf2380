"""Plan nodes as DataFrames. Only expressions that passed the allow-list (`Scalar.sql`) reach Spark as text."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.spec.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.spec.scalar import Scalar, quoted
from service.spec.strategies import JoinLocal, JoinShip
from workers.engine.plan.calls import call_sql
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    Named,
    Node,
    Project,
    Scan,
    Sort,
    SortItem,
    Union,
    Watermark,
    Windows,
)
from workers.engine.plan.scalars import fresh_name
from workers.engine.spark.distinct_rows import rows_once

_JOIN_TYPES = {
    JoinKind.INNER: "inner",
    JoinKind.LEFT: "left_outer",
    JoinKind.RIGHT: "right_outer",
    JoinKind.FULL: "full_outer",
    JoinKind.LEFT_SEMI: "left_semi",
    JoinKind.LEFT_ANTI: "left_anti",
    JoinKind.CROSS: "cross",
}


def lower(node: Node, scans: Mapping[str, DataFrame]) -> DataFrame:
    """The DataFrame that computes `node`, with the columns of `output_of(node)` in their order.

    `scans` has a DataFrame for every alias, its columns named `alias.column`. Nothing runs yet.
    """
    if isinstance(node, Scan):
        return scans[node.alias].select([F.col(quoted(field.name)) for field, _ in node.columns])
    if isinstance(node, Join):
        return _join(node, lower(node.left, scans), lower(node.right, scans))
    if isinstance(node, Union):
        return reduce(DataFrame.union, (lower(branch, scans) for branch in node.inputs))
    return _unary(node, lower(node.input, scans))


def _unary(
    node: Watermark | Windows | Filter | Project | Aggregate | Deduplicate | Expand | Exchange | Sort | Limit,
    frame: DataFrame,
) -> DataFrame:
    match node:
        case Watermark():
            return _watermark(node, frame)
        case Windows():
            return _windows(node, frame)
        case Filter():
            return frame.filter(_expression(node.condition))
        case Project():
            return frame.select([_named(item) for item in node.items])
        case Aggregate():
            return _aggregate(node, frame)
        case Deduplicate():
            return (rows_once(frame) if frame.isStreaming else frame).dropDuplicates()
        case Expand():
            return frame.select("*", F.expr(f"explode(sequence(1, {node.branches}))").alias(node.name))
        case Exchange():
            return _exchange(node, frame)
        case Sort():
            return frame.orderBy([_sort_key(item) for item in node.keys])
        case Limit():
            return frame.limit(node.count)


_NO_EVENT_TIME = {"evenkeel.eventTime": "in the window"}
"""What Spark knows of a column in place of its watermark; nothing at all would leave it that."""


def _watermark(node: Watermark, frame: DataFrame) -> DataFrame:
    # Spark splits the name at its dots, back-quoted or not.
    taken = frozenset(frame.columns)
    plain = fresh_name("_event_time", taken)
    marked = frame.select("*", _expression(node.column).alias(plain)).withWatermark(
        plain, f"{node.delay_ms} milliseconds"
    )
    columns = (
        F.col(plain).alias(name) if name == node.column.column else F.col(quoted(name)) for name in frame.columns
    )
    return marked.select(*columns)


def _windows(node: Windows, frame: DataFrame) -> DataFrame:
    lengths = [f"{node.size_ms} milliseconds", f"{node.slide_ms} milliseconds"]
    window = F.window(_expression(node.column), *lengths).alias(node.name)
    # Of two columns with a watermark Spark takes one for when to drop a state, and not always the window.
    columns = (
        F.col(quoted(name)).alias(name, metadata=_NO_EVENT_TIME) if name == node.column.column else F.col(quoted(name))
        for name in frame.columns
    )
    return frame.select("*", window).select(*columns, F.col(quoted(node.name)))


def _exchange(node: Exchange, frame: DataFrame) -> DataFrame:
    keys = [_expression(key) for key in node.keys]
    if node.partitions is not None:
        return frame.repartition(node.partitions, *keys)
    # No number of partitions: Spark then may coalesce them, and plans the aggregate above without another one.
    return frame.repartition(*keys) if keys else frame.hint("rebalance")


def _expression(scalar: Scalar) -> Column:
    return F.expr(scalar.sql)


def _named(item: Named) -> Column:
    return _expression(item.expression).alias(item.name)


def _join(node: Join, left: DataFrame, right: DataFrame) -> DataFrame:
    equals = "<=>" if node.null_safe else "="
    conditions = [f"({one.sql}) {equals} ({other.sql})" for one, other in node.keys]
    if node.residual is not None:
        conditions.append(f"({node.residual.sql})")
    left, right = _hinted(node, left, right)
    if not conditions:
        return left.crossJoin(right)
    return left.join(right, F.expr(" AND ".join(conditions)), _JOIN_TYPES[node.kind])


def _hinted(node: Join, left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    match node.strategy.ship, node.strategy.local:
        case JoinShip.BROADCAST_LEFT, _:
            return left.hint("broadcast"), right
        case JoinShip.BROADCAST_RIGHT, _:
            return left, right.hint("broadcast")
        case _, JoinLocal.HASH_LEFT:
            return left.hint("shuffle_hash"), right
        case _, JoinLocal.HASH_RIGHT:
            return left, right.hint("shuffle_hash")
        case JoinShip.REPARTITION, _:
            return left.hint("merge"), right
        case _, JoinLocal.SORT_MERGE:
            return left.hint("merge"), right
        case _:
            return left, right


def _aggregate(node: Aggregate, frame: DataFrame) -> DataFrame:
    if node.grouping_sets:
        return _grouping_sets(node, frame)
    keys = [_named(key) for key in node.keys]
    calls = [F.expr(call_sql(call)).alias(call.output.name) for call in node.calls]
    if calls:
        return frame.groupBy(*keys).agg(*calls)
    if keys:
        return frame.select(keys).distinct()
    # One row of no columns, whatever comes in.
    return frame.agg(F.count(F.lit(1))).select()


def _grouping_sets(node: Aggregate, frame: DataFrame) -> DataFrame:
    # The keys as columns of their own: Spark turns those outside of a set to NULL, which the calls must not see.
    taken, names = frozenset(frame.columns), list[str]()
    for _ in node.keys:
        names.append(fresh_name(f"$key{len(names)}", taken | frozenset(names)))
    keyed = frame.select(
        "*", *(_expression(key.expression).alias(name) for key, name in zip(node.keys, names, strict=True))
    )
    columns = [F.col(quoted(name)) for name in names]
    sets = [[columns[position] for position in one] for one in node.grouping_sets]
    key_of = {key.expression.sql: column for key, column in zip(node.keys, columns, strict=True)}
    calls = [_grouped_call(call, key_of).alias(call.output.name) for call in node.calls]
    # Spark needs a call; without any the count of each group is left out again.
    grouped = keyed.groupingSets(sets, *columns).agg(*(calls or [F.count(F.lit(1))]))
    keys = [column.alias(key.name) for key, column in zip(node.keys, columns, strict=True)]
    return grouped.select(*keys, *(F.col(quoted(call.output.name)) for call in node.calls))


def _grouped_call(call: Call, key_of: Mapping[str, Column]) -> Column:
    if call.function is AggregateFunction.GROUPING:
        return F.grouping(key_of[call.arguments[0].sql])
    return F.grouping_id() if call.function is AggregateFunction.GROUPING_ID else F.expr(call_sql(call))


def _sort_key(item: SortItem) -> Column:
    column = _expression(item.expression)
    if item.direction is SortDirection.ASC:
        return column.asc_nulls_first() if item.nulls is NullsOrder.FIRST else column.asc_nulls_last()
    return column.desc_nulls_first() if item.nulls is NullsOrder.FIRST else column.desc_nulls_last()


def physical_plan(frame: DataFrame) -> str:
    """Spark's physical plan of `frame` as Spark prints it (`EXPLAIN FORMATTED`). Runs nothing."""
    jvm = frame.sparkSession.sparkContext._jvm
    if jvm is None:
        raise RuntimeError("the session has no JVM")
    return str(jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted"))
