"""The plan that a query means, before any rule has looked at it."""

from __future__ import annotations

from service.spec.bound import BoundCall, BoundName, BoundQuery, BoundTable
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Filter,
    Join,
    Limit,
    Named,
    Node,
    Project,
    Scan,
    Sort,
    SortItem,
)


def build(query: BoundQuery) -> Node:
    """Scan and joins, then WHERE, aggregate, HAVING, ORDER BY, LIMIT and SELECT; what the query lacks is left out.

    The root is always the `Project` of SELECT, whose output is `query.output`.
    """
    node = _rows(query)
    if query.is_aggregate:
        node = Aggregate(node, _named(query.keys), tuple(_call(call) for call in query.calls))
    if query.having is not None:
        node = Filter(node, query.having)
    # A constant orders nothing, and an integer would be a column's position to Spark.
    order = [key for key in query.order_by if key.expression.columns]
    if order:
        node = Sort(node, tuple(SortItem(key.expression, key.direction, key.nulls) for key in order))
    if query.limit is not None:
        node = Limit(node, query.limit)
    return Project(node, _named(query.select))


def _rows(query: BoundQuery) -> Node:
    node: Node = _scan(query.source)
    for join in query.joins:
        node = Join(node, _scan(join.right), join.kind, join.keys, join.residual)
    return node if query.where is None else Filter(node, query.where)


def _scan(table: BoundTable) -> Scan:
    return Scan(table.table, table.alias, table.columns)


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
    )
