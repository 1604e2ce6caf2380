"""Yields the trees of all expressions of a bound query."""

from __future__ import annotations

from collections.abc import Iterator

from service.sql.expressions.nodes import Aggregate, Comparison, Expression
from service.sql.expressions.scalar import Scalar
from service.sql.resolve.bound import BoundCall, BoundQuery


def trees_of(query: BoundQuery) -> Iterator[Expression]:
    """Yields the expressions of one query, without those of the queries inside it and of calls with OVER."""
    for join in query.joins:
        for left, right in join.keys:
            yield Comparison("=", left.tree, right.tree)
        yield from _of(join.residual)
    yield from _of(*(argument for generator in query.generators for argument in generator.arguments))
    yield from _of(query.where, query.having)
    yield from _of(*(key.expression for key in query.keys))
    yield from _of(*(item.expression for item in query.select), *(item.expression for item in query.order_by))
    for call in query.calls:
        yield _call(call)


def _call(call: BoundCall) -> Expression:
    arguments = tuple(argument.tree for argument in call.arguments)
    condition = call.filter.tree if call.filter is not None else None
    order_by = call.order_by.tree if call.order_by is not None else None
    return Aggregate(call.function, arguments, call.distinct, condition, order_by, None, call.descending)


def _of(*scalars: Scalar | None) -> Iterator[Expression]:
    yield from (scalar.tree for scalar in scalars if scalar is not None)
