"""Whether a query has an aggregate that could run in the phases that are demanded, as far as its shape tells.

Which ways of telling distinct values apart a query can follow, as far as its types tell.

Whether a query has an aggregate of which a part could be computed below a join, as far as its shape tells.

Forced settings that the query cannot follow: found at submission, where query, types and settings tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from service.contract.options import AggPhase, DistinctMethod, JobSettings, JoinLocal, JoinShip, JoinSkew, Toggle
from service.contract.problems import Issue, SpecError
from service.contract.query import AggregateFunction, JoinKind
from service.sql.resolve.bound import (
    BoundCall,
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundSource,
    BoundUnion,
    queries_of,
)
from service.sql.statements.join_hints import HASHED_SIDE, refusal_of_local, refusal_of_pair, refusal_of_ship
from service.sql.types.aggregates import IDEMPOTENT
from service.sql.types.data_types import INTEGRAL, DataType, TypeName


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


_APART = frozenset({JoinSkew.ISOLATE, JoinSkew.SALT})
"""The strategies that demand something of a join."""


def check_settings(query: BoundQuery, settings: JobSettings) -> None:
    """Raises SpecError, one issue a setting that `query` cannot follow, with a pointer to it.

    The pointer is below `/settings`, or below `/query` where a join says it itself. Codes: `unsupported_join_strategy`,
    `unsupported_agg_phase`, `unsupported_distinct_method`, `unsupported_eager_aggregation`, `contradicting_settings`.
    """
    issues = [
        *_contradictions(settings),
        *_issues_of(query, settings, "/query"),
        *_phase_issues(query, settings),
        *_distinct_issues(query, settings),
        *_eager_issues(query, settings),
        *_skew_setting_issues(query, settings),
        *_joinless_issues(query, settings),
    ]
    if issues:
        raise SpecError(issues)


def _contradictions(settings: JobSettings) -> Iterator[Issue]:
    """Settings of which no query could follow both."""
    split, method = settings.distinct_split.enabled, settings.distinct_method
    if contradict(split, method):
        detail = f"distinct_split.enabled {split} contradicts distinct_method {method}: remove one of them."
        yield Issue(code="contradicting_settings", detail=detail, pointer="/settings/distinct_method")


def _eager_issues(query: BoundQuery, settings: JobSettings) -> Iterator[Issue]:
    why = refusal_of_eager(queries_of(query)) if settings.eager_aggregation is Toggle.TRUE else None
    if why is not None:
        detail = f"eager_aggregation true cannot be had: {why}."
        yield Issue(code="unsupported_eager_aggregation", detail=detail, pointer="/settings/eager_aggregation")


def _phase_issues(query: BoundQuery, settings: JobSettings) -> Iterator[Issue]:
    why = refusal_of_phase(settings.agg_phase, queries_of(query))
    if why is not None:
        detail = f"agg_phase {settings.agg_phase} cannot be had: {why}. Leave the setting out, or set it to AUTO."
        yield Issue(code="unsupported_agg_phase", detail=detail, pointer="/settings/agg_phase")


def _distinct_issues(query: BoundQuery, settings: JobSettings) -> Iterator[Issue]:
    why = refusal_of_method(settings.distinct_method, queries_of(query))
    if why is not None:
        detail = f"distinct_method {settings.distinct_method} cannot be had: {why}."
        yield Issue(code="unsupported_distinct_method", detail=detail, pointer="/settings/distinct_method")
    if settings.distinct_split.enabled is not Toggle.TRUE:
        return
    why = refusal_of_method(DistinctMethod.SPLIT, queries_of(query))
    if why is not None:
        detail = f"distinct_split.enabled true cannot be had: {why}. Leave the setting out, or set it to auto."
        yield Issue(code="unsupported_distinct_method", detail=detail, pointer="/settings/distinct_split/enabled")


def _issues_of(query: BoundQuery | BoundUnion, settings: JobSettings, at: str) -> Iterator[Issue]:
    """The issues of `query`, whose pointer is `at`, and of the queries inside it."""
    if isinstance(query, BoundUnion):
        for index, branch in enumerate(query.queries):
            yield from _issues_of(branch, settings, f"{at}/queries/{index}")
        return
    yield from _issues_of_source(query.source, settings, f"{at}/source")
    for join in query.joins:
        join_at = f"{at}/joins/{join.index}"
        yield from _issues_of_source(join.right, settings, f"{join_at}/right")
        yield from _issues_of_join(join, settings, join_at)
        yield from _skew_issues(join, settings, join_at)


def _issues_of_source(source: BoundSource, settings: JobSettings, at: str) -> Iterator[Issue]:
    if isinstance(source, BoundDerived):
        # A union's queries stand in the source itself.
        inner = at if isinstance(source.query, BoundUnion) else f"{at}/query"
        yield from _issues_of(source.query, settings, inner)


def _skew_issues(join: BoundJoin, settings: JobSettings, at: str) -> Iterator[Issue]:
    """What a join demands of itself; the settings' word is for the joins that can follow it."""
    why = _refusal_of_skew(join, join.skew, settings)
    if why is not None:
        detail = f"skew {join.skew} cannot be had for the {join.kind} join with {join.right.alias}: {why}."
        yield Issue(code="unsupported_join_strategy", detail=detail, pointer=f"{at}/skew")


