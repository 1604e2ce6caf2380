"""The rule `join_strategy`."""

from __future__ import annotations

import math

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.reports import Alternative
from service.sql.statements.join_hints import HASHED_SIDE, refusal_of_local, refusal_of_pair, refusal_of_ship
from workers.engine.plan.nodes import Join, Node
from workers.engine.rules.joins.skew_cost import cost_apart, is_parted
from workers.engine.rules.joins.strategy_cost import (
    NOTHING,
    SORTED,
    Demand,
    JoinSide,
    Way,
    broadcast_room,
    cost_of,
    demand_of,
    demand_text,
    join_sides,
    possible_ways,
    sent_side,
    skew_of,
    with_choice,
)
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.partitioning import BROADCAST_BYTES, broadcast_side

MIN_ROWS = 1_000_000
"""Rows of both sides below which nothing is decided: no way takes long."""

CLEAR_GAIN = 1.5
"""How many times as much Spark's sort-merge must cost for AUTO to leave it."""

_BROADCASTS = {Way.BROADCAST_LEFT, Way.BROADCAST_RIGHT}


class JoinStrategy:
    """Decides which side of a join is sent whole, or hashed, and which are parted by the key, sorted and merged.

    >>> uid, owner = column("o.uid", BIGINT), column("u.uid", BIGINT)
    >>> orders = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"),))
    >>> users = Scan("users", "u", ((Field("u.uid", BIGINT), "uid"),))
    >>> before = Join(orders, users, JoinKind.INNER, ((uid, owner),))
    >>> print(text_of(before))
    Join INNER ON o.uid = u.uid
      Scan orders AS o [o.uid]
      Scan users AS u [u.uid]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(JoinStrategy().rewrite(Match(before, "BROADCAST_RIGHT", ""), ctx)))
    Join INNER BROADCAST_RIGHT HASH_RIGHT ON o.uid = u.uid
      Scan orders AS o [o.uid]
      Scan users AS u [u.uid]

    Spark itself broadcasts a side whose files are below 10 MB, and else sorts and merges, until its adaptive execution
    sees that a side came out small. The choice becomes Spark's hint, which adaptive execution keeps to.
    `joins/strategy_cost.py` has the formulas.

    Fires when:
        - `join.ship` or `join.local` is forced, by a hint, by the join itself or by the settings: what is left open is
          then chosen by cost, or is sort-merge, or the hash table of the forced side behind a shuffle; or
        - both are AUTO, a million rows come in, and a broadcast costs clearly less than sort-merge and surely fits in
          memory, beside those of the joins below: by the rows in the files, whatever a condition may leave, and by how
          wide texts are in a few of them, with a margin; or
        - both are AUTO and Spark would broadcast a side, for its files are small, whose rows do not fit in memory, or
          may not where `eager_aggregation` has asked for that: it is sort-merge then.

    Does not fire when:
        - the join has no key and nothing is forced;
        - a rule has given the join another kind, for which Spark has not what is forced;
        - it is AUTO and Spark broadcasts a side by itself that may fit in memory, or does so on a hint, for
          `eager_aggregation` has aggregated the side, and it surely fits;
        - it is AUTO and a broadcast beats sort-merge for a hot key alone, which `skewed_join` joins apart for less;
        - it is AUTO and `join.skew` is forced, and parts the join: no side is broadcast then, whatever it would cost;
        - it is AUTO and the size of a side is not known, or there are few rows, or no broadcast is clearly cheaper and
          safe (no side is with computed texts, or with texts of files that cannot be read): a hash table behind a
          shuffle, which cannot spill, is for those who ask for it, or for REPARTITION.

    Why the result is the same:
        every way joins the same rows by the same condition; only the order of the rows that come out differs.

    Settings read:
        join.ship, join.local, join.skew, skew.factor, skew.threshold
    """

    name = "join_strategy"

    def match(self, node: Node, ctx: RuleContext) -> Match[Join] | Skip | None:
        """As the class says; None for anything but a join, and for one without keys of which nothing is demanded."""
        if not isinstance(node, Join):
            return None
        ship, local = _demand(node, ctx)
        if (ship, local) == NOTHING:
            return _decide_by_cost(node, ctx) if node.keys else None
        refusal = (
            refusal_of_pair(ship, local)
            or refusal_of_ship(node.kind, ship, bool(node.keys))
            or refusal_of_local(node.kind, local, bool(node.keys))
        )
        if refusal is not None:
            return Skip(f"{demand_text(ship, local)} cannot be had: {refusal}.")
        return _decide_forced(node, ship, local, ctx)

    def rewrite(self, match: Match[Join], ctx: RuleContext, /) -> Node:
        """The join with its strategy."""
        node = match.node
        ship, local = Way(match.choice).pair
        return with_choice(node, ship, local if node.keys else JoinLocal.AUTO, _demand(node, ctx))


