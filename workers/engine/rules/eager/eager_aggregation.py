"""The rule `eager_aggregation`, and what it costs.

The cost of aggregating sides of a join before the join is counted in rows that the slowest task handles, all phases
added.

The unit is that of `workers.engine.rules.cost`: a row that is shuffled, aggregated or emitted by the join costs 1. A
side that is not aggregated is shuffled by the join's key. An aggregated side is shuffled by its groups, in two phases,
and its groups are shuffled by the key, unless they are the key. The join's output is aggregated again. For a key that
is hot on both sides, the join would emit the product of its rows on one task; aggregating first avoids this.

With a broadcast side nothing is shuffled. In one loop, Spark reads a row, looks up its partners and aggregates the
output; the cost is the larger of the rows read and the rows emitted. Aggregating first pays off if the join multiplies
rows, or if the query groups by strings, which this loop hashes and compares row by row, and the side is grouped by a
few numbers. Its time relative to the query as written (20 M rows with SUM and COUNT, two cores, medians of five
interleaved runs, with other load on the machine):

    keys of the side    grouped by 20 strings  by 10,000 strings  by 20 numbers
    1,000               0.44 - 0.49            0.48               0.95
    20,000              0.63                                      0.90
    100,000             1.08                   0.64
    1,000,000           1.34

So a string costs `TEXT` rows, and a row costs twice as much if Spark's generated hash map cannot hold all keys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from service.contract.options import JoinLocal, JoinShip, Toggle
from service.contract.query import JoinKind
from service.sql.expressions.scalar import Scalar
from service.sql.joins import Side
from service.sql.types.data_types import TypeName
from workers.engine.plan.aggregates import GROUPING_SETS, is_undecided
from workers.engine.plan.joined_aggregate import JoinedAggregate, is_over_join, joined_aggregate
from workers.engine.plan.nodes import (
    Aggregate,
    Join,
    Node,
    columns_of,
    names_of,
    scanned_columns,
)
from workers.engine.rules.cost import (
    MIN_ROWS,
    Choice,
    Cost,
    hottest_task,
    input_tasks,
    key_profile,
    sample_obstacle,
    too_few_rows,
    two_phase,
)
from workers.engine.rules.eager.pushdown import refusal_of
from workers.engine.rules.eager.rewrite import aggregate_below, group_columns, join_within, pushed_over_joins
from workers.engine.rules.eager.wide_sums import SumBounds
from workers.engine.rules.joins.skew_cost import will_be_split
from workers.engine.rules.joins.strategy_cost import (
    NOT_FORCED,
    broadcast_input,
    forced_strategy,
    is_too_large_to_broadcast,
    join_sides,
    max_joined_rows,
    skew_of,
    with_choice,
)
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import KeyProfile, joined_profile
from workers.engine.statistics.model import Statistics
from workers.engine.statistics.partitioning import broadcast_side

NATIVE = "NATIVE"
_TEXTS = frozenset({TypeName.STRING, TypeName.BINARY})
_BROADCAST_SIDE = {JoinShip.BROADCAST_LEFT: Side.LEFT, JoinShip.BROADCAST_RIGHT: Side.RIGHT}
SIDE_CHOICES: dict[str, frozenset[Side]] = {
    "BOTH": frozenset(Side),
    "LEFT": frozenset({Side.LEFT}),
    "RIGHT": frozenset({Side.RIGHT}),
}
"""The sides to aggregate below the join, by the name of the choice; the most sides first."""

CLEAR_GAIN = 1 / 0.7
"""AUTO rewrites only if the query as written costs so many times as much: the cost per row of joins and aggregates
varies."""

TEXT = 0.8
"""The additional cost of grouping a row by strings with a broadcast side: 1.4 - 1.7 s instead of 0.8."""

FAST_KEYS = 1 << 16
"""Keys that fit in the hash map that Spark generates (`spark.sql.codegen.aggregate.fastHashMap.capacityBit`)."""

STAGE = 1_000_000
"""Rows that a task handles while another stage starts: about a tenth of a second."""


class EagerAggregation:
    """Aggregates one or both sides below a join, and multiplies the results by the number of rows that they represent.

    >>> uid, user, amount = column("o.uid", BIGINT), column("u.uid", BIGINT), column("o.amount", INT)
    >>> orders = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.amount", INT), "amount")))
    >>> users = Scan("users", "u", ((Field("u.uid", BIGINT), "uid"), (Field("u.city", STRING), "city")))
    >>> join = Join(orders, users, JoinKind.INNER, ((uid, user),))
    >>> largest = Call(AggregateFunction.MAX, (amount,), Field("largest", INT))
    >>> rows = Call(AggregateFunction.COUNT, (), Field("rows", BIGINT))
    >>> before = Aggregate(join, (Named(column("u.city", STRING), "city"),), (largest, rows))
    >>> print(text_of(before))
    Aggregate BY u.city AS city [MAX(o.amount) AS largest, COUNT(*) AS rows]
      Join INNER ON o.uid = u.uid
        Scan orders AS o [o.uid, o.amount]
        Scan users AS u [u.uid, u.city]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(EagerAggregation().rewrite(Match(before, "LEFT", ""), ctx)))
    Project city, $f0 AS largest, coalesce($f1, 0L) AS rows
      Aggregate BY u.city AS city [MAX($l0) AS $f0, SUM($l1) AS $f1]
        Join INNER ON o.uid = u.uid
          Aggregate BY o.uid [MAX(o.amount) AS $l0, COUNT(*) AS $l1]
            Scan orders AS o [o.uid, o.amount]
          Scan users AS u [u.uid, u.city]

    A side is grouped by its join keys and by all its columns that are needed above: group keys, conditions on both
    sides, arguments of DISTINCT, arguments that could raise an error for a row that the join drops. `pushdown.py`
    decides what is computed where, `rewrite.py` has the formulas. If the groups are the join's keys and both sides were
    aggregated, the joined rows are the result, and no final aggregate is needed. The rule supports filters and
    projections between the aggregate and the join. A side that Spark would broadcast because its files are small is
    still broadcast if its rows are certain to fit in memory, as in `join_strategy`. If a side is itself a join, the new
    aggregate of that side is over that join, and the planner applies the rule to it too, and so on down a chain of
    joins.

    Fires when:
        an aggregate is above an inner, left, right, semi or anti join with keys, and
        - `eager_aggregation` is true: it takes the cheapest choice if statistics of the keys are known, otherwise as
          many sides as possible; or
        - it is auto, at least 500,000 rows are read or joined, and the cheapest choice costs clearly less (below 70 %)
          than the query as written, by samples of thousands of rows from all parts of the tables.

    Does not fire when:
        - `eager_aggregation` is false;
        - the query has grouping sets: a row counts in several of them;
        - the join is a full or cross join, or has no equality to group by;
        - a call cannot be computed from rows that represent several rows (a DECIMAL with too many digits, a function
          without a formula), or a column that is needed above cannot be grouped by, or is a FLOAT or DOUBLE that an
          expression above reads: groups do not distinguish -0.0 from 0.0;
        - it is auto and there are no statistics for the keys of a side, alone or with the columns needed above;
        - it is auto and `join.skew` is forced and splits the join: a join with an aggregate below is never split.

    Why the result is the same:
        rows of a side that are equal in its join keys and the columns needed above have the same partners, belong to
        the same groups and pass the same conditions, so one row with their number n represents them. Each of them is
        joined with each matching row of the other side: a sum over one side is multiplied by the other side's n, a sum
        of products by the other factor's sum (see `wide_sums.py`); extremes and DISTINCT values are not multiplied. A
        row without partners has n = 1 for the missing side, whose sums are NULL and whose counts are 0. NULL keys are
        grouped and match nothing, as before. The right side of a semi or anti join multiplies nothing. Partial sums
        have enough digits, so that only a total that does not fit raises an error, as in the query, except for groups
        that HAVING drops: Spark does not check their totals. A global aggregate of no rows counts 0.

    Settings read:
        eager_aggregation, join.ship, join.local, join.skew
    """

    name = "eager_aggregation"

    def match(self, node: Node, ctx: RuleContext) -> Match[Aggregate] | Skip | None:
        """Returns None for all nodes but whole aggregates over a join whose phases are not decided."""
        if not isinstance(node, Aggregate) or not is_undecided(node) or not is_over_join(node):
            return None
        if ctx.settings.eager_aggregation is Toggle.FALSE:
            return Skip("eager_aggregation is false.")
        if node.grouping_sets:
            return Skip(GROUPING_SETS)
        over = joined_aggregate(node)
        if over is None:
            return Skip(
                "An expression between the join and the aggregate cannot be rewritten in terms of the join's columns."
            )
        obstacle = _obstacle(over)
        if obstacle is not None:
            return Skip(obstacle)
        refusals = {name: refusal_of(over, sides) for name, sides in SIDE_CHOICES.items()}
        possible = [name for name, refusal in refusals.items() if refusal is None]
        if not possible:
            return Skip(next(refusal for refusal in refusals.values() if refusal is not None))
        found = _side_costs(node, over, possible, ctx)
        if ctx.settings.eager_aggregation is Toggle.TRUE:
            chosen = found.best if found.findings else possible[0]
            return found.choice.match(node, chosen, "eager_aggregation is true.")
        return _choose_sides_by_cost(node, over, found, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """Returns a Project over the final aggregate, if one is needed, over the join of the aggregated sides."""
        over = joined_aggregate(match.node)
        if over is None:
            raise ValueError("this aggregate is not over a join")
        aggregated = SIDE_CHOICES[match.choice]
        ship = _kept_broadcast(match.node, over, aggregated, ctx)
        if ship is not None:
            over = replace(over, join=with_choice(over.join, ship, JoinLocal.AUTO, NOT_FORCED))
        return aggregate_below(match.node, over, aggregated, _bounds(over, ctx.statistics))

    def parts_of(self, match: Match[Aggregate], made: Node, /) -> tuple[Node, ...]:
        """Returns the new aggregates of sides that are joins: the rule may apply to these too."""
        return pushed_over_joins(match.node, made)


@dataclass(frozen=True)
class _SideCosts:
    """The cost of the query as written (`NATIVE`), and of each choice of sides with known keys; no costs if there is no
    such choice.

    `findings` say for each choice of sides how many rows it saves. `rows` is the largest number of rows of the sides
    and the join.
    """

    choice: Choice
    findings: dict[str, str]
    rows: float = 0.0

    @property
    def best(self) -> str:
        """The cheapest choice of sides; of two with the same cost, the one that aggregates fewer sides."""
        return min(self.findings, key=lambda name: (self.choice.costs[name].slowest, len(SIDE_CHOICES[name])))


def _obstacle(over: JoinedAggregate) -> str | None:
    """Returns the reason why nothing can be aggregated below this join, whichever calls there are; None if it can."""
    if over.join.kind in {JoinKind.FULL, JoinKind.CROSS}:
        return f"Aggregation below a {over.join.kind.value} join is not supported."
    if not over.join.keys:
        return "The join has no equality of a left and a right expression: there is no key to group a side by."
    return None


def _choose_sides_by_cost(
    node: Aggregate, over: JoinedAggregate, found: _SideCosts, ctx: RuleContext
) -> Match[Aggregate] | Skip:
    if not found.findings:
        return Skip(
            "There are no statistics for the join's keys: it is not known how many rows aggregating first would leave."
        )
    choice, best, finding = found.choice, found.best, found.findings[found.best]
    too_few = too_few_rows(found.rows, MIN_ROWS, "")
    if too_few is not None:
        return choice.skip(too_few)
    if not choice.is_clearly_cheaper(best, NATIVE, CLEAR_GAIN):
        return choice.skip(f"{finding}, which does not cost clearly less.")
    obstacle = _sample_obstacle(over, SIDE_CHOICES[best], ctx)
    if obstacle is not None:
        return choice.skip(f"{finding}, but {obstacle}.")
    join, settings = over.join, ctx.settings.join
    skew = skew_of(join, settings.skew)
    if will_be_split(join, skew, forced_strategy(join, settings), ctx.statistics):
        reason = f"{finding}, but join.skew is {skew}: hot keys are not joined separately above an aggregate."
        return choice.skip(reason)
    return choice.match(node, best, f"{finding}.")


def _side_costs(node: Aggregate, over: JoinedAggregate, possible: list[str], ctx: RuleContext) -> _SideCosts:
    statistics, kind = ctx.statistics, over.join.kind
    left, right = (key_profile(over.input(side), over.key(side), statistics) for side in Side)
    if left is None or right is None:
        return _SideCosts(Choice({}, NATIVE), {})
    tasks, by_text = input_tasks(over.join, statistics), _has_text(key.expression for key in over.keys)

    def cost(one: JoinInput, other: JoinInput, aggregated: frozenset[Side]) -> Cost:
        eager = Side.LEFT in aggregated, Side.RIGHT in aggregated
        broadcast = _is_broadcast(node, over, aggregated, ctx)
        return join_then_aggregate(one, other, kind, eager, statistics.slots, tasks, broadcast, by_text)

    joined = output_profile(left, right, kind)
    costs: dict[str, Cost] = {}
    findings: dict[str, str] = {}
    for name in possible:
        one = _input(over, Side.LEFT, left, SIDE_CHOICES[name], ctx)
        other = _input(over, Side.RIGHT, right, SIDE_CHOICES[name], ctx)
        if one is None or other is None:
            continue
        costs[name] = cost(one, other, SIDE_CHOICES[name])
        findings[name] = _finding(one, other, SIDE_CHOICES[name], kind)
    if costs:
        native = cost(JoinInput(left, left, True), JoinInput(right, right, True), frozenset())
        costs = {NATIVE: native, **costs}
    return _SideCosts(Choice(costs, NATIVE), findings, max(left.rows, right.rows, joined.rows))


def _bounds(over: JoinedAggregate, statistics: Statistics) -> SumBounds:
    """Returns the ranges of values and the largest numbers of rows of both sides, by the files' metadata."""
    ranges = {}
    for side in Side:
        for name in names_of(over.input(side)):
            scanned = scanned_columns(over.input(side), (name,))
            known = statistics.ranges.get(scanned[0]) if scanned else None
            if known is not None and known.is_whole:
                ranges[name] = (known.low, known.high)
    rows = {side: max_joined_rows(over.input(side), statistics) for side in Side}
    return SumBounds(ranges, {side: most for side, most in rows.items() if most is not None})


