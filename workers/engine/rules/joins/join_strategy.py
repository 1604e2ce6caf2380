"""The rule `join_strategy`."""

from __future__ import annotations

import math
from dataclasses import replace

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.sql.joins import HASHED_SIDE, refusal_of_local, refusal_of_pair, refusal_of_ship
from workers.engine.plan.nodes import Join, Node
from workers.engine.rules.cost import Choice, Cost, too_few_rows
from workers.engine.rules.joins.skew_cost import split_join_cost, will_be_split
from workers.engine.rules.joins.strategy_cost import (
    EXPECTED_BROADCAST,
    NOT_FORCED,
    SORTED,
    ForcedStrategy,
    JoinAlgorithm,
    JoinSide,
    adaptive_broadcast,
    broadcast_input,
    broadcast_limit,
    cost_of,
    forced_strategy,
    join_sides,
    possible_algorithms,
    skew_of,
    with_choice,
)
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import estimate_rows
from workers.engine.statistics.partitioning import BROADCAST_BYTES, broadcast_side

MIN_ROWS = 1_000_000
"""Rows of both sides below which the rule decides nothing: any algorithm is fast."""

CLEAR_GAIN = 1.5
"""AUTO replaces Spark's sort-merge only if it costs at least so many times as much as the alternative."""

MANY_MATCHES = 8
"""AUTO does not broadcast if the join emits so many times the rows of both sides. Each match is an access to a random
place of a large hash table: TPC-DS query 72, with 73 times as many, took 130 s with a broadcast and 22 s merged."""

_SORT_MERGE = JoinAlgorithm.SORT_MERGE
_BROADCASTS = {JoinAlgorithm.BROADCAST_LEFT, JoinAlgorithm.BROADCAST_RIGHT}


class JoinStrategy:
    """Decides whether a join broadcasts a side, hashes a side, or sorts and merges both.

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

    Spark itself broadcasts a side whose files are below 10 MB. Otherwise it sorts and merges, unless its adaptive
    execution finds at run time that a side is small. The choice becomes a Spark hint, which adaptive execution follows.
    `strategy_cost.py` has the formulas.

    Fires when:
        - `join.ship` or `join.local` is forced, by a hint, by the join itself or by the settings: the other one is
          then chosen by cost; without a clear gain it is sort-merge, or the forced side is hashed after a shuffle; or
        - both are AUTO, the input has a million rows, and a broadcast costs clearly less than sort-merge and is certain
          to fit in memory together with the broadcasts of the joins below: this uses the number of rows in the files,
          without the effect of conditions, and the length of strings in a few rows, with a margin; or
        - both are AUTO and Spark would broadcast a side because its files are small, but its rows do not fit in memory,
          or, if `eager_aggregation` requested the broadcast, may not fit: the rule then chooses sort-merge.

    Does not fire when:
        - the join has no key and nothing is forced;
        - a rule changed the kind of the join, and Spark does not support what is forced for the new kind;
        - it is AUTO and Spark broadcasts a side that may fit in memory, or a side that `eager_aggregation` aggregated
          and hinted and that is certain to fit;
        - it is AUTO and the join emits many times the rows of both sides;
        - it is AUTO and adaptive execution is expected to broadcast the other side, because conditions leave few of its
          rows, unless the broadcast costs clearly less than this;
        - it is AUTO and a broadcast beats sort-merge only because of a hot key, which `skewed_join` handles for less;
        - it is AUTO and `join.skew` is forced and splits the join: then no side is broadcast, at any cost;
        - it is AUTO and the size of a side is not known, or there are few rows, or no broadcast is clearly cheaper and
          safe (a side with computed strings, or strings from files that cannot be read, is never safe). A hash table
          after a shuffle cannot spill: the rule uses it only if it is forced, or with REPARTITION.

    Why the result is the same:
        every algorithm joins the same rows by the same condition; only the order of the output rows differs.

    Settings read:
        join.ship, join.local, join.skew, skew.factor, skew.threshold
    """

    name = "join_strategy"

    def match(self, node: Node, ctx: RuleContext) -> Match[Join] | Skip | None:
        """Returns None for other nodes than joins, and for cross joins for which nothing is forced."""
        if not isinstance(node, Join):
            return None
        forced = forced_strategy(node, ctx.settings.join)
        if forced == NOT_FORCED and not node.keys and node.kind is not JoinKind.CROSS:
            return Skip("The join has no equality, so Spark compares each pair of rows: the join is left to Spark.")
        if forced == NOT_FORCED:
            return _choose_algorithm_by_cost(node, ctx) if node.keys else None
        refusal = (
            refusal_of_pair(*forced)
            or refusal_of_ship(node.kind, forced.ship, bool(node.keys))
            or refusal_of_local(node.kind, forced.local, bool(node.keys))
        )
        if refusal is not None:
            return Skip(f"{forced.text} is not supported for this join: {refusal}.")
        return _decide_forced(node, forced, ctx)

    def rewrite(self, match: Match[Join], ctx: RuleContext, /) -> Node:
        """Returns the join with its strategy."""
        node = match.node
        ship, local = JoinAlgorithm(match.choice).pair
        forced = forced_strategy(node, ctx.settings.join)
        return with_choice(node, ship, local if node.keys else JoinLocal.AUTO, forced)