def _demand(node: Join, ctx: RuleContext) -> Demand:
    return demand_of(node, ctx.settings.join.ship, ctx.settings.join.local)


def _decide_forced(node: Join, ship: JoinShip, local: JoinLocal, ctx: RuleContext) -> Match[Join]:
    ways = possible_ways(node, ship, local)
    if _is_parted(node, ctx):
        ways = tuple(way for way in ways if way not in _BROADCASTS)
    sides = join_sides(node, ctx.statistics) if node.keys else None
    # Sort-merge comes first, and a hash table behind a shuffle before one of a broadcast.
    chosen = ways[0]
    if sides is not None and _doubt(sides) is None:
        safe = [way for way in ways if way is chosen or _is_safe(way, sides, ctx)]
        best = min(safe, key=lambda way: cost_of(way, *sides, ctx.statistics.slots).slowest)
        chosen = best if _is_clear_gain(best, chosen, sides, ctx) else chosen
    reason = f"{demand_text(ship, local)} is forced for this join{_misfit(node, ship, ctx)}."
    return Match(node, chosen.value, reason, _alternatives(ways, sides, chosen, ctx))


def _misfit(node: Join, ship: JoinShip, ctx: RuleContext) -> str:
    """What speaks against a broadcast that is forced, for the end of a sentence; nothing where it is expected to fit,
    or no size is known.
    """
    sides = join_sides(node, ctx.statistics) if ship in HASHED_SIDE else None
    side = None if sides is None else sent_side(ship, sides)
    if side is None or side.may_fit_in_broadcast(ctx.statistics):
        return ""
    name, room = "left" if ship is JoinShip.BROADCAST_LEFT else "right", broadcast_room(ctx.statistics)
    beside = f", beside {_mb(side.beside)} of the joins below" if side.beside else ""
    return (
        f", but its {name} side is not expected to fit in memory: about {round(side.rows):,} rows, or "
        f"{_mb(side.least_bytes)} at least{beside}, where a broadcast may take {_mb(room)}"
    )


def _mb(size: float) -> str:
    return f"{math.ceil(size / (1 << 20)):,} MB"


def _decide_by_cost(node: Join, ctx: RuleContext) -> Match[Join] | Skip:
    sides = join_sides(node, ctx.statistics)
    ship = broadcast_side(node, ctx.statistics)
    if ship is not None:
        return _by_spark(node, ship, sides, ctx)
    if sides is None:
        return Skip("The size of a side is not known: the join is left to Spark.")
    ways = possible_ways(node, JoinShip.AUTO, JoinLocal.AUTO)
    doubt = _doubt(sides)
    if doubt is not None:
        return Skip(doubt, _alternatives(ways, sides, Way.SORT_MERGE, ctx))
    # A hash table behind a shuffle cannot spill where a sort can: it is taken where it is asked for.
    safe = [way for way in ways if way is Way.SORT_MERGE or (way in _BROADCASTS and _is_safe(way, sides, ctx))]
    best = min(safe, key=lambda way: cost_of(way, *sides, ctx.statistics.slots).slowest)
    if not _is_clear_gain(best, Way.SORT_MERGE, sides, ctx):
        unsafe = "" if len(safe) > 1 else ", or surely fits in memory"
        reason = f"No broadcast costs clearly less than sort-merge{unsafe}: the join is left to Spark."
        return Skip(reason + _if_parted_by_key(node, ctx), _alternatives(ways, sides, Way.SORT_MERGE, ctx))
    side, index = ("left", 0) if best is Way.BROADCAST_LEFT else ("right", 1)
    if _is_parted(node, ctx):
        forced = skew_of(node, ctx.settings.join.skew)
        reason = f"join.skew is {forced}: to send the {side} side whole would cost less, but part no hot keys."
        return Skip(reason, _alternatives(ways, sides, Way.SORT_MERGE, ctx))
    if _is_beaten_by_parts(best, node, sides, ctx):
        reason = (
            f"To send the {side} side whole costs more than to join the hot keys apart and sort and merge the rest."
        )
        return Skip(reason, _alternatives(ways, sides, Way.SORT_MERGE, ctx))
    most = sides[index].most or 0.0
    reason = (
        f"The {side} side has at most {round(most):,} rows, which fit in memory: sent whole, it spares the shuffle."
    )
    return Match(node, best.value, reason, _alternatives(ways, sides, best, ctx))