def _is_broadcast(node: Aggregate, over: JoinedAggregate, aggregated: frozenset[Side], ctx: RuleContext) -> bool:
    """Whether a side of the join is broadcast if the sides in `aggregated` are aggregated first."""
    ship, _ = forced_strategy(over.join, ctx.settings.join)
    if ship in _BROADCAST_SIDE:
        return True
    ship_by_size = _broadcast_by_size(over.join, ctx)
    if ship_by_size is None:
        return False
    if _BROADCAST_SIDE[ship_by_size] in aggregated:
        return _kept_broadcast(node, over, aggregated, ctx) is not None
    return not is_too_large_to_broadcast(over.join, ship_by_size, ctx.statistics)


def _kept_broadcast(
    node: Aggregate, over: JoinedAggregate, aggregated: frozenset[Side], ctx: RuleContext
) -> JoinShip | None:
    """Returns the broadcast to hint for a side that Spark would broadcast without the aggregate: with it, the side has
    more columns, so Spark would estimate it to be larger than its files. None if no such side is aggregated, or it is
    not certain to fit in memory: Spark does not check the size of a hinted side.
    """
    ship = _broadcast_by_size(over.join, ctx)
    if ship is None or _BROADCAST_SIDE[ship] not in aggregated:
        return None
    made = aggregate_below(node, over, aggregated, _bounds(over, ctx.statistics))
    sides = join_sides(join_within(made), ctx.statistics)
    return ship if sides is not None and broadcast_input(ship, sides).fits_in_broadcast(ctx.statistics) else None