def _decide_forced(node: Join, forced: ForcedStrategy, ctx: RuleContext) -> Match[Join]:
    algorithms = possible_algorithms(node, *forced)
    if _will_be_split(node, ctx):
        algorithms = tuple(algorithm for algorithm in algorithms if algorithm not in _BROADCASTS)
    sides = join_sides(node, ctx.statistics, ctx.above) if node.keys else None
    choice = _choice(algorithms, sides, ctx)
    # Sort-merge is the first, and a hash table after a shuffle is before one of a broadcast.
    chosen = algorithms[0]
    if sides is not None and _too_few_rows(sides) is None:
        best = _cheapest_safe(algorithms, chosen, sides, choice, ctx)
        chosen = best if choice.is_clearly_cheaper(best, chosen, CLEAR_GAIN) else chosen
    reason = f"{forced.text} is forced for this join{_memory_warning(node, forced.ship, ctx)}."
    return choice.match(node, chosen.value, reason)


def _memory_warning(node: Join, ship: JoinShip, ctx: RuleContext) -> str:
    """Returns the end of a sentence that warns of a forced broadcast that is not expected to fit in memory; an empty
    text where it is expected to fit, or no size is known.
    """
    sides = join_sides(node, ctx.statistics) if ship in HASHED_SIDE else None
    side = None if sides is None else broadcast_input(ship, sides)
    if side is None or side.may_fit_in_broadcast(ctx.statistics):
        return ""
    name, limit = "left" if ship is JoinShip.BROADCAST_LEFT else "right", broadcast_limit(ctx.statistics)
    others = side.other_broadcasts
    in_addition = f", in addition to {_megabytes(others)} for the joins below" if others else ""
    return (
        f", but its {name} side is not expected to fit in memory: about {round(side.rows):,} rows take at least "
        f"{_megabytes(side.min_bytes)}{in_addition}; the limit of a broadcast is {_megabytes(limit)}"
    )


def _megabytes(size: float) -> str:
    return f"{math.ceil(size / (1 << 20)):,} MB"


