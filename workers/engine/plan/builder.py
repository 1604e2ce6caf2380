"""The plan that a query means, before any rule has looked at it."""

from __future__ import annotations

from service.spec.bound import (
    BoundCall,
    BoundDerived,
    BoundJoin,
    BoundName,
    BoundQuery,
    BoundSource,
    BoundTable,
    BoundUnion,
    BoundWindow,
)
from service.spec.scalar import column
from service.spec.strategies import JoinLocal, JoinShip, JoinSkew
from service.spec.types import known
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Filter,
    Join,
    JoinStrategy,
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
from workers.engine.plan.scalars import compose, fresh_name
from workers.engine.plan.schema import names_of, output_of, window_type
from workers.engine.plan.transform import transform_up


def build(query: BoundQuery) -> Node:
    """Scan and joins, then WHERE, aggregate, HAVING, ORDER BY, LIMIT and SELECT; what the query lacks is left out.

    The root is always the `Project` of SELECT, whose output is `query.output`. The plan of a derived table stands where
    a scan would, its own `Project` emitting `alias.column`.
    """
    return Project(_selected_rows(query), _named(query.select))


def _selected_rows(query: BoundQuery) -> Node:
    """Everything but SELECT."""
    node = _rows(query)
    if query.is_aggregate:
        calls = tuple(_call(call) for call in query.calls)
        node = (
            Aggregate(node, _named(query.keys), calls, grouping_sets=query.grouping_sets)
            if query.window is None
            else _by_window(node, query.window, _named(query.keys), calls)
        )
    if query.having is not None:
        node = Filter(node, query.having)
    # A constant orders nothing, and an integer would be a column's position to Spark.
    order = [key for key in query.order_by if key.expression.columns]
    if order:
        node = Sort(node, tuple(SortItem(key.expression, key.direction, key.nulls) for key in order))
    if query.limit is not None:
        node = Limit(node, query.limit)
    return node


def _by_window(node: Node, window: BoundWindow, keys: tuple[Named, ...], calls: tuple[Call, ...]) -> Node:
    """Groups of `node` by the window and `keys`, with the window's start and end in place of the window.

    The aggregate has the window in one piece: a stream drops by it what it keeps of the groups.
    """
    delays = {mark.alias: mark for mark in window.watermarks}

    def watermarked(scan: Node) -> Node:
        mark = delays.get(scan.alias) if isinstance(scan, Scan) else None
        return scan if mark is None else Watermark(scan, column(mark.column, window.start.type), mark.delay_ms)

    below = transform_up(node, watermarked)
    taken = names_of(below) | {item.name for item in keys} | {call.output.name for call in calls}
    name = fresh_name("$window", taken | {window.start.name, window.end.name})
    rows = Windows(below, window.column, window.size_ms, window.slide_ms, name)
    whole = column(name, window_type(window.start.type))
    groups = Aggregate(rows, (Named(whole, name), *keys), calls)
    ends = (
        Named(compose("{0}.`start`", (whole,), window.start.type), window.start.name),
        Named(compose("{0}.`end`", (whole,), window.end.type), window.end.name),
    )
    others = tuple(Named(column(field.name, known(field.type)), field.name) for field in output_of(groups)[1:])
    return Project(groups, (*ends, *others))


def _rows(query: BoundQuery) -> Node:
    node = _source(query.source)
    for join in query.joins:
        node = Join(node, _source(join.right), join.kind, join.keys, join.residual, strategy=_strategy(join))
    return node if query.where is None else Filter(node, query.where)


def _strategy(join: BoundJoin) -> JoinStrategy:
    return JoinStrategy(join.ship or JoinShip.AUTO, join.local or JoinLocal.AUTO, join.skew or JoinSkew.AUTO)


def _source(source: BoundSource) -> Node:
    if isinstance(source, BoundTable):
        return Scan(source.table, source.alias, source.columns)
    if isinstance(source.query, BoundUnion):
        return Union(tuple(_derived(source, branch) for branch in source.query.queries))
    return _derived(source, source.query)


def _derived(source: BoundDerived, query: BoundQuery) -> Project:
    """The rows of one query of a derived table, under the names by which the query around it knows them."""
    expressions = {item.name: item.expression for item in query.select}
    items = tuple(Named(expressions[name], field.name) for field, name in source.columns)
    return Project(_selected_rows(query), items)


def _named(names: tuple[BoundName, ...]) -> tuple[Named, ...]:
    return tuple(Named(name.expression, name.name) for name in names)


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
