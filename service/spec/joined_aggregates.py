"""Whether a query has an aggregate of which a part could be computed below a join, as far as its shape tells."""

from __future__ import annotations

from collections.abc import Iterable

from service.spec.bound import BoundDerived, BoundJoin, BoundQuery, BoundUnion
from service.spec.query import JoinKind


def refusal_of_eager(queries: Iterable[BoundQuery]) -> str | None:
    """Why none of the aggregates of `queries` can be computed below a join, as the end of a sentence; None where one
    may: which calls and types it takes is told of the plan.
    """
    joined = [(query, join) for query in queries if query.is_aggregate and (join := _join_below(query)) is not None]
    if not joined:
        return "no aggregate of the query stands over a join"
    refusals = [_refusal(query, join) for query, join in joined]
    return None if None in refusals else refusals[0]


def _join_below(query: BoundQuery) -> BoundJoin | None:
    """The last join of the rows that `query` groups; a query in FROM that only filters and computes is seen through."""
    if query.joins:
        return query.joins[-1]
    source = query.source
    if not isinstance(source, BoundDerived) or isinstance(source.query, BoundUnion):
        return None
    inner = source.query
    is_sorted = any(key.expression.columns for key in inner.order_by)
    return None if inner.is_aggregate or is_sorted or inner.limit is not None else _join_below(inner)


def _refusal(query: BoundQuery, join: BoundJoin) -> str | None:
    if query.grouping_sets:
        return "a row counts in several grouping sets, which are left to Spark"
    if join.kind is JoinKind.FULL:
        return f"below the full join with {join.right.alias} nothing is aggregated first"
    if not join.keys:
        return f"the join with {join.right.alias} has no equality, and so no key to group its sides by"
    return None
