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
)
from service.spec.strategies import JoinLocal, JoinShip, JoinSkew
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
    Within,
)
from workers.engine.plan.watermarks import with_watermarks
from workers.engine.plan.window_groups import by_window


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
            else by_window(node, query.window, _named(query.keys), calls)
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


def _rows(query: BoundQuery) -> Node:
    node = _source(query.source)
    for join in query.joins:
        node = _join(node, _source(join.right), join)
    return node if query.where is None else Filter(node, query.where)


def _join(left: Node, right: Node, join: BoundJoin) -> Join:
    times = join.within
    if times is None:
        return Join(left, right, join.kind, join.keys, join.residual, strategy=_strategy(join))
    within = Within(times.left, times.right, times.at_least_us, times.at_most_us)
    left, right = (with_watermarks(side, times.watermarks) for side in (left, right))
    return Join(left, right, join.kind, join.keys, join.residual, strategy=_strategy(join), within=within)


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