def _choose_algorithm_by_cost(node: Join, ctx: RuleContext) -> Match[Join] | Skip:
    sides = join_sides(node, ctx.statistics, ctx.above)
    ship = broadcast_side(node, ctx.statistics)
    if ship is not None:
        return _match_spark_broadcast(node, ship, sides, ctx)
    if sides is None:
        return Skip("The size of a side is not known: the join is left to Spark.")
    algorithms = possible_algorithms(node, JoinShip.AUTO, JoinLocal.AUTO)
    choice = _choice(algorithms, sides, ctx)
    adaptive = adaptive_broadcast(node, sides, ctx.statistics)
    if adaptive is not None:
        choice = replace(choice, costs={**choice.costs, _SORT_MERGE.value: adaptive[1]})
    too_few = _too_few_rows(sides)
    if too_few is not None:
        return choice.skip(too_few)
    # A hash table after a shuffle cannot spill, but a sort can: AUTO never chooses the hash table.
    eligible = tuple(one for one in algorithms if one is _SORT_MERGE or one in _BROADCASTS)
    best = _cheapest_safe(eligible, _SORT_MERGE, sides, choice, ctx)
    # The same broadcast, without the shuffle before it, never costs more.
    gain = 1.0 if adaptive is not None and best is adaptive[0] else CLEAR_GAIN
    if not choice.is_clearly_cheaper(best, _SORT_MERGE, gain):
        is_any_safe = any(_is_safe(one, sides, ctx) for one in eligible if one is not _SORT_MERGE)
        unsafe = "" if is_any_safe else " and is certain to fit in memory"
        if adaptive is not None:
            return choice.skip(f"{EXPECTED_BROADCAST}.")
        reason = f"No broadcast costs clearly less than sort-merge{unsafe}: the join is left to Spark."
        return choice.skip(reason + _choice_if_repartitioned(node, ctx))
    side, index = ("left", 0) if best is JoinAlgorithm.BROADCAST_LEFT else ("right", 1)
    joined, whole = estimate_rows(node, ctx.statistics), join_sides(node, ctx.statistics)
    rows = 0.0 if whole is None else whole[0].rows + whole[1].rows
    if joined is not None and joined >= MANY_MATCHES * rows:
        return choice.skip(
            f"{round(rows):,} rows become about {joined:,}. So many matches take longer in a hash table of the whole "
            f"{side} side than by sort-merge: the join is left to Spark."
        )
    if _will_be_split(node, ctx):
        forced = skew_of(node, ctx.settings.join.skew)
        return choice.skip(
            f"join.skew is {forced}: broadcasting the {side} side would cost less, but it would not split hot keys."
        )
    if _is_split_cheaper(choice.costs[best], node, ctx):
        return choice.skip(
            f"Broadcasting the {side} side costs more than joining the hot keys separately and the rest by sort-merge."
        )
    most = sides[index].max_rows or 0.0
    reason = (
        f"The {side} side has at most {round(most):,} rows, which fit in memory: broadcasting it avoids the shuffle."
    )
    return choice.match(node, best.value, reason)


def _cheapest_safe(
    algorithms: tuple[JoinAlgorithm, ...],
    default: JoinAlgorithm,
    sides: tuple[JoinSide, JoinSide],
    choice: Choice,
    ctx: RuleContext,
) -> JoinAlgorithm:
    """Returns the cheapest of `algorithms` that is `default` or safe."""
    safe = [algorithm for algorithm in algorithms if algorithm is default or _is_safe(algorithm, sides, ctx)]
    return min(safe, key=lambda algorithm: choice.costs[algorithm].slowest)


def _choice_if_repartitioned(node: Join, ctx: RuleContext) -> str:
    """Returns a sentence on what would be chosen if a shuffle were forced; an empty text if that is sort-merge."""
    found = _decide_forced(node, ForcedStrategy(JoinShip.REPARTITION), ctx)
    if found.choice == _SORT_MERGE.value:
        return ""
    return f" With join.ship REPARTITION the choice would be {found.choice}."


def _will_be_split(node: Join, ctx: RuleContext) -> bool:
    """Whether `skewed_join` will split the join because that is forced; a broadcast chosen here would prevent it."""
    settings = ctx.settings.join
    return will_be_split(node, skew_of(node, settings.skew), forced_strategy(node, settings), ctx.statistics, ctx.above)


