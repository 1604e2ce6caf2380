"""Checks at submission that a query can follow the settings that the job forces.

The settings are the phases of aggregates, the method for DISTINCT, eager aggregation below a join, and join strategies.
Only the query's shape and types are checked here; rules report in the plan's trace what depends on the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from service.contract.options import AggPhase, DistinctMethod, JobSettings, JoinLocal, JoinShip, JoinSkew, Toggle
from service.contract.problems import Issue, SpecError
from service.contract.query import AggregateFunction, JoinKind
from service.sql.joins import HASHED_SIDE, refusal_of_local, refusal_of_pair, refusal_of_ship
from service.sql.resolve.bound import (
    BoundCall,
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundSource,
    BoundUnion,
    queries_of,
)
from service.sql.types.aggregates import IDEMPOTENT
from service.sql.types.data_types import INTEGRAL, DataType, TypeName

MAX_BITMAP_DIGITS = 18
"""Digits of the widest DECIMAL whose values, without the point, are BIGINTs."""
MAX_GROUP_BITMAP_COUNTS = 8
"""The number of COUNTs of one set of values that may have its groups as bits: each needs 64 sums."""
_COUNTABLE = INTEGRAL | {TypeName.BOOLEAN, TypeName.DATE}
_SKEW_STRATEGIES = frozenset({JoinSkew.ISOLATE, JoinSkew.SALT})
"""The values of `skew` that a join must be able to follow."""


def refusal_of_phase(phase: AggPhase, queries: Iterable[BoundQuery]) -> str | None:
    """Returns why none of the aggregates of `queries` can run in `phase`, as the end of a sentence; None if one may.

    What depends on the partitioning of the rows and on the calls is reported with the plan.
    """
    if phase is AggPhase.AUTO:
        return None
    known = list(queries)
    aggregates = [query for query in known if query.is_aggregate]
    if not aggregates:
        return "the query has no aggregate"
    plain = [query for query in aggregates if not query.grouping_sets]
    if not plain:
        return "a row counts in several grouping sets, which only Spark's own aggregate supports"
    # Partial aggregates below a join are grouped by its keys, and DISTINCT values are partitioned by themselves.
    joined = any(join.keys for query in known for join in query.joins)
    may_have_parts = joined or any(call.distinct for one in plain for call in one.calls)
    if phase is AggPhase.ONE_PHASE and not may_have_parts and not any(query.keys for query in plain):
        return "an aggregate without group keys returns one row, and needs two phases to use more than one task"
    return None


def refusal_of_method(method: DistinctMethod, queries: Iterable[BoundQuery]) -> str | None:
    """Returns why none of the aggregates of `queries` can use `method`, as the end of a sentence; None if one may."""
    if method in {DistinctMethod.AUTO, DistinctMethod.NATIVE}:
        return None
    known = list(queries)
    if method is DistinctMethod.SPLIT and any(map(_has_percentile, known)):
        return None
    found = [(query, calls) for query in known if (calls := _distinct_calls(query))]
    if not found:
        return "no aggregate of the query uses DISTINCT (MIN and MAX ignore it)"
    plain = [(query, calls) for query, calls in found if not query.grouping_sets]
    distinct = [calls for _, calls in plain]
    if not distinct:
        return "a row counts in several grouping sets, which only Spark's own aggregate supports"
    if method is DistinctMethod.SPLIT and all(any(map(_nests_fractions, calls)) for calls in distinct):
        return "the equal numbers -0.0 and 0.0 inside an array or a structure may have different hashes"
    if method is DistinctMethod.BRANCHES and all(len(_sets(calls)) < 2 for calls in distinct):
        return "it needs DISTINCT over at least two different expressions in one aggregate"
    countable = any(_is_countable(calls) or _are_groups_countable(query, calls) for query, calls in plain)
    if method is DistinctMethod.BITMAP and not countable:
        return (
            "it needs COUNT(DISTINCT x), not SUM or AVG, where x is an integer, a date, a boolean or a DECIMAL of up "
            f"to {MAX_BITMAP_DIGITS} digits; or where x has any type, the query has no other aggregates, and its only "
            "group key is an integer, a date or a boolean"
        )
    return None


def contradict(split: Toggle, method: DistinctMethod) -> bool:
    """Whether no query could follow both `distinct_split.enabled` and `distinct_method`."""
    if split is Toggle.AUTO or method is DistinctMethod.AUTO:
        return False
    return (split is Toggle.TRUE) is not (method is DistinctMethod.SPLIT)


def _distinct_calls(query: BoundQuery) -> list[BoundCall]:
    return [call for call in query.calls if call.distinct and call.function not in IDEMPOTENT]


def _has_percentile(query: BoundQuery) -> bool:
    """Whether the rows of each value of a PERCENTILE can be counted first."""
    percentiles = (call for call in query.calls if call.function is AggregateFunction.PERCENTILE)
    return not query.grouping_sets and any(not call.distinct for call in percentiles)


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
    """Whether the groups can be bits, and one of the sets has only COUNT. Calls without DISTINCT belong to the first
    set.
    """
    if len(query.keys) != 1 or (type_ := query.keys[0].expression.type) is None or type_.name not in _COUNTABLE:
        return False
    summed = _sets([call for call in calls if call.function is not AggregateFunction.COUNT])
    with_plain_calls = _sets(calls[:1]) if len(calls) < len(query.calls) else set()
    counts = Counter(frozenset(argument.sql for argument in call.arguments) for call in calls)
    return any(counts[one] <= MAX_GROUP_BITMAP_COUNTS for one in _sets(calls) - summed - with_plain_calls)


def _has_bit(type_: DataType | None) -> bool:
    if type_ is None:
        return False
    if type_.name is TypeName.DECIMAL:
        return type_.precision is not None and type_.precision <= MAX_BITMAP_DIGITS
    return type_.name in _COUNTABLE


def refusal_of_eager(queries: Iterable[BoundQuery]) -> str | None:
    """Returns why none of the aggregates of `queries` can be computed below a join, as the end of a sentence; None if
    one may. What depends on the calls and their types is reported with the plan.
    """
    joined = [(query, join) for query in queries if query.is_aggregate and (join := _join_below(query)) is not None]
    if not joined:
        return "no aggregate of the query is above a join"
    refusals = [_refusal(query, join) for query, join in joined]
    return None if None in refusals else refusals[0]


def _join_below(query: BoundQuery) -> BoundJoin | None:
    """Returns the last join of the rows that `query` groups, also inside a query in FROM that only filters and computes
    columns.
    """
    if query.joins:
        return query.joins[-1]
    source = query.source
    if not isinstance(source, BoundDerived) or isinstance(source.query, BoundUnion):
        return None
    inner = source.query
    is_sorted = any(key.expression.columns for key in inner.order_by)
    return None if inner.is_aggregate or is_sorted or inner.is_cut else _join_below(inner)


def _refusal(query: BoundQuery, join: BoundJoin) -> str | None:
    if query.grouping_sets:
        return "a row counts in several grouping sets, which only Spark's own aggregate supports"
    if join.kind is JoinKind.FULL:
        return f"the join with {join.right.alias} is a full join, below which nothing is aggregated"
    if not join.keys:
        return f"the join with {join.right.alias} has no equality, so there is no key to group its sides by"
    return None


def check_settings(query: BoundQuery, settings: JobSettings) -> None:
    """Raises SpecError with one issue for each setting that `query` cannot follow, with a pointer to it.

    The pointer is below `/settings`, or below `/query` for a setting of a single join. Codes:
    `unsupported_join_strategy`, `unsupported_agg_phase`, `unsupported_distinct_method`,
    `unsupported_eager_aggregation`, `contradicting_settings`.
    """
    issues = [
        *_contradictions(settings),
        *_issues_of(query, settings, "/query"),
        *_forced_issues(query, settings),
        *_skew_setting_issues(query, settings),
        *_joinless_issues(query, settings),
    ]
    if issues:
        raise SpecError(issues)


def _contradictions(settings: JobSettings) -> Iterator[Issue]:
    """Yields issues of settings that contradict each other."""
    split, method = settings.distinct_split.enabled, settings.distinct_method
    if contradict(split, method):
        detail = f"distinct_split.enabled {split} contradicts distinct_method {method}. Remove one of them."
        yield Issue(code="contradicting_settings", detail=detail, pointer="/settings/distinct_method")


def _forced_issues(query: BoundQuery, settings: JobSettings) -> Iterator[Issue]:
    """Yields the issues of forced aggregate settings that no aggregate of `query` can follow."""
    queries = list(queries_of(query))
    phase, method = settings.agg_phase, settings.distinct_method
    split = DistinctMethod.SPLIT if settings.distinct_split.enabled is Toggle.TRUE else DistinctMethod.AUTO
    is_eager = settings.eager_aggregation is Toggle.TRUE
    for setting, code, value, why in (
        ("agg_phase", "agg_phase", phase, refusal_of_phase(phase, queries)),
        ("distinct_method", "distinct_method", method, refusal_of_method(method, queries)),
        ("distinct_split.enabled", "distinct_method", Toggle.TRUE, refusal_of_method(split, queries)),
        ("eager_aggregation", "eager_aggregation", Toggle.TRUE, refusal_of_eager(queries) if is_eager else None),
    ):
        if why is not None:
            automatic = "auto" if value is Toggle.TRUE else "AUTO"
            detail = f"{setting} {value} is not supported: {why}. Remove the setting, or set it to {automatic}."
            pointer = f"/settings/{setting.replace('.', '/')}"
            yield Issue(code=f"unsupported_{code}", detail=detail, pointer=pointer)


def _issues_of(query: BoundQuery | BoundUnion, settings: JobSettings, at: str) -> Iterator[Issue]:
    """Yields the issues of `query`, whose pointer is `at`, and of the queries inside it."""
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
        # The queries of a union are directly in the source.
        inner = at if isinstance(source.query, BoundUnion) else f"{at}/query"
        yield from _issues_of(source.query, settings, inner)


def _skew_issues(join: BoundJoin, settings: JobSettings, at: str) -> Iterator[Issue]:
    """Yields the issue of a join's own `skew`, if any; the setting applies to every join that can follow it."""
    why = _refusal_of_skew(join, join.skew, settings)
    if why is not None:
        detail = f"skew {join.skew} is not supported for the {join.kind} join with {join.right.alias}: {why}."
        yield Issue(code="unsupported_join_strategy", detail=detail, pointer=f"{at}/skew")


