"""Leaving out of a bound query what nothing reads: columns of tables and of inner queries, and aggregates of those.

What Spark would prune by itself is pruned here, so that plans, statistics and files read are as small as they can be.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from service.spec.bound import BoundCall, BoundDerived, BoundName, BoundQuery, BoundSource, BoundUnion
from service.spec.scalar import Scalar
from service.spec.types import Schema


def pruned(query: BoundQuery) -> BoundQuery:
    """`query` with the same output, in which every table and inner query has the columns that are read, in order.

    One of which nothing is read (`COUNT(*)`) keeps its first column, so that its rows can still be counted.
    """
    used = frozenset(name for scalar in _table_scalars(query) for name in scalar.columns)
    return replace(
        query,
        source=_source(query.source, used),
        joins=tuple(replace(join, right=_source(join.right, used)) for join in query.joins),
    )


def _source(source: BoundSource, used: frozenset[str]) -> BoundSource:
    columns = tuple(column for column in source.columns if column[0].name in used) or source.columns[:1]
    if not isinstance(source, BoundDerived):
        return replace(source, columns=columns)
    names = frozenset(name for _, name in columns)
    inner = source.query
    if isinstance(inner, BoundUnion):
        return replace(source, columns=columns, query=BoundUnion(tuple(_only(each, names) for each in inner.queries)))
    return replace(source, columns=columns, query=_only(inner, names))


def _only(query: BoundQuery, names: frozenset[str]) -> BoundQuery:
    """An inner query with the output columns `names` alone."""
    select = tuple(item for item in query.select if item.name in names)
    output = Schema(tuple(field for field in query.output.fields if field.name in names))
    calls = _read_calls(query, select)
    return pruned(replace(query, select=select, output=output, calls=calls))


def _read_calls(query: BoundQuery, select: tuple[BoundName, ...]) -> tuple[BoundCall, ...]:
    scalars = [item.expression for item in select] + [key.expression for key in query.order_by]
    if query.having is not None:
        scalars.append(query.having)
    read = {name for scalar in scalars for name in scalar.columns}
    return tuple(call for call in query.calls if call.output.name in read)


def _table_scalars(query: BoundQuery) -> Iterator[Scalar]:
    """Every expression that is evaluated over what stands in FROM."""
    for join in query.joins:
        yield from (side for key in join.keys for side in key)
        if join.residual is not None:
            yield join.residual
    if query.where is not None:
        yield query.where
    if not query.is_aggregate:
        yield from (item.expression for item in query.select)
        yield from (key.expression for key in query.order_by)
        return
    yield from (key.expression for key in query.keys)
    if query.window is not None:
        yield query.window.column
    for call in query.calls:
        yield from (*call.arguments, *(each for each in (call.filter, call.order_by) if each is not None))
