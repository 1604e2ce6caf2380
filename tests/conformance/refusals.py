"""The settings that must be refused for a query, derived from its text and from tables, independently of the service.

Which join strategy can be forced depends on the kind of the join and on whether it has an equality; the method for
DISTINCT, on the arguments of the calls; eager aggregation, on whether there is an aggregate above a join.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from tests.conformance.broad_queries import EAGER, OVERFLOWS, WHOLE_QUERIES
from tests.conformance.combinations import Settings, is_legal

KINDS = ("INNER", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI", "CROSS")
_ONCE_EACH = {"LEFT SEMI", "LEFT ANTI"}
SHIPS = {
    "REPARTITION": set(KINDS) - {"CROSS"},
    "BROADCAST_LEFT": {"INNER", "RIGHT", "CROSS"},
    "BROADCAST_RIGHT": {"INNER", "LEFT", "CROSS"} | _ONCE_EACH,
}
LOCALS = {
    "SORT_MERGE": set(KINDS) - {"CROSS"},
    "HASH_LEFT": set(KINDS) - {"CROSS"} - _ONCE_EACH,
    "HASH_RIGHT": set(KINDS) - {"CROSS"},
}
"""The kinds of joins by strategy. Of these, only a cross join has no equality."""

_COUNTABLE = {"g", "b", "big", "y", "s", "m", "q", "d", "id", "v", "big % 100", "CAST(k AS INT)"}
"""The counted expressions of the broad queries that bitmaps support."""

_BY_GROUPS_WITH_BITS = ("COUNT(DISTINCT k) AS n FROM h GROUP BY g", "COUNT(DISTINCT 1 / s) FROM f GROUP BY g")
"""Queries that count values of another type grouped only by an integer, whose values the bits represent then."""

_AGGREGATE = re.compile(r"GROUP BY|DISTINCT|UNION (?!ALL)|\b(COUNT|SUM|AVG|MIN|MAX)\(")
_OVER_A_JOIN = {WHOLE_QUERIES[4], WHOLE_QUERIES[5], WHOLE_QUERIES[8]}
_CALL = re.compile(r"(COUNT|SUM|AVG)\(DISTINCT ((?:[^()]|\([^()]*\))*)\)")
_JOIN = re.compile(r"(INNER|LEFT SEMI|LEFT ANTI|LEFT|RIGHT|FULL|CROSS)? ?JOIN|, u WHERE")


@dataclass(frozen=True)
class Facts:
    """The properties of a query that decide about its settings: the kinds of its joins, the methods that its DISTINCT
    calls support, whether an aggregate can be computed below a join, and the supported phases.
    """

    joins: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    eager: bool = False
    phases: frozenset[str] = frozenset()


def facts_of(text: str) -> Facts:
    """Returns the properties of a broad query."""
    joins = tuple(found[1] or "INNER" for found in _JOIN.finditer(text))
    calls = _CALL.findall(text)
    sets = {values for _, values in calls}
    methods = {"split"} if calls else set()
    if len(sets) > 1:
        methods.add("branches")
    # A summed value needs more than a bit.
    bits = sets - {values for function, values in calls if function != "COUNT"}
    if {re.sub(r"^[a-z]\.", "", values) for values in bits} & _COUNTABLE:
        methods.add("bitmap")
    if any(counted in text for counted in _BY_GROUPS_WITH_BITS):
        methods.add("bitmap")
    grouped = text in EAGER or text in _OVER_A_JOIN or text in OVERFLOWS
    phases = {"TWO_PHASE"} if _AGGREGATE.search(text) and (" OVER " not in text or "GROUP BY" in text) else set()
    if phases and ("GROUP BY" in text or "SELECT DISTINCT" in text or "UNION" in text or calls or joins):
        phases.add("ONE_PHASE")
    eager = grouped and bool(joins) and joins[-1] != "FULL"
    return Facts(joins, frozenset(methods), eager, frozenset(phases))


def allows_way(kind: str, ship: str, local: str) -> bool:
    """Whether a join of this kind supports the strategies."""
    is_pair = is_legal(JoinShip(ship), JoinLocal(local))
    return is_pair and kind in SHIPS.get(ship, KINDS) and kind in LOCALS.get(local, KINDS)


def allows_skew(kind: str, ship: str, local: str, skew: str) -> bool:
    """Whether a join with these strategies supports the handling of hot keys."""
    if skew in {JoinSkew.AUTO, JoinSkew.NONE}:
        return True
    if kind == "CROSS" or ship.startswith("BROADCAST"):
        return False
    return skew == JoinSkew.ISOLATE or not (kind == "FULL" or local.startswith("HASH"))


def refused(facts: Facts, settings: Settings) -> set[str]:
    """Returns the settings that a query does not support; for an invalid pair of strategies, `join.local`."""
    names = set()
    method, split = settings.get("distinct_method", "auto"), settings.get("distinct_split.enabled", "auto")
    if settings.get("agg_phase", "AUTO") not in facts.phases | {"AUTO"}:
        names.add("agg_phase")
    if method not in facts.methods | {"auto", "native"}:
        names.add("distinct_method")
    if split == "true" and "split" not in facts.methods:
        names.add("distinct_split.enabled")
    if "auto" not in {method, split} and (method == "split") is not (split == "true"):
        names.add("distinct_method")
    if settings.get("eager_aggregation") == "true" and not facts.eager:
        names.add("eager_aggregation")
    ship, local, skew = (settings.get(f"join.{key}", "AUTO") for key in ("ship", "local", "skew"))
    return names | _refused_of_joins(facts.joins, ship, local, skew)


def _refused_of_joins(kinds: tuple[str, ...], ship: str, local: str, skew: str) -> set[str]:
    if not kinds:
        asked = {"join.ship": ship, "join.local": local, "join.skew": skew}
        return {name for name, value in asked.items() if value not in {"AUTO", "NONE"}}
    names = set()
    if not is_legal(JoinShip(ship), JoinLocal(local)):
        names.add("join.local")
    else:
        # One unsupported join is enough: no join ignores the setting silently.
        names |= {"join.ship"} if not all(allows_way(kind, ship, "AUTO") for kind in kinds) else set()
        names |= {"join.local"} if not all(allows_way(kind, "AUTO", local) for kind in kinds) else set()
    # For hot keys, it is enough if some join supports the setting.
    return names | ({"join.skew"} if not any(allows_skew(kind, ship, local, skew) for kind in kinds) else set())
