"""Whether a query has an aggregate that could run in the phases that are demanded, as far as its shape tells."""

from __future__ import annotations

from collections.abc import Iterable

from service.spec.bound import BoundQuery
from service.spec.strategies import AggPhase


def refusal_of_phase(phase: AggPhase, queries: Iterable[BoundQuery]) -> str | None:
    """Why none of the aggregates of `queries` can run in `phase`, as the end of a sentence; None where one may: what
    the rows' partitioning and the calls leave open is told of the plan.
    """
    if phase is AggPhase.AUTO:
        return None
    known = list(queries)
    aggregates = [query for query in known if query.is_aggregate]
    if not aggregates:
        return "the query has no aggregate"
    plain = [query for query in aggregates if not query.grouping_sets]
    if not plain:
        return "a row counts in several grouping sets, which are left to Spark"
    # Parts of an aggregate below a join have the join's keys, and DISTINCT values are parted by themselves.
    joined = any(join.keys for query in known for join in query.joins)
    may_have_parts = joined or any(call.distinct for one in plain for call in one.calls)
    if phase is AggPhase.ONE_PHASE and not may_have_parts and not any(query.keys for query in plain):
        return "without group keys one row comes out, and only two phases use more than one task for it"
    return None
