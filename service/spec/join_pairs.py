"""Which ways of running a join Spark 4.3 has: five of the nine pairs of ship and local strategy, not each for every
kind.

A broadcast side is the hashed one, and no outer join broadcasts the side whose unmatched rows it keeps: each task would
emit them. Once both sides are parted by the key a hash table of either side does, but a semi or anti join hashes the
right one alone (`JoinSelectionHelper.canBuildBroadcastLeft` and its three siblings, found again in physical plans).
"""

from __future__ import annotations

from service.spec.query import JoinKind
from service.spec.strategies import JoinLocal, JoinShip

ONE_SIDED = frozenset({JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI})
"""Kinds that emit the left side's columns alone."""

BROADCASTS_LEFT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT})
"""Kinds that may broadcast their left side."""

BROADCASTS_RIGHT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT}) | ONE_SIDED
"""Kinds that may broadcast their right side."""

HASHED_SIDE = {JoinShip.BROADCAST_LEFT: JoinLocal.HASH_LEFT, JoinShip.BROADCAST_RIGHT: JoinLocal.HASH_RIGHT}
"""The only local strategy beside a broadcast, where the join has keys."""


def refusal_of_ship(kind: JoinKind, ship: JoinShip, has_keys: bool) -> str | None:
    """Why a join of this kind cannot ship its rows so; None where it can. `has_keys`: it has an equality."""
    if ship is JoinShip.REPARTITION and not has_keys:
        return "a join without an equality has no key to part its rows by"
    if ship is JoinShip.BROADCAST_LEFT and kind not in BROADCASTS_LEFT:
        return f"a {kind} join cannot broadcast its left side" + _because_of(kind, "left")
    if ship is JoinShip.BROADCAST_RIGHT and kind not in BROADCASTS_RIGHT:
        return f"a {kind} join cannot broadcast its right side" + _because_of(kind, "right")
    return None


def refusal_of_local(kind: JoinKind, local: JoinLocal, has_keys: bool) -> str | None:
    """Why a task cannot join its rows so in a join of this kind; None where it can."""
    if local is JoinLocal.AUTO:
        return None
    if not has_keys:
        return "a join without an equality compares every pair of rows: there is nothing to hash or to merge by"
    if local is JoinLocal.HASH_LEFT and kind in ONE_SIDED:
        return f"a {kind} join keeps left rows once each, so that its hash table is of the right side"
    return None


def refusal_of_pair(ship: JoinShip, local: JoinLocal) -> str | None:
    """Why Spark has not this pair; None where it has."""
    hashed = HASHED_SIDE.get(ship)
    if hashed is None or local in {JoinLocal.AUTO, hashed}:
        return None
    return f"Spark builds the hash table of the side that it broadcasts: {ship} goes with {hashed} alone"


def _because_of(kind: JoinKind, side: str) -> str:
    if kind in ONE_SIDED:
        return ": it keeps left rows once each"
    return f": every task would emit the unmatched rows of the {side} side"
