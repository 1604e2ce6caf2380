"""Each of a DataFrame's rows once, within a task and then within a partition: without a state, so that streams may.

Plan nodes as DataFrames. Only expressions that passed the allow-list (`Scalar.sql`) reach Spark as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructField

from service.contract.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.sql.expressions.analysis import columns_by_name, conjuncts_of
from service.sql.expressions.scalar import Scalar, column, quoted
from service.sql.statements.join_hints import Side
from workers.engine.plan.explain import seconds
from workers.engine.plan.expressions import call_sql, fresh_name, join_condition
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
    Within,
    output_of,
)


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
        return _scanned(scans[node.alias], [field.name for field, _ in node.columns])
    if isinstance(node, Join):
        return _join(node, lower(node.left, scans), lower(node.right, scans))
    if isinstance(node, Union):
        return reduce(DataFrame.union, (lower(branch, scans) for branch in node.inputs))
    return _unary(node, lower(node.input, scans))


def _scanned(frame: DataFrame, names: list[str]) -> DataFrame:
    # A projection that changes nothing costs Spark an analysis.
    return frame if frame.columns == names else frame.selectExpr(*map(quoted, names))


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
            # A text takes one call of the JVM, a Column several. So it is with the projection and the aggregate.
            return frame.filter(node.condition.sql)
        case Project():
            return frame.selectExpr(*(_aliased(item.expression.sql, item.name) for item in node.items))
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


_DELAY = "spark.watermarkDelayMs"
"""What Spark knows of a column with a watermark."""

_NO_EVENT_TIME = {"evenkeel.eventTime": "in another column"}
"""What Spark is to know in its place; nothing at all would leave it that."""


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
    return F.expr(_aliased(item.expression.sql, item.name))


def _aliased(sql: str, name: str) -> str:
    return f"{sql} AS {quoted(name)}"


def _join_of_streams(node: Join, within: Within, left: DataFrame, right: DataFrame) -> DataFrame:
    """Each side has its event time in a column of its own for Spark to forget rows by, and in no other.

    Spark reads from keys and conditions itself how long rows are needed, takes any bound of a column for one of the
    event time, and goes by the lowest: with `s.i > 1` it forgets no row, and never emits one without a partner. So it
    is shown no bounds but these.
    """
    sides, times = list[DataFrame](), list[Scalar]()
    for frame, time, stem in ((left, within.left, "_left_time"), (right, within.right, "_right_time")):
        name = fresh_name(stem, frozenset((*left.columns, *right.columns)))
        times.append(column(name, time.type))
        sides.append(frame.select(*map(_timeless, frame.schema.fields), _expression(time).alias(name)))
    one, other = (time.sql for time in times)
    # A row without time or key finds no partner, ever. Told so, Spark does not keep it, and emits it at once where the
    # join keeps it; in a state it would stay, and two keys that are NULL be equal.
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


def _timeless(field: StructField) -> Column:
    """A column, of which Spark forgets that it has a watermark."""
    plain = F.col(quoted(field.name))
    return plain.alias(field.name, metadata=_NO_EVENT_TIME) if _DELAY in field.metadata else plain


def _seconds(microseconds: int) -> str:
    return f"INTERVAL '{seconds(microseconds).removesuffix('s')}' SECOND"


def _join(node: Join, left: DataFrame, right: DataFrame) -> DataFrame:
    if node.within is not None:
        return _join_of_streams(node, node.within, left, right)
    condition = join_condition(node)
    left, right = _hinted(node, left, right)
    if not condition:
        return left.crossJoin(right)
    return left.join(right, F.expr(condition), _JOIN_TYPES[node.kind])


def _hinted(node: Join, left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    if node.strategy.hint is None:
        return left, right
    name, side = node.strategy.hint
    return (left.hint(name), right) if side is Side.LEFT else (left, right.hint(name))


def _aggregate(node: Aggregate, frame: DataFrame) -> DataFrame:
    if node.grouping_sets:
        return _grouping_sets(node, frame)
    keys = [_named(key) for key in node.keys]
    calls = [F.expr(_aliased(call_sql(call), call.output.name)) for call in node.calls]
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