def _broadcast_by_size(join: Join, ctx: RuleContext) -> JoinShip | None:
    """Returns the side that Spark would broadcast because its files are small; None if a strategy is forced."""
    is_forced = forced_strategy(join, ctx.settings.join) != NOT_FORCED
    return None if is_forced else broadcast_side(join, ctx.statistics)


def _finding(left: JoinInput, right: JoinInput, aggregated: frozenset[Side], kind: JoinKind) -> str:
    """Returns the rows that are left after aggregating those sides first, as the beginning of a sentence."""
    texts, profiles = [], []
    for side, rows in ((Side.LEFT, left), (Side.RIGHT, right)):
        profiles.append(rows.aggregated() if side in aggregated else rows.rows)
        if side in aggregated:
            text = f"{round(rows.rows.rows):,} {side.value.lower()} rows become {round(rows.groups.distinct):,}"
            texts.append(text)
    before, after = output_profile(left.rows, right.rows, kind), output_profile(profiles[0], profiles[1], kind)
    return f"{' and '.join(texts)}, and the join emits {round(after.rows):,} instead of {round(before.rows):,}"


def _input(
    over: JoinedAggregate, side: Side, rows: KeyProfile, aggregated: frozenset[Side], ctx: RuleContext
) -> JoinInput | None:
    if side not in aggregated:
        return JoinInput(rows, rows, True)
    scalars = group_columns(over, side, aggregated)
    columns, by_text = columns_of(scalars), _has_text(scalars)
    if columns is not None and columns == columns_of(over.key(side)):
        return JoinInput(rows, rows, True, by_text)
    groups = key_profile(over.input(side), scalars, ctx.statistics)
    return None if groups is None else JoinInput(rows, groups, False, by_text)