def _skew_setting_issues(query: BoundQuery, settings: JobSettings) -> Iterator[Issue]:
    """Yields the issue of the setting `join.skew`, if the query has joins and none can follow it."""
    skew = settings.join.skew
    joins = [join for one in queries_of(query) for join in one.joins if join.skew in {None, JoinSkew.AUTO}]
    refusals = [_refusal_of_skew(join, skew, settings) for join in joins]
    if refusals and None not in refusals:
        detail = f"join.skew {skew} is not supported for any join of the query: {refusals[0]}. Remove the setting."
        yield Issue(code="unsupported_join_strategy", detail=detail, pointer="/settings/join/skew")


def _joinless_issues(query: BoundQuery, settings: JobSettings) -> Iterator[Issue]:
    """Yields issues of join settings for a query without joins."""
    if any(one.joins for one in queries_of(query)):
        return
    join = settings.join
    demanded = {
        "ship": join.ship if join.ship is not JoinShip.AUTO else None,
        "local": join.local if join.local is not JoinLocal.AUTO else None,
        "skew": join.skew if join.skew in _SKEW_STRATEGIES else None,
    }
    for name, value in demanded.items():
        if value is not None:
            detail = f"join.{name} {value} is not supported: the query has no join. Remove the setting."
            yield Issue(code="unsupported_join_strategy", detail=detail, pointer=f"/settings/join/{name}")


def _refusal_of_skew(join: BoundJoin, skew: JoinSkew | None, settings: JobSettings) -> str | None:
    """Returns why the join cannot follow `skew`, as the end of a sentence; None if it can."""
    if skew not in _SKEW_STRATEGIES:
        return None
    if not join.keys:
        return "a join without an equality has no key, and so no hot key"
    ship = settings.join.ship if join.ship in {None, JoinShip.AUTO} else join.ship
    if ship in HASHED_SIDE:
        return f"{ship} sends one side to every task, so the rows of the other side are not partitioned by key"
    local = settings.join.local if join.local in {None, JoinLocal.AUTO} else join.local
    if skew is JoinSkew.SALT and local in {JoinLocal.HASH_LEFT, JoinLocal.HASH_RIGHT}:
        return f"salted keys are joined by sort-merge, which contradicts {local}"
    if join.kind is JoinKind.FULL and skew is JoinSkew.SALT:
        return "salting copies rows of one side, and a full join would emit each unmatched copy"
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
    detail = f"{' with '.join(ways)} is not supported for the {join.kind} join with {join.right.alias}: {why}."
    return Issue(code="unsupported_join_strategy", detail=detail, pointer=pointer)