def _is_split_cheaper(best: Cost, node: Join, ctx: RuleContext) -> bool:
    """Whether only a hot key makes sort-merge expensive, and `skewed_join` can handle it for less than `best`: with
    many slots, a broadcast by the driver takes longer than sorting and merging both sides in all slots.
    """
    if skew_of(node, ctx.settings.join.skew) is JoinSkew.NONE:
        return False
    split_cost = split_join_cost(node, ctx.statistics, ctx.settings.skew, ctx.above)
    # In the costs of whole joins, sorting has a larger weight.
    return split_cost is not None and split_cost.slowest * SORTED * CLEAR_GAIN <= best.slowest


def _match_spark_broadcast(
    node: Join, ship: JoinShip, sides: tuple[JoinSide, JoinSide] | None, ctx: RuleContext
) -> Match[Join] | Skip:
    """Decides about a side that Spark broadcasts because its files are small. Such a side may still be too large: a
    file in which one value repeats has hundreds of rows per byte.
    """
    small = f"its files are below {BROADCAST_BYTES >> 20} MB"
    name = "left" if ship is JoinShip.BROADCAST_LEFT else "right"
    side = None if sides is None else broadcast_input(ship, sides)
    choice = _choice(possible_algorithms(node, JoinShip.AUTO, JoinLocal.AUTO), sides, ctx)
    if side is None or not _must_prevent_broadcast(node, side, ctx):
        # Spark chooses, not this rule: no alternative is marked as chosen.
        by_spark = replace(choice, kept="")
        if node.strategy.ship is not JoinShip.AUTO:
            return by_spark.skip(f"The {name} side, now aggregated, is still broadcast, as by Spark itself: {small}.")
        return by_spark.skip(f"Spark broadcasts a side by itself: {small}.")
    reason = f"Spark would broadcast the {name} side ({small}), but its {round(side.rows):,} rows do not fit in memory."
    return choice.match(node, _SORT_MERGE.value, reason)


def _must_prevent_broadcast(node: Join, side: JoinSide, ctx: RuleContext) -> bool:
    """Whether the rule must keep Spark from broadcasting `side`: if it cannot fit in memory. If a rule requested the
    broadcast of the aggregated side, it is enough that it may not fit together with the broadcasts of joins below.
    """
    if node.strategy.ship is JoinShip.AUTO:
        return side.is_too_large(ctx.statistics)
    return not side.fits_in_broadcast(ctx.statistics)


def _too_few_rows(sides: tuple[JoinSide, JoinSide]) -> str | None:
    """Returns the reason of a skip if the sides have too few rows, otherwise None."""
    return too_few_rows(sides[0].rows + sides[1].rows, MIN_ROWS, ": the join is left to Spark")


def _is_safe(algorithm: JoinAlgorithm, sides: tuple[JoinSide, JoinSide], ctx: RuleContext) -> bool:
    """Whether the hashed side is certain to fit, and adaptive execution could not choose better at run time."""
    build, probe = sides if algorithm.value.endswith("LEFT") else (sides[1], sides[0])
    if algorithm in _BROADCASTS:
        return build.fits_in_broadcast(ctx.statistics)
    # A hint keeps adaptive execution from broadcasting a side that is small after a condition or an aggregate.
    may_shrink = not build.is_exact or not probe.is_exact
    return not may_shrink and build.rows * build.width > 2 * BROADCAST_BYTES and build.fits_in_task(ctx.statistics)


def _choice(algorithms: tuple[JoinAlgorithm, ...], sides: tuple[JoinSide, JoinSide] | None, ctx: RuleContext) -> Choice:
    """Returns the costs of `algorithms`; none if the size of a side is not known."""
    costs = {} if sides is None else {one.value: cost_of(one, *sides, ctx.statistics.slots) for one in algorithms}
    return Choice(costs, _SORT_MERGE.value)