def _skew_setting_issues(query: BoundQuery, settings: JobSettings) -> Iterator[Issue]:
    """The settings' word on skew, where the query has joins and none can follow it."""
    skew = settings.join.skew
    joins = [join for one in queries_of(query) for join in one.joins if join.skew in {None, JoinSkew.AUTO}]
    refusals = [_refusal_of_skew(join, skew, settings) for join in joins]
    if refusals and None not in refusals:
        detail = f"join.skew {skew} cannot be had for any join of the query: {refusals[0]}."
        yield Issue(code="unsupported_join_strategy", detail=detail, pointer="/settings/join/skew")


def _joinless_issues(query: BoundQuery, settings: JobSettings) -> Iterator[Issue]:
    """What the settings demand of the joins of a query that has none."""
    if any(one.joins for one in queries_of(query)):
        return
    join = settings.join
    demanded = {
        "ship": join.ship if join.ship is not JoinShip.AUTO else None,
        "local": join.local if join.local is not JoinLocal.AUTO else None,
        "skew": join.skew if join.skew in _APART else None,
    }
    for name, value in demanded.items():
        if value is not None:
            detail = f"join.{name} {value} cannot be had: the query has no join. Leave the setting out."
            yield Issue(code="unsupported_join_strategy", detail=detail, pointer=f"/settings/join/{name}")


def _refusal_of_skew(join: BoundJoin, skew: JoinSkew | None, settings: JobSettings) -> str | None:
    """Why the join cannot follow `skew`, as the end of a sentence."""
    if skew not in _APART:
        return None
    if not join.keys:
        return "without an equality there is no key to be hot"
    ship = settings.join.ship if join.ship in {None, JoinShip.AUTO} else join.ship
    if ship in HASHED_SIDE:
        return f"{ship} sends one side to every task, so that no row of the other is moved for its key"
    local = settings.join.local if join.local in {None, JoinLocal.AUTO} else join.local
    if skew is JoinSkew.SALT and local in {JoinLocal.HASH_LEFT, JoinLocal.HASH_RIGHT}:
        return f"salted keys are sorted and merged, which {local} rules out"
    if join.kind is JoinKind.FULL and skew is JoinSkew.SALT:
        return "both sides keep their rows without a match, and a copied one would be kept several times"
    return None


def _issues_of_join(join: BoundJoin, settings: JobSettings, at: str) -> Iterator[Issue]:
    own_ship, own_local = join.ship or JoinShip.AUTO, join.local or JoinLocal.AUTO
    by_ship, by_local = own_ship is not JoinShip.AUTO, own_local is not JoinLocal.AUTO
    ship, local = own_ship if by_ship else settings.join.ship, own_local if by_local else settings.join.local
    ship_at = f"{at}/ship" if by_ship else "/settings/join/ship"
    local_at = f"{at}/local" if by_local else "/settings/join/local"
    has_keys = bool(join.keys)
    pair = refusal_of_pair(ship, local)
    if pair is not None:
        yield _issue(join, ship, local, pair, ship_at if by_ship and not by_local else local_at)
        return
    wrong_ship = refusal_of_ship(join.kind, ship, has_keys)
    if wrong_ship is not None:
        yield _issue(join, ship, JoinLocal.AUTO, wrong_ship, ship_at)
    wrong_local = refusal_of_local(join.kind, local, has_keys)
    if wrong_local is not None:
        yield _issue(join, JoinShip.AUTO, local, wrong_local, local_at)


def _issue(join: BoundJoin, ship: JoinShip, local: JoinLocal, why: str, pointer: str) -> Issue:
    ways = [way.value for way in (ship, local) if way.value != JoinShip.AUTO.value]
    detail = f"{' with '.join(ways)} cannot be had for the {join.kind} join with {join.right.alias}: {why}."
    return Issue(code="unsupported_join_strategy", detail=detail, pointer=pointer)
