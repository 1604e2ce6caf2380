"""Builds the plan of a query before any rule is applied.

`build` is the entry point. `by_window` plans GROUP BY with a window of event time; `with_watermarks` adds watermarks
directly above the scans of streams.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Sequence
from dataclasses import replace

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import AggregateFunction, SetKind
from service.sql.expressions.scalar import Scalar, column
from service.sql.resolve.bound import (
    BoundCall,
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundRecursion,
    BoundRows,
    BoundSource,
    BoundTable,
    BoundUnion,
    BoundValues,
    BoundWatermark,
    BoundWindow,
)
from service.sql.types.data_types import BIGINT, TIMESTAMP, TIMESTAMP_NTZ, DataType, Field, known
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.implied_conditions import with_implied_conditions
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Filter,
    Generate,
    Join,
    JoinStrategy,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Project,
    Recursion,
    Scan,
    Sort,
    StepRows,
    Union,
    Values,
    Watermark,
    WindowFunctions,
    Windows,
    Within,
    inputs_of,
    names_of,
    output_of,
    window_type,
)
from workers.engine.plan.traversal import transform_up, walk_up, with_inputs


def build(query: BoundQuery) -> Node:
    """Returns the plan: scans and joins, generators, then WHERE, aggregate, HAVING, calls with OVER, ORDER BY, LIMIT
    and SELECT, as far as the query has them.

    The root is always the `Project` of SELECT, whose output is `query.output`. A derived table has a plan in place of a
    scan, whose `Project` emits `alias.column`.
    """
    return Project(_selected_rows(query), query.select)


def _selected_rows(query: BoundQuery) -> Node:
    """Returns the plan of everything except SELECT."""
    node = _rows(query)
    if query.is_aggregate:
        calls = tuple(_call(call) for call in query.calls)
        node = (
            Aggregate(node, query.keys, calls, grouping_sets=query.grouping_sets)
            if query.window is None
            else by_window(node, query.window, query.keys, calls)
        )
    if query.having is not None:
        node = Filter(node, query.having)
    if query.windows:
        node = WindowFunctions(node, query.windows)
    # Ordering by a constant has no effect, and Spark would read an integer as a column position.
    order = tuple(key for key in query.order_by if key.expression.columns)
    if order:
        node = Sort(node, order)
    if query.is_cut:
        node = Limit(node, query.limit, query.offset)
    return node


def _rows(query: BoundQuery) -> Node:
    node = _source(query.source)
    inputs = [names_of(node)]
    for join in query.joins:
        right = _source(join.right)
        inputs.append(names_of(right))
        node = _join(node, right, join, inputs)
    for each in query.generators:
        node = Generate(node, each.function, each.arguments, each.columns, each.outer)
    return node if query.where is None else Filter(node, with_implied_conditions(query.where, inputs))


def _join(left: Node, right: Node, join: BoundJoin, inputs: Sequence[Collection[str]]) -> Join:
    times = join.within
    if times is None:
        residual = None if join.residual is None else with_implied_conditions(join.residual, inputs)
        return Join(left, right, join.kind, join.keys, residual, strategy=_strategy(join))
    within = Within(times.left, times.right, times.at_least_us, times.at_most_us)
    left, right = (with_watermarks(side, times.watermarks) for side in (left, right))
    return Join(left, right, join.kind, join.keys, join.residual, strategy=_strategy(join), within=within)


def _strategy(join: BoundJoin) -> JoinStrategy:
    return JoinStrategy(join.ship or JoinShip.AUTO, join.local or JoinLocal.AUTO, join.skew or JoinSkew.AUTO)


def _source(source: BoundSource) -> Node:
    if isinstance(source, BoundTable):
        return Scan(source.table, source.alias, source.columns)
    if isinstance(source, BoundRows):
        return StepRows(0, source.columns)
    if isinstance(source, BoundValues):
        return Values(tuple(field for field, _ in source.columns), source.rows)
    if isinstance(source.query, BoundRecursion):
        return _recursion(source, source.query)
    if isinstance(source.query, BoundUnion) and source.query.kind != "union_all":
        return _multisets(source, source.query)
    if isinstance(source.query, BoundUnion):
        return Union(tuple(_derived(source, branch) for branch in source.query.queries))
    return _derived(source, source.query)


def _derived(source: BoundDerived, query: BoundQuery) -> Project:
    """Returns the rows of one query of a derived table, with the column names of the outer query."""
    expressions = {item.name: item.expression for item in query.select}
    items = tuple(Named(expressions[name], field.name) for field, name in source.columns)
    return Project(_selected_rows(query), items)


def _multisets(source: BoundDerived, union: BoundUnion) -> Project:
    first, *others = (build(branch) for branch in union.queries)
    node, kind = first, typing.cast("SetKind", union.kind)
    for other in others:
        node = MultisetOperation(node, other, kind)
    types = {field.name: field.type for field in union.output.fields}
    items = tuple(Named(column(name, known(types[name])), field.name) for field, name in source.columns)
    return Project(node, items)


def _recursion(source: BoundDerived, query: BoundRecursion) -> Project:
    """Returns the rows of a recursive query. The parts of its step that do not read the rows before become inputs."""
    first, step = (build(branch) for branch in query.queries)
    inputs = [first]

    def without_inputs(node: Node) -> Node:
        if not any(isinstance(part, StepRows) for part in walk_up(node)):
            inputs.append(node)
            return StepRows(len(inputs) - 1, tuple((field, field.name) for field in output_of(node)))
        return with_inputs(node, tuple(without_inputs(child) for child in inputs_of(node)))

    step = without_inputs(step)
    fields = tuple(Field(field.name, field.type) for field in query.output.fields)
    node = Recursion(tuple(inputs), step, fields, query.levels)
    types = {field.name: field.type for field in fields}
    items = tuple(Named(column(name, known(types[name])), field.name) for field, name in source.columns)
    return Project(node, items)


def _call(call: BoundCall) -> Call:
    return Call(
        function=call.function,
        arguments=call.arguments,
        output=call.output,
        distinct=call.distinct,
        filter=call.filter,
        order_by=call.order_by,
        descending=call.descending,
    )


def by_window(node: Node, window: BoundWindow, keys: tuple[Named, ...], calls: tuple[Call, ...]) -> Node:
    """Returns `node` grouped by the window and `keys`: it emits the window's start and end, the keys, then the calls'
    outputs.

    The aggregate has the window as one structure, by which a stream removes old groups from its state. It always has a
    call, since an aggregate without calls would emit a group before its window is closed.
    """
    time = window.column
    if window.start.type == TIMESTAMP_NTZ:
        # Spark supports watermarks only for instants. Times without a time zone are treated as UTC.
        time = column(fresh_name("$time", names_of(node)), TIMESTAMP)
    below = with_watermarks(node, window.watermarks, None if time == window.column else time)
    taken = names_of(below) | {item.name for item in keys} | {call.output.name for call in calls}
    taken |= {window.start.name, window.end.name}
    name = fresh_name("$window", taken)
    rows = Windows(below, time, window.size_ms, window.slide_ms, name)
    whole = column(name, window_type(TIMESTAMP))
    grouped = Aggregate(
        rows,
        (Named(whole, name), *keys),
        calls or (Call(AggregateFunction.COUNT, (), Field(fresh_name("$rows", taken), BIGINT)),),
    )
    ends = (_end(whole, "start", window.start), _end(whole, "end", window.end))
    shown = output_of(grouped)[1 : 1 + len(keys) + len(calls)]
    others = tuple(Named(column(field.name, known(field.type)), field.name) for field in shown)
    return Project(grouped, (*ends, *others))


def _end(whole: Scalar, part: str, field: Field) -> Named:
    instant = compose(f"{{0}}.`{part}`", (whole,), TIMESTAMP)
    return Named(instant if field.type == TIMESTAMP else cast(instant, field.type), field.name)


def with_watermarks(node: Node, marks: tuple[BoundWatermark, ...], instead: Scalar | None = None) -> Node:
    """Returns `node` with a watermark over each scan that `marks` names.

    With `instead`, a TIMESTAMP column is added under that name, and the watermark is on it. A scan with a watermark
    keeps it. In joins of streams, the time column of a side in `marks` becomes the event time.
    """
    by_alias = {mark.alias: mark for mark in marks}

    def watermarked(part: Node) -> Node:
        if isinstance(part, Watermark) and isinstance(part.input, Watermark):
            return part.input
        if isinstance(part, Join) and part.within is not None:
            return replace(part, within=_with_event_time(part, part.within, frozenset(by_alias)))
        mark = by_alias.get(part.alias) if isinstance(part, Scan) else None
        if mark is None:
            return part
        if instead is None:
            return Watermark(part, column(mark.column, TIMESTAMP), mark.delay_ms)
        made = Named(cast(column(mark.column, TIMESTAMP_NTZ), TIMESTAMP), instead.columns[0])
        kept = tuple(Named(column(field.name, known(field.type)), field.name) for field in output_of(part))
        return Watermark(Project(part, (*kept, made)), instead, mark.delay_ms)

    return transform_up(node, watermarked)


def without_watermarks(node: Node) -> Node:
    """Returns `node` without watermarks, and with joins of streams that keep all rows in their state."""

    def plain(part: Node) -> Node:
        if isinstance(part, Watermark):
            return part.input
        return replace(part, within=None) if isinstance(part, Join) else part

    return transform_up(node, plain)


def cast(value: Scalar, type_: DataType) -> Scalar:
    """Returns `value` cast to `type_`."""
    return compose(f"CAST({{0}} AS {type_})", (value,), type_)


def _with_event_time(join: Join, within: Within, aliases: frozenset[str]) -> Within:
    """Returns `within` with the time column of the side that has one of the tables `aliases` as its event time."""
    for side, time in ((join.left, within.left), (join.right, within.right)):
        if any(isinstance(part, Scan) and part.alias in aliases for part in walk_up(side)):
            return replace(within, event_time=time.column)
    return within
