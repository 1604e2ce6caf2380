"""Builds the Spark plan: translates the nodes of a plan into DataFrames (`lower`), and prints the physical plan.

Spark gets only expressions that passed the allow-list, as text (`Scalar.sql`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any
from uuid import uuid4

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    MapType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import column, quoted
from workers.engine.plan.expressions import fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    Deduplicate,
    Exchange,
    Join,
    Named,
    Node,
    Project,
    Recursion,
    Scan,
    Shared,
    Watermark,
    Windows,
    inputs_of,
    output_of,
)
from workers.engine.plan.recursion import recursion_sql
from workers.engine.plan.sql import nested_sql
from workers.engine.plan.traversal import transform_up
from workers.engine.spark.logical_plans import frame_of_sql
from workers.engine.spark.stream_operators import distinct_in_batch, join_of_streams, watermark, windows


class SharedFrames:
    """The DataFrames of shared nodes. Spark keeps their rows, in memory as far as there is room, from the first time
    that it computes them until `release`.
    """

    def __init__(self) -> None:
        self._frames: dict[int, tuple[Shared, DataFrame]] = {}
        self._kept: list[DataFrame] = []

    def of(self, node: Shared, make: Callable[[], DataFrame]) -> DataFrame:
        """Returns the DataFrame of `node`; `make` creates the one of its input. A node that differs from the first one
        with its number is computed by itself.
        """
        known = self._frames.get(node.number)
        if known is not None:
            return known[1] if known[0] == node else make()
        plain = make()
        # Spark also uses the rows for equal plans of other jobs, whose files may have changed. No other plan has this.
        tag = fresh_name("$shared", frozenset(plain.columns))
        kept = plain.select("*", F.lit(uuid4().int >> 65).alias(tag)).persist(StorageLevel.MEMORY_AND_DISK)
        self._frames[node.number] = (node, kept.drop(tag))
        self._kept.append(kept)
        return self._frames[node.number][1]

    def release(self) -> None:
        """Removes the rows from memory and disk, also if another thread still computes them."""
        while self._kept:
            self._kept.pop().unpersist()


def lower(
    node: Node,
    scans: Mapping[str, DataFrame],
    session: SparkSession | None = None,
    shared: SharedFrames | None = None,
) -> DataFrame:
    """Returns the DataFrame that computes `node`, with the columns of `output_of(node)` in their order.

    `scans` has a DataFrame for each alias, with columns named `alias.column`. `session` is theirs, which rows of
    constants need too; by default, it is that of a scan or the active one. Without `shared`, shared nodes are computed
    each time. Nothing is executed.
    """
    of_scan = next((frame.sparkSession for frame in scans.values()), None)
    lowering = _Lowering(session or of_scan or SparkSession.active(), scans, shared)
    return lowering.frame(transform_up(node, _with_copied_keys))


def with_texts_of_intervals(frame: DataFrame) -> DataFrame:
    """Returns a DataFrame with intervals as the texts that Spark prints: files only have their numbers."""
    types = {field.name: _without_intervals(field.dataType) for field in frame.schema.fields}
    if all(types[field.name] == field.dataType for field in frame.schema.fields):
        return frame
    return frame.select(*(F.col(quoted(name)).cast(type_).alias(name) for name, type_ in types.items()))


def _without_intervals(type_: DataType) -> DataType:
    if isinstance(type_, DayTimeIntervalType | YearMonthIntervalType | CalendarIntervalType):
        return StringType()
    if isinstance(type_, ArrayType):
        return ArrayType(_without_intervals(type_.elementType), type_.containsNull)
    if isinstance(type_, MapType):
        return MapType(_without_intervals(type_.keyType), _without_intervals(type_.valueType), type_.valueContainsNull)
    if isinstance(type_, StructType):
        return StructType(
            [StructField(field.name, _without_intervals(field.dataType), field.nullable) for field in type_.fields]
        )
    return type_


def physical_plan(frame: DataFrame) -> str:
    """Returns the physical plan as Spark prints it (`EXPLAIN FORMATTED`). Nothing is executed."""
    jvm = frame.sparkSession.sparkContext._jvm
    if jvm is None:
        raise RuntimeError("the session has no JVM")
    return str(jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted"))


def plan_with_reuse(frame: DataFrame) -> str:
    """Returns the tree of the physical plan in which Spark has replaced equal exchanges by `ReusedExchange`. Adaptive
    execution does so while the query runs. Nothing is executed.
    """
    jvm = frame.sparkSession.sparkContext._jvm
    if jvm is None:
        raise RuntimeError("the session has no JVM")
    plan = frame._jdf.queryExecution().executedPlan()
    if plan.nodeName().startswith("AdaptiveSparkPlan"):
        plan = plan.initialPlan()
    # The module of a Scala object.
    reuse = getattr(getattr(jvm.org.apache.spark.sql.execution.reuse, "ReuseExchangeAndSubquery$"), "MODULE$")
    with _active(frame.sparkSession):
        return str(reuse.apply(plan).toString())


@contextmanager
def _active(session: SparkSession) -> Iterator[None]:
    """Inside, the session is the active one of this thread. Spark's rules copy operators, and some of them, such as
    that of one row without columns, cannot be copied without it.
    """
    sessions: Any = getattr(getattr(session._jvm, "org.apache.spark.sql.classic.SparkSession$"), "MODULE$")
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            # A thread that is used for many jobs must not keep the session of an ended one.
            sessions.clearActiveSession()


class _Lowering:
    """Computes nodes by one SQL text, over the scans and those nodes that SQL does not have."""

    def __init__(self, session: SparkSession, scans: Mapping[str, DataFrame], shared: SharedFrames | None) -> None:
        self._session = session
        self._scans = scans
        self._shared = shared

    def frame(self, node: Node) -> DataFrame:
        """Returns the DataFrame of `node`."""
        frame = self._frame_without_sql(node)
        return self._frame_of_sql(node) if frame is None else frame

    def _frame_of_sql(self, node: Node) -> DataFrame:
        inputs = dict[str, DataFrame]()

        def relation_of(one: Node) -> str | None:
            frame = self._frame_without_sql(one)
            if frame is None and isinstance(one, Scan):
                frame = self._scans[one.alias]
            if frame is None:
                return None
            name = f"input_{len(inputs)}"
            inputs[name] = frame
            return name

        return frame_of_sql(self._session, nested_sql(node, relation_of), inputs)

    @cached_property
    def _has_streams(self) -> bool:
        return any(frame.isStreaming for frame in self._scans.values())

    def _frame_without_sql(self, node: Node) -> DataFrame | None:
        """Returns the DataFrame of a node without SQL, or without SQL that shares its rows; None for others."""
        match node:
            case Shared() if self._shared is not None:
                return self._shared.of(node, lambda: self.frame(node.input))
            case Recursion():
                return _recursion(node, [self.frame(child) for child in inputs_of(node)])
            case Watermark():
                return watermark(node, self.frame(node.input))
            case Windows():
                return windows(node, self.frame(node.input))
            case Deduplicate() if self._has_streams:
                frame = self.frame(node.input)
                return (distinct_in_batch(frame) if frame.isStreaming else frame).dropDuplicates()
            case Exchange() if node.partitions is not None:
                # A hint takes no expressions.
                return self.frame(node.input).repartition(node.partitions, *(F.expr(key.sql) for key in node.keys))
            case Join() if node.within is not None:
                return join_of_streams(node, node.within, self.frame(node.left), self.frame(node.right))
            case Scan() if not node.columns:
                return self._scans[node.alias].select()
            case Project() if not node.items:
                return self.frame(node.input).select()
            case Aggregate() if not node.keys and not node.calls:
                return self.frame(node.input).agg(F.count(F.lit(1))).select()
        return None


def _with_copied_keys(node: Node) -> Node:
    """Returns an aggregate with grouping sets over copies of its keys, and other nodes as they are.

    In SQL, an item is a key only if Spark finds that both are the same expression, which it does not for lambda
    functions, and a constant is a position.
    """
    if not isinstance(node, Aggregate) or not node.grouping_sets:
        return node
    fields = output_of(node.input)
    taken, names = frozenset(field.name for field in fields), list[str]()
    for _ in node.keys:
        names.append(fresh_name(f"$key{len(names)}", taken | frozenset(names)))
    copies = [column(name, key.expression.type) for name, key in zip(names, node.keys, strict=True)]
    items = [Named(column(field.name, field.type), field.name) for field in fields]
    items += (Named(key.expression, name) for name, key in zip(names, node.keys, strict=True))
    copy_of = {key.expression.sql: copy for key, copy in zip(node.keys, copies, strict=True)}
    calls = tuple(
        replace(call, arguments=(copy_of[call.arguments[0].sql],))
        if call.function is AggregateFunction.GROUPING
        else call
        for call in node.calls
    )
    keys = tuple(Named(copy, key.name) for copy, key in zip(copies, node.keys, strict=True))
    return replace(node, input=Project(node.input, tuple(items)), keys=keys, calls=calls)


def _recursion(node: Recursion, inputs: Sequence[DataFrame]) -> DataFrame:
    """Returns the rows of a recursive query. Its inputs become views while Spark analyses its text."""
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
