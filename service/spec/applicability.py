"""Forced settings that the query cannot follow: found at submission, where query, types and settings tell."""

from __future__ import annotations

from collections.abc import Iterator

from service.spec.aggregate_phases import refusal_of_phase
from service.spec.bound import BoundDerived, BoundJoin, BoundQuery, BoundSource, BoundUnion, queries_of
from service.spec.distinct_ways import contradict, refusal_of_method
from service.spec.errors import Issue, SpecError
from service.spec.join_pairs import HASHED_SIDE, refusal_of_local, refusal_of_pair, refusal_of_ship
from service.spec.joined_aggregates import refusal_of_eager
from service.spec.options import JobSettings
from service.spec.query import JoinKind
from service.spec.strategies import DistinctMethod, JoinLocal, JoinShip, JoinSkew, Toggle

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
