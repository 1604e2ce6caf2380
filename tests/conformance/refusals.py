"""Which settings are refused for which query: told from its text and tables of what goes, and not by the service.

What may be forced of a join depends on its kind and on whether it has an equality; a way of telling DISTINCT values
apart, on what the calls are over; aggregation below a join, on whether an aggregate stands over one.
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
"""By strategy, the kinds of join that have it. A cross join is the one here without an equality."""

_COUNTABLE = {"g", "b", "big", "y", "s", "m", "q", "d", "id", "v", "big % 100", "CAST(k AS INT)"}
"""What a bitmap has a bit for, of all that the broad queries count."""

_BY_GROUPS_WITH_BITS = ("COUNT(DISTINCT k) AS n FROM h GROUP BY g", "COUNT(DISTINCT 1 / s) FROM f GROUP BY g")
"""What counts values of another type and nothing else by an integer, which has the bits then."""

_AGGREGATE = re.compile(r"GROUP BY|DISTINCT|UNION (?!ALL)|\b(COUNT|SUM|AVG|MIN|MAX)\(")
_OVER_A_JOIN = {WHOLE_QUERIES[4], WHOLE_QUERIES[5], WHOLE_QUERIES[8]}
_CALL = re.compile(r"(COUNT|SUM|AVG)\(DISTINCT ((?:[^()]|\([^()]*\))*)\)")
_JOIN = re.compile(r"(INNER|LEFT SEMI|LEFT ANTI|LEFT|RIGHT|FULL|CROSS)? ?JOIN|, u WHERE")


@dataclass(frozen=True)
class Facts:
    """What decides about a query's settings: the kinds of all its joins, the methods that its DISTINCT calls can
    follow, whether an aggregate stands over a join that lets part of it below, and the phases that one can have.
    """

    joins: tuple[str, ...] = ()
    methods: frozenset[str] = frozenset()
    eager: bool = False
    phases: frozenset[str] = frozenset()


def facts_of(text: str) -> Facts:
    """Of one of the broad queries."""
    joins = tuple(found[1] or "INNER" for found in _JOIN.finditer(text))
    calls = _CALL.findall(text)
    sets = {values for _, values in calls}
    methods = {"split"} if calls else set()
    if len(sets) > 1:
        methods.add("branches")
    # A value that is summed needs more than a bit.
    bits = sets - {values for function, values in calls if function != "COUNT"}
    if {re.sub(r"^[a-z]\.", "", values) for values in bits} & _COUNTABLE:
        methods.add("bitmap")
    if any(counted in text for counted in _BY_GROUPS_WITH_BITS):
        methods.add("bitmap")
    grouped = text in EAGER or text in _OVER_A_JOIN or text in OVERFLOWS
    phases = {"TWO_PHASE"} if _AGGREGATE.search(text) else set()
    if phases and ("GROUP BY" in text or "SELECT DISTINCT" in text or "UNION" in text or calls or joins):
        phases.add("ONE_PHASE")
    eager = grouped and bool(joins) and joins[-1] != "FULL"
    return Facts(joins, frozenset(methods), eager, frozenset(phases))


def allows_way(kind: str, ship: str, local: str) -> bool:
    """Whether a join of this kind can be run so."""
    is_pair = is_legal(JoinShip(ship), JoinLocal(local))
    return is_pair and kind in SHIPS.get(ship, KINDS) and kind in LOCALS.get(local, KINDS)


def allows_skew(kind: str, ship: str, local: str, skew: str) -> bool:
    """Whether the hot keys of a join that is run so can be handled so."""
    if skew in {JoinSkew.AUTO, JoinSkew.NONE}:
        return True
    if kind == "CROSS" or ship.startswith("BROADCAST"):
        return False
    return skew == JoinSkew.ISOLATE or not (kind == "FULL" or local.startswith("HASH"))


def refused(facts: Facts, settings: Settings) -> set[str]:
    """The settings that such a query cannot follow; where a pair of strategies is none, `join.local` is the one."""
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
        # One join that cannot is enough: none is left to run otherwise in silence.
        names |= {"join.ship"} if not all(allows_way(kind, ship, "AUTO") for kind in kinds) else set()
        names |= {"join.local"} if not all(allows_way(kind, "AUTO", local) for kind in kinds) else set()
    # Of hot keys, the joins that can do so do so.
    return names | ({"join.skew"} if not any(allows_skew(kind, ship, local, skew) for kind in kinds) else set())