def _has_text(scalars: Iterable[Scalar]) -> bool:
    """Whether one of them is known to be a string or binary."""
    return any(scalar.type is not None and scalar.type.name in _TEXTS for scalar in scalars)


def _sample_obstacle(over: JoinedAggregate, aggregated: frozenset[Side], ctx: RuleContext) -> str | None:
    """Returns the reason why the samples of the sides to aggregate are too weak, as the end of a sentence; None if they
    are not. It checks the samples of the join keys and of the columns to group by.

    The sample of the other side matters little: its rows are shuffled in either case, and the more rows they match, the
    more is saved.
    """
    for side in sorted(aggregated):
        for scalars in (over.key(side), group_columns(over, side, aggregated)):
            columns = scanned_columns(over.input(side), columns_of(scalars))
            obstacle = sample_obstacle(columns, ctx.statistics) if columns else None
            if obstacle is not None:
                return obstacle
    return None


@dataclass(frozen=True)
class JoinInput:
    """One side of a join: the distribution of its rows over the join's key, and over the columns that it would be
    grouped by. `by_key`: the two are the same. `by_text`: the columns to group by include strings.
    """

    rows: KeyProfile
    groups: KeyProfile
    by_key: bool
    by_text: bool = False

    def aggregated(self) -> KeyProfile:
        """Returns the distribution of the groups over the join's key: one row per key if it is grouped by the key."""
        if self.by_key:
            return KeyProfile(self.rows.distinct, self.rows.distinct, ())
        share = self.groups.distinct / self.rows.rows if self.rows.rows else 0.0
        return self.rows.scaled(min(share, 1.0))


