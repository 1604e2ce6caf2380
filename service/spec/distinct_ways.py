"""Which ways of telling distinct values apart a query can follow, as far as its types tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from service.spec.aggregates import IDEMPOTENT
from service.spec.bound import BoundCall, BoundQuery
from service.spec.query import AggregateFunction
from service.spec.strategies import DistinctMethod, Toggle
from service.spec.types import INTEGRAL, DataType, TypeName

MAX_BITMAP_DIGITS = 18
"""Digits of the widest DECIMAL whose values, without the point, are BIGINTs."""

MAX_GROUP_BITMAP_COUNTS = 8
"""COUNTs of one set of values that may have its groups as bits: each has 64 sums."""

_COUNTABLE = INTEGRAL | {TypeName.BOOLEAN, TypeName.DATE}


def refusal_of_method(method: DistinctMethod, queries: Iterable[BoundQuery]) -> str | None:
    """Why none of the aggregates of `queries` can follow `method`, as the end of a sentence; None where one may."""
    if method in {DistinctMethod.AUTO, DistinctMethod.NATIVE}:
        return None
    found = [(query, calls) for query in queries if (calls := _distinct_calls(query))]
    if not found:
        return "no aggregate of the query is over DISTINCT values (MIN and MAX are the same without)"
    plain = [(query, calls) for query, calls in found if not query.grouping_sets]
    distinct = [calls for _, calls in plain]
    if not distinct:
        return "a row counts in several grouping sets, which are left to Spark"
    if method is DistinctMethod.SPLIT and all(any(map(_nests_fractions, calls)) for calls in distinct):
        return "equal fractions (-0.0 and 0.0) in an array or a structure may have different hashes"
    if method is DistinctMethod.BRANCHES and all(len(_sets(calls)) < 2 for calls in distinct):
        return "all distinct values are of one set, which needs no branch of its own"
    countable = any(_is_countable(calls) or _are_groups_countable(query, calls) for query, calls in plain)
    if method is DistinctMethod.BITMAP and not countable:
        return (
            "a bitmap counts (COUNT, and neither SUM nor AVG) single integers, dates, booleans and DECIMALs of up to "
            f"{MAX_BITMAP_DIGITS} digits, or, with nothing beside them, values of any type by one group key that is an "
            "integer, a date or a boolean"
        )
    return None


def contradict(split: Toggle, method: DistinctMethod) -> bool:
    """Whether no query could follow both `distinct_split.enabled` and `distinct_method`."""
    if split is Toggle.AUTO or method is DistinctMethod.AUTO:
        return False
    return (split is Toggle.TRUE) is not (method is DistinctMethod.SPLIT)


def _distinct_calls(query: BoundQuery) -> list[BoundCall]:
    return [call for call in query.calls if call.distinct and call.function not in IDEMPOTENT]


def _nests_fractions(call: BoundCall) -> bool:
    return any(argument.type is not None and argument.type.nests_fractions for argument in call.arguments)


def _sets(calls: list[BoundCall]) -> set[frozenset[str]]:
    return {frozenset(argument.sql for argument in call.arguments) for call in calls}


def _is_countable(calls: list[BoundCall]) -> bool:
    """Whether the calls over one of the sets are all counts of a value that has a bit."""
    fit = [len(call.arguments) == 1 and _has_bit(call.arguments[0].type) for call in calls]
    counts = [call.function is AggregateFunction.COUNT for call in calls]
    unfit = _sets([call for call, one, count in zip(calls, fit, counts, strict=True) if not (one and count)])
    return bool(_sets(calls) - unfit)


def _are_groups_countable(query: BoundQuery, calls: list[BoundCall]) -> bool:
    """Whether the groups have bits, and one of the sets is counted, with no call beside it: what is over no DISTINCT
    values goes with the first set.
    """
    if len(query.keys) != 1 or (type_ := query.keys[0].expression.type) is None or type_.name not in _COUNTABLE:
        return False
    summed = _sets([call for call in calls if call.function is not AggregateFunction.COUNT])
    beside = _sets(calls[:1]) if len(calls) < len(query.calls) else set()
    counts = Counter(frozenset(argument.sql for argument in call.arguments) for call in calls)
    return any(counts[one] <= MAX_GROUP_BITMAP_COUNTS for one in _sets(calls) - summed - beside)


def _has_bit(type_: DataType | None) -> bool:
    if type_ is None:
        return False
    if type_.name is TypeName.DECIMAL:
        return type_.precision is not None and type_.precision <= MAX_BITMAP_DIGITS
    return type_.name in _COUNTABLE