def _if_parted_by_key(node: Join, ctx: RuleContext) -> str:
    """What would be chosen if a shuffle were forced, as one more sentence; nothing where that is sort-merge too."""
    found = _decide_forced(node, JoinShip.REPARTITION, JoinLocal.AUTO, ctx)
    if found.choice == Way.SORT_MERGE.value:
        return ""
    return f" With join.ship REPARTITION it would be {found.choice}."


def _is_parted(node: Join, ctx: RuleContext) -> bool:
    """Whether hot keys are parted because that is forced: a side that is sent whole by choice would undo it."""
    return is_parted(node, skew_of(node, ctx.settings.join.skew), _demand(node, ctx), ctx.statistics, ctx.above)


def _is_beaten_by_parts(best: Way, node: Join, sides: tuple[JoinSide, JoinSide], ctx: RuleContext) -> bool:
    """Whether it is a hot key alone that makes sort-merge dear, which `skewed_join` will join apart: on many slots the
    driver sends the smaller side to all of them longer than they take to sort and merge both.
    """
    if skew_of(node, ctx.settings.join.skew) is JoinSkew.NONE:
        return False
    apart = cost_apart(node, ctx.statistics, ctx.settings.skew, ctx.above)
    # Sorting counts for more in the costs of whole joins.
    return (
        apart is not None and apart.slowest * SORTED * CLEAR_GAIN <= cost_of(best, *sides, ctx.statistics.slots).slowest
    )


def _by_spark(
    node: Join, ship: JoinShip, sides: tuple[JoinSide, JoinSide] | None, ctx: RuleContext
) -> Match[Join] | Skip:
    """A side has files so small that Spark broadcasts it, whatever they hold: a file of one value that repeats has
    hundreds of rows a byte.
    """
    small = f"its files are below {BROADCAST_BYTES >> 20} MB"
    name = "left" if ship is JoinShip.BROADCAST_LEFT else "right"
    side = None if sides is None else sent_side(ship, sides)
    ways = possible_ways(node, JoinShip.AUTO, JoinLocal.AUTO)
    if side is None or not _must_not_be_sent(node, side, ctx):
        # None is chosen by the engine, which is not held to an estimate of what Spark sends.
        sent = _alternatives(ways, sides, None, ctx)
        if node.strategy.ship is not JoinShip.AUTO:
            return Skip(f"The {name} side, which is aggregated now, is broadcast as Spark would have: {small}.", sent)
        return Skip(f"Spark broadcasts a side by itself: {small}.", sent)
    reason = f"Spark would broadcast the {name} side, for {small}: its {round(side.rows):,} rows do not fit in memory."
    return Match(node, Way.SORT_MERGE.value, reason, _alternatives(ways, sides, Way.SORT_MERGE, ctx))


def _must_not_be_sent(node: Join, side: JoinSide, ctx: RuleContext) -> bool:
    """Whether Spark is to be kept from sending `side`: where it cannot fit. Where a rule has asked for the broadcast,
    of a side that is aggregated now, already where that may not fit, beside what joins below send by now.
    """
    if node.strategy.ship is JoinShip.AUTO:
        return side.is_too_large(ctx.statistics)
    return not side.fits_in_broadcast(ctx.statistics)


def _doubt(sides: tuple[JoinSide, JoinSide]) -> str | None:
    rows = round(sides[0].rows + sides[1].rows)
    if rows < MIN_ROWS:
        return f"{rows:,} rows are too few to decide anything on (below {MIN_ROWS:,}): the join is left to Spark."
    return None


def _is_safe(way: Way, sides: tuple[JoinSide, JoinSide], ctx: RuleContext) -> bool:
    """Whether the hashed side surely fits, and Spark would not do better by what it sees while it runs."""
    build, probe = sides if way.value.endswith("LEFT") else (sides[1], sides[0])
    if way in _BROADCASTS:
        return build.fits_in_broadcast(ctx.statistics)
    # A hint keeps adaptive execution from broadcasting a side that came out small behind a condition or a group.
    may_shrink = not build.is_exact or not probe.is_exact
    return not may_shrink and build.rows * build.width > 2 * BROADCAST_BYTES and build.fits_in_task(ctx.statistics)


def _is_clear_gain(way: Way, other: Way, sides: tuple[JoinSide, JoinSide], ctx: RuleContext) -> bool:
    slots = ctx.statistics.slots
    return cost_of(way, *sides, slots).slowest * CLEAR_GAIN <= cost_of(other, *sides, slots).slowest


def _alternatives(
    ways: tuple[Way, ...], sides: tuple[JoinSide, JoinSide] | None, chosen: Way | None, ctx: RuleContext
) -> tuple[Alternative, ...]:
    if sides is None:
        return ()
    slots = ctx.statistics.slots
    return tuple(cost_of(way, *sides, slots).alternative(way.value, chosen or "") for way in ways)