def join_then_aggregate(
    left: JoinInput,
    right: JoinInput,
    kind: JoinKind,
    eager: tuple[bool, bool],
    slots: int,
    tasks: int,
    broadcast: bool,
    by_text: bool = False,
) -> Cost:
    """Returns the cost; `eager` states for the left and the right side whether it is aggregated first. `broadcast`: one
    side is broadcast, so the rows of the other side are not shuffled. `by_text`: the query groups by strings.
    """
    profiles, slowest, shuffled = [], 0.0, 0.0
    for side, first in zip((left, right), eager, strict=True):
        profile = side.rows
        if first:
            # Measured as a whole, for tables of any size; a later rule decides about the phases.
            below = two_phase(side.groups, slots, tasks, local=1.0)
            slowest, shuffled = slowest + below.slowest, shuffled + below.shuffled
            if broadcast:
                slowest += _looked_up(side, slots) + STAGE
            profile = side.aggregated()
        profiles.append(profile)
        if not broadcast and not (first and side.by_key):
            slowest += profile.rows / slots + hottest_task(profile, slots)
            shuffled += profile.rows
    joined = output_profile(profiles[0], profiles[1], kind)
    if broadcast:
        streamed = max(joined.rows, *(profile.rows for profile in profiles)) / slots * (1 + TEXT * by_text)
        return Cost(slowest + streamed, shuffled, joined.rows / slots)
    hottest = hottest_task(joined, slots)
    return Cost(slowest + hottest + joined.rows / slots, shuffled, hottest)


def _looked_up(side: JoinInput, slots: int) -> float:
    """Returns the additional cost of finding the groups of a side's rows in a loop that shuffles nothing."""
    more = TEXT * side.by_text + (1.0 if side.groups.distinct > FAST_KEYS else 0.0)
    return more * side.rows.rows / slots


def output_profile(left: KeyProfile, right: KeyProfile, kind: JoinKind) -> KeyProfile:
    """Returns the distribution of the join's output over its key; for a semi or anti join, at most all left rows."""
    if kind in {JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}:
        return replace(left, hot_at_most=bool(left.hot))
    if kind is JoinKind.RIGHT:
        return joined_profile(right, left, inner=False)
    return joined_profile(left, right, inner=kind is JoinKind.INNER)
