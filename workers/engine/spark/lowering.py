"""Plan nodes as DataFrames. Only expressions that passed the allow-list (`Scalar.sql`) reach Spark as text."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.spec.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.spec.scalar import Scalar, quoted
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    Named,
    Node,
    PlanFunction,
    Project,
    Scan,
    Sort,
    SortItem,
)

_JOIN_TYPES = {
    JoinKind.INNER: "inner",
    JoinKind.LEFT: "left_outer",
    JoinKind.RIGHT: "right_outer",
    JoinKind.FULL: "full_outer",
    JoinKind.LEFT_SEMI: "left_semi",
    JoinKind.LEFT_ANTI: "left_anti",
    JoinKind.CROSS: "cross",
}

_SPARK_NAMES: dict[AggregateFunction | PlanFunction, str] = {
    AggregateFunction.FIRST_VALUE: "min_by",
    AggregateFunction.LAST_VALUE: "max_by",
}
"""Where Spark's name differs. First and last by a column are its smallest and largest: Spark's own
`first_value` takes whatever row comes first."""


def lower(node: Node, scans: Mapping[str, DataFrame]) -> DataFrame:
    """The DataFrame that computes `node`, with the columns of `output_of(node)` in their order.

    `scans` has a DataFrame for every alias, its columns named `alias.column`. Nothing runs yet.
    """
    if isinstance(node, Scan):
        return scans[node.alias].select([F.col(quoted(field.name)) for field, _ in node.columns])
    if isinstance(node, Join):
        return _join(node, lower(node.left, scans), lower(node.right, scans))
    return _unary(node, lower(node.input, scans))


def _unary(
    node: Filter | Project | Aggregate | Expand | Exchange | Sort | Limit,
    frame: DataFrame,
) -> DataFrame:
    match node:
        case Filter():
            return frame.filter(_expression(node.condition))
        case Project():
            return frame.select([_named(item) for item in node.items])
        case Aggregate():
            return _aggregate(node, frame)
        case Expand():
            return frame.select("*", F.expr(f"explode(sequence(1, {node.branches}))").alias(node.name))
        case Exchange():
            # No number of partitions: Spark then may coalesce them, and plans the aggregate above without another one.
            return frame.repartition(*[_expression(key) for key in node.keys])
        case Sort():
            return frame.orderBy([_sort_key(item) for item in node.keys])
        case Limit():
            return frame.limit(node.count)


def _expression(scalar: Scalar) -> Column:
    return F.expr(scalar.sql)


def _named(item: Named) -> Column:
    return _expression(item.expression).alias(item.name)


def _join(node: Join, left: DataFrame, right: DataFrame) -> DataFrame:
    conditions = [f"({one.sql}) = ({other.sql})" for one, other in node.keys]
    if node.residual is not None:
        conditions.append(f"({node.residual.sql})")
    if not conditions:
        return left.crossJoin(right)
    return left.join(right, F.expr(" AND ".join(conditions)), _JOIN_TYPES[node.kind])


def _aggregate(node: Aggregate, frame: DataFrame) -> DataFrame:
    keys = [_named(key) for key in node.keys]
    calls = [F.expr(call_sql(call)).alias(call.output.name) for call in node.calls]
    if calls:
        return frame.groupBy(*keys).agg(*calls)
    if keys:
        return frame.select(keys).distinct()
    # One row of no columns, whatever comes in.
    return frame.agg(F.count(F.lit(1))).select()


def call_sql(call: Call) -> str:
    """The call in Spark's SQL: ``count(DISTINCT `o.d`) FILTER (WHERE `o.ok`)``."""
    arguments = [argument.sql for argument in call.arguments]
    if call.order_by is not None:
        arguments.append(call.order_by.sql)
    name = _SPARK_NAMES.get(call.function, call.function.value.lower())
    inner = ", ".join(arguments) or "*"
    text = f"{name}({'DISTINCT ' if call.distinct else ''}{inner})"
    return f"{text} FILTER (WHERE {call.filter.sql})" if call.filter is not None else text


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
