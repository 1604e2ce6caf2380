"""What Spark 4.3 supports by kind of join: the strategies, and the sides below which a condition can be moved.

Spark supports five of the nine pairs of ship and local strategy. It hashes the side that it broadcasts, and an outer
join cannot broadcast the side whose unmatched rows it keeps. Of two repartitioned sides either may be hashed, but a
semi or anti join only hashes the right one (`JoinSelectionHelper.canBuildBroadcastLeft` and the three related methods).
"""

from __future__ import annotations

from enum import StrEnum

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import JoinKind


class Side(StrEnum):
    """A side of a join."""

    LEFT = "LEFT"
    RIGHT = "RIGHT"

    @property
    def other(self) -> Side:
        """The other side."""
        return Side.RIGHT if self is Side.LEFT else Side.LEFT


KEEPS = {
    JoinKind.LEFT: (True, False),
    JoinKind.LEFT_SEMI: (True, False),
    JoinKind.LEFT_ANTI: (True, False),
    JoinKind.RIGHT: (False, True),
    JoinKind.FULL: (True, True),
}
"""By kind, whether the result depends on which rows of the left and of the right side have no match. That side must be
the stream: for a row of a static table a match may always arrive later."""

ONE_SIDED = frozenset({JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI})
"""Kinds that only emit the left side's columns."""

BROADCASTS_LEFT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT})
"""Kinds that may broadcast their left side."""

BROADCASTS_RIGHT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT}) | ONE_SIDED
"""Kinds that may broadcast their right side."""

HASHED_SIDE = {JoinShip.BROADCAST_LEFT: JoinLocal.HASH_LEFT, JoinShip.BROADCAST_RIGHT: JoinLocal.HASH_RIGHT}
"""The only local strategy of a broadcast join with keys."""

NULL_EXTENDED = {
    JoinKind.LEFT: frozenset({Side.RIGHT}),
    JoinKind.RIGHT: frozenset({Side.LEFT}),
    JoinKind.FULL: frozenset(Side),
}
"""Sides whose columns are all NULL in rows without a match."""

CONDITION_MOVES = {
    JoinKind.INNER: frozenset(Side),
    JoinKind.CROSS: frozenset(Side),
    JoinKind.LEFT: frozenset({Side.LEFT}),
    JoinKind.RIGHT: frozenset({Side.RIGHT}),
    JoinKind.LEFT_SEMI: frozenset({Side.LEFT}),
    JoinKind.LEFT_ANTI: frozenset({Side.LEFT}),
}
"""Sides below which a condition above the join may be moved if it only reads that side. Spark moves such conditions
there anyway, including those that may fail, and before the conditions of the join."""

RESIDUAL_MOVES = {
    JoinKind.INNER: frozenset(Side),
    JoinKind.LEFT: frozenset({Side.RIGHT}),
    JoinKind.RIGHT: frozenset({Side.LEFT}),
    JoinKind.LEFT_SEMI: frozenset(Side),
    JoinKind.LEFT_ANTI: frozenset({Side.RIGHT}),
}
"""The same for a condition of the join."""


def refusal_of_ship(kind: JoinKind, ship: JoinShip, has_keys: bool) -> str | None:
    """Returns why a join of this kind cannot use the ship strategy; None if it can. `has_keys`: it has an equality."""
    if ship is JoinShip.REPARTITION and not has_keys:
        return "a join without an equality has no key to partition its rows by"
    if ship is JoinShip.BROADCAST_LEFT and kind not in BROADCASTS_LEFT:
        return f"a {kind} join cannot broadcast its left side" + _reason(kind, "left")
    if ship is JoinShip.BROADCAST_RIGHT and kind not in BROADCASTS_RIGHT:
        return f"a {kind} join cannot broadcast its right side" + _reason(kind, "right")
    return None


def refusal_of_local(kind: JoinKind, local: JoinLocal, has_keys: bool) -> str | None:
    """Returns why a join of this kind cannot use the local strategy; None if it can."""
    if local is JoinLocal.AUTO:
        return None
    if not has_keys:
        return "a join without an equality compares every pair of rows, so there is no key to hash or merge by"
    if local is JoinLocal.HASH_LEFT and kind in ONE_SIDED:
        return f"a {kind} join emits each left row at most once, so Spark only hashes the right side"
    return None


def refusal_of_pair(ship: JoinShip, local: JoinLocal) -> str | None:
    """Returns why Spark does not support the pair of strategies; None if it does."""
    hashed = HASHED_SIDE.get(ship)
    if hashed is None or local in {JoinLocal.AUTO, hashed}:
        return None
    return f"Spark hashes the side that it broadcasts, so {ship} requires {hashed}"


def _reason(kind: JoinKind, side: str) -> str:
    if kind in ONE_SIDED:
        return ": it emits each left row at most once"
    return f": every task would emit the unmatched rows of the {side} side"
