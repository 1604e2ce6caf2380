"""Builds the Spark plan: translates the nodes of a plan into DataFrames (`lower`), and prints the physical plan.

Spark gets only expressions that passed the allow-list, as text (`Scalar.sql`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any
from uuid import uuid4

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.types import StructField

from service.contract.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.sql.expressions.analysis import columns_by_name, conjuncts_of
from service.sql.expressions.scalar import Scalar, column, quoted
from service.sql.joins import Side
from workers.engine.plan.explain import seconds
from workers.engine.plan.expressions import call_sql, fresh_name, generator_sql, join_condition, values_sql
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Project,
    Recursion,
    Scan,
    Sort,
    SortItem,
    StepRows,
    UnaryNode,
    Union,
    Values,
    Watermark,
    WindowFunctions,
    Windows,
    Within,
    inputs_of,
    output_of,
)
from workers.engine.plan.recursion import recursion_sql

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


def lower(node: Node, scans: Mapping[str, DataFrame], session: SparkSession | None = None) -> DataFrame:
    """Returns the DataFrame that computes `node`, with the columns of `output_of(node)` in their order.

    `scans` has a DataFrame for each alias, with columns named `alias.column`. `session` is theirs, which rows of
    constants need too; by default, it is that of a scan or the active one. Nothing is executed.
    """
    if isinstance(node, Scan):
        return _scan(scans[node.alias], [field.name for field, _ in node.columns])
    if isinstance(node, Values):
        of_scan = next((frame.sparkSession for frame in scans.values()), None)
        return (session or of_scan or SparkSession.active()).sql(values_sql(node))
    if isinstance(node, StepRows):
        raise TypeError("a step is lowered inside its recursion only")
    inputs = [lower(child, scans, session) for child in inputs_of(node)]
    if isinstance(node, Recursion):
        return _recursion(node, inputs)
    if isinstance(node, Join):
        return _join(node, inputs[0], inputs[1])
    if isinstance(node, Union):
        return reduce(DataFrame.union, inputs)
    if isinstance(node, MultisetOperation):
        return inputs[0].exceptAll(inputs[1]) if node.kind == "except_all" else inputs[0].intersectAll(inputs[1])
    return _unary(node, inputs[0])


def physical_plan(frame: DataFrame) -> str:
    """Returns the physical plan as Spark prints it (`EXPLAIN FORMATTED`). Nothing is executed."""
    jvm = frame.sparkSession.sparkContext._jvm
    if jvm is None:
        raise RuntimeError("the session has no JVM")
    return str(jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted"))


def _scan(frame: DataFrame, names: list[str]) -> DataFrame:
    # Spark would analyse even a projection that changes nothing.
    return frame if frame.columns == names else frame.selectExpr(*map(quoted, names))


def _recursion(node: Recursion, inputs: Sequence[DataFrame]) -> DataFrame:
    """Returns the rows of a recursive query. It has no DataFrame function, so the inputs become views while Spark
    analyses its text.
    """
    session = inputs[0].sparkSession
    names = [f"recursion_{uuid4().hex}" for _ in range(len(inputs) + 1)]
    for name, frame in zip(names[1:], inputs, strict=True):
        frame.createOrReplaceTempView(name)
    try:
        definition = recursion_sql(node, names[0], names[1:])
        return session.sql(f"WITH RECURSIVE {definition} SELECT * FROM {names[0]}")  # noqa: S608 - from trees
    finally:
        for name in names[1:]:
            session.catalog.dropTempView(name)


def _unary(
    node: UnaryNode,
    frame: DataFrame,
) -> DataFrame:
    match node:
        case Watermark():
            return _watermark(node, frame)
        case Windows():
            return _windows(node, frame)
        case Filter():
            # A string takes one call of the JVM, a Column several. The same holds for the projection.
            return frame.filter(node.condition.sql)
        case Project():
            return frame.selectExpr(*(_aliased(item.expression.sql, item.name) for item in node.items))
        case Aggregate():
            return _aggregate(node, frame)
        case Deduplicate():
            return (distinct_in_batch(frame) if frame.isStreaming else frame).dropDuplicates()
        case Expand():
            return frame.select("*", F.expr(f"explode(sequence(1, {node.branches}))").alias(node.name))
        case Generate():
            return frame.selectExpr("*", generator_sql(node))
        case WindowFunctions():
            return frame.selectExpr("*", *(_aliased(call.expression.sql, call.name) for call in node.calls))
        case Exchange():
            return _exchange(node, frame)
        case Sort():
            return frame.orderBy([_sort_key(item) for item in node.keys])
        case Limit():
            frame = frame.offset(node.offset) if node.offset else frame
            return frame if node.count is None else frame.limit(node.count)


def _watermark(node: Watermark, frame: DataFrame) -> DataFrame:
    # A name without dots: Spark splits the name at its dots, even in back quotes.
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
    # If two columns have a watermark, Spark uses one of them to drop state, and not always the window.
    columns = (
        F.col(quoted(name)).alias(name, metadata=_NO_EVENT_TIME) if name == node.column.column else F.col(quoted(name))
        for name in frame.columns
    )
    return frame.select("*", window).select(*columns, F.col(quoted(node.name)))


def _exchange(node: Exchange, frame: DataFrame) -> DataFrame:
    keys = [_expression(key) for key in node.keys]
    if node.partitions is not None:
        return frame.repartition(node.partitions, *keys)
    # Without a number of partitions, Spark may coalesce them, and needs no other exchange for the aggregate above.
    return frame.repartition(*keys) if keys else frame.hint("rebalance")


def distinct_in_batch(frame: DataFrame) -> DataFrame:
    """Returns the rows without those that occur twice in a mini-batch, partitioned and sorted by all columns.

    It has no state, so streams can use it. Almost all the time of a stream with distinct rows is spent on look-ups in
    its state; RocksDB takes twice as long if the row is there. So duplicates within a mini-batch are dropped before the
    shuffle and again before the look-up. Sorted rows also make look-ups faster.

    Spark has this operator: it plans it for `row_number() = 1`. But Spark refuses that window on a stream, although it
    needs no row of an earlier mini-batch. So the operator is inserted directly: Spark sorts by the columns, and keeps
    the first row of each group of equal rows, before and after the shuffle.
    """
    session: Any = frame.sparkSession
    # The analysed plan distinguishes columns with the same name.
    plan = _analysed(frame)
    # The operator requires an order among equal rows. Any order will do.
    order = _analysed(frame.sort(F.lit(""))).order()
    spark = session._jvm.org.apache.spark.sql
    number = spark.catalyst.expressions.RowNumber()
    first = spark.catalyst.plans.logical.WindowGroupLimit(plan.output(), order, number, 1, plan)
    return ClassicDataFrame(spark.classic.Dataset.ofRows(session._jsparkSession, first), session)


def _analysed(frame: Any) -> Any:
    return frame._jdf.queryExecution().analyzed()


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


def _join_of_streams(node: Join, within: Within, left: DataFrame, right: DataFrame) -> DataFrame:
    """Joins two streams within a time interval. Each side has its event time in one separate column.

    Spark derives from the keys and conditions how long it must keep a row. It takes every bound of a column for a bound
    of the event time and uses the lowest one: with `s.i > 1`, it would keep all rows, and never emit a row without a
    partner. So the only bounds in the condition are those of the interval.
    """
    sides, times = list[DataFrame](), list[Scalar]()
    for frame, time, stem in ((left, within.left, "_left_time"), (right, within.right, "_right_time")):
        name = fresh_name(stem, frozenset((*left.columns, *right.columns)))
        times.append(column(name, time.type))
        sides.append(frame.select(*map(_without_watermark, frame.schema.fields), _expression(time).alias(name)))
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


def _aggregate(node: Aggregate, frame: DataFrame) -> DataFrame:
    if node.grouping_sets:
        return _grouping_sets(node, frame)
    keys = [_named(key) for key in node.keys]
    calls = [F.expr(_aliased(call_sql(call), call.output.name)) for call in node.calls]
    if calls:
        return frame.groupBy(*keys).agg(*calls)
    if keys:
        return frame.select(keys).distinct()
    # One row without columns, for any input.
    return frame.agg(F.count(F.lit(1))).select()


def _grouping_sets(node: Aggregate, frame: DataFrame) -> DataFrame:
    # The keys are copied: Spark sets the keys that are not in a set to NULL, and the calls need the original values.
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
    # Spark requires a call. If there is none, a count is added here and dropped below.
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


def _expression(scalar: Scalar) -> Column:
    return F.expr(scalar.sql)


def _named(item: Named) -> Column:
    return F.expr(_aliased(item.expression.sql, item.name))


def _aliased(sql: str, name: str) -> str:
    return f"{sql} AS {quoted(name)}"
