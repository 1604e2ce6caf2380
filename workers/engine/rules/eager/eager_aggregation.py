"""The rule `eager_aggregation`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from service.contract.options import JoinLocal, JoinShip, Toggle
from service.contract.query import JoinKind
from service.contract.reports import Alternative
from service.sql.expressions.scalar import Scalar
from service.sql.statements.join_hints import Side
from service.sql.types.data_types import TypeName
from workers.engine.plan.aggregates import GROUPING_SETS
from workers.engine.plan.joined_aggregate import JoinedAggregate, joined_aggregate, stands_over_a_join
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Join,
    Node,
    Phases,
    columns_of,
    names_of,
    scanned_columns,
)
from workers.engine.rules.distinct.aggregate_cost import MIN_ROWS, Cost, doubt_of_sample, input_tasks
from workers.engine.rules.eager.cost import CLEARLY, JoinInput, join_then_aggregate, output_profile
from workers.engine.rules.eager.pushdown import refusal_of
from workers.engine.rules.eager.rewrite import aggregate_below, group_columns, join_within, pushed_over_joins
from workers.engine.rules.eager.wide_sums import SumBounds
from workers.engine.rules.joins.skew_cost import is_parted
from workers.engine.rules.joins.strategy_cost import (
    NOTHING,
    Demand,
    demand_of,
    is_too_large_to_send,
    join_sides,
    most_joined_rows,
    sent_side,
    skew_of,
    with_choice,
)
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import KeyProfile, profile_of
from workers.engine.statistics.model import Statistics
from workers.engine.statistics.partitioning import broadcast_side

NATIVE = "NATIVE"
_TEXTS = frozenset({TypeName.STRING, TypeName.BINARY})
_BROADCAST_SIDE = {JoinShip.BROADCAST_LEFT: Side.LEFT, JoinShip.BROADCAST_RIGHT: Side.RIGHT}
WAYS: dict[str, frozenset[Side]] = {
    "BOTH": frozenset(Side),
    "LEFT": frozenset({Side.LEFT}),
    "RIGHT": frozenset({Side.RIGHT}),
}
"""The sides that each way aggregates below the join, the most first."""


class EagerAggregation:
    """Aggregates below a join, one side or both, and weighs what comes out by how many rows it stands for.

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

    A side is grouped by its join keys and by whatever of it is still needed above: group keys, conditions that are not
    on one side alone, arguments of DISTINCT, arguments whose evaluation could raise an error for a row that the join
    leaves out. `eager/pushdown.py` decides what goes where, `eager/rewrite.py` has the formulas. Where the
    groups are the join's keys and both sides were aggregated, the joined rows are the result, and no final aggregate is
    needed. Filters and projections between the two are seen through. A side that Spark would broadcast, by the size of
    its files, is still broadcast where its rows surely fit in memory, as those of `join_strategy`'s broadcasts do.
    Where a side is a join itself, what is aggregated of it is an aggregate over that join, and the rule looks at it in
    turn: so it gets down a chain of joins, as far as each of them is worth it.

    Fires when:
        an aggregate stands over an inner, left, right, semi or anti join with keys, and
        - `eager_aggregation` is true: the cheapest way where the keys are known, else as many sides as may be, or
        - it is auto, at least 500,000 rows are read or joined, and the cheapest way costs clearly less (below 70 %)
          than the query as it is written, by samples of thousands of rows from all over the tables.

    Does not fire when:
        - `eager_aggregation` is false;
        - the query has grouping sets: a row counts in several;
        - the join is full or cross, or has no equality to group by;
        - a call cannot be weighed (a DECIMAL with too many digits, a function without a formula), or a column that must
          be carried cannot be grouped by, or is a FLOAT or DOUBLE that an expression above would read: groups do not
          tell -0.0 from 0.0;
        - it is auto and the keys of a side, alone or with its carried columns, are not known;
        - it is auto and `join.skew` is forced, and parts the join: it parts none that has an aggregate below.

    Why the result is the same:
        rows of a side that are equal in its join keys and carried columns have the same partners, the same groups and
        pass the same conditions, so one row with their number n stands for them. Each of them meets each of the other
        side's: a sum of one side is multiplied by the other's n, one of products by the other factor's sum (see
        `eager/wide_sums.py`), extremes and DISTINCT values are not. A row without
        partners keeps n = 1 for the missing side, whose own sums and counts are NULL and 0. NULL keys group, and match
        as little as they did. The right side of a semi or anti join multiplies nothing. Sums are carried with so many
        digits that only a total that does not fit raises an error, as it does in the query, but for groups that HAVING
        leaves out: Spark checks their totals no more. A global aggregate of no rows counts 0.

    Settings read:
        eager_aggregation, join.ship, join.local, join.skew
    """

    name = "eager_aggregation"

    def match(self, node: Node, ctx: RuleContext) -> Match[Aggregate] | Skip | None:
        """As the class says; None for anything but an undecided whole aggregate over a join."""
        if not isinstance(node, Aggregate) or node.role is not AggregateRole.WHOLE:
            return None
        if node.phases is not Phases.UNDECIDED or not stands_over_a_join(node):
            return None
        if ctx.settings.eager_aggregation is Toggle.FALSE:
            return Skip("eager_aggregation is false.")
        if node.grouping_sets:
            return Skip(GROUPING_SETS)
        over = joined_aggregate(node)
        if over is None:
            return Skip(
                "An expression between the join and the aggregate cannot be put in terms of the join's columns."
            )
        obstacle = _obstacle(over)
        if obstacle is not None:
            return Skip(obstacle)
        refusals = {way: refusal_of(over, sides) for way, sides in WAYS.items()}
        ways = [way for way, refusal in refusals.items() if refusal is None]
        if not ways:
            return Skip(next(refusal for refusal in refusals.values() if refusal is not None))
        weighed = _weigh(node, over, ways, ctx)
        if ctx.settings.eager_aggregation is Toggle.TRUE:
            chosen = weighed.best if weighed.ways else ways[0]
            return Match(node, chosen, "eager_aggregation is true.", weighed.alternatives(chosen))
        return _decide_by_cost(node, over.join, weighed, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """Project over the final aggregate, if one is needed, over the join of the aggregated sides."""
        over = joined_aggregate(match.node)
        if over is None:
            raise ValueError("only an aggregate over a join can be computed below it")
        aggregated = WAYS[match.choice]
        ship = _kept_broadcast(match.node, over, aggregated, ctx)
        if ship is not None:
            over = replace(over, join=with_choice(over.join, ship, JoinLocal.AUTO, NOTHING))
        return aggregate_below(match.node, over, aggregated, _bounds(over, ctx.statistics))

    def parts_of(self, match: Match[Aggregate], made: Node, /) -> tuple[Node, ...]:
        """The aggregates of sides that are joins themselves: those may be aggregated below the next join in turn."""
        return pushed_over_joins(match.node, made)


@dataclass(frozen=True)
class _Weighed:
    """The cost as written and that of each way whose keys are known, with what was found; `doubts` say by the way why
    that is not believed.
    """

    native: Cost | None
    ways: dict[str, Cost]
    finding: dict[str, str]
    doubts: dict[str, str | None]
    rows: float = 0.0

    @property
    def best(self) -> str:
        """The cheapest way; of two that cost the same, the one that aggregates fewer sides."""
        return min(self.ways, key=lambda way: (self.ways[way].slowest, len(WAYS[way])))

    def alternatives(self, chosen: str) -> tuple[Alternative, ...]:
        if self.native is None or not self.ways:
            return ()
        costs = {NATIVE: self.native, **self.ways}
        return tuple(cost.alternative(way, chosen) for way, cost in costs.items())


def _obstacle(over: JoinedAggregate) -> str | None:
    """Why there is nothing to aggregate below the join, whatever is called."""
    if over.join.kind in {JoinKind.FULL, JoinKind.CROSS}:
        return f"Below a {over.join.kind.value} join nothing is aggregated first."
    if not over.join.keys:
        return "The join has no equality of a left and a right expression: there is no key to group its sides by."
    return None


def _decide_by_cost(node: Aggregate, join: Join, weighed: _Weighed, ctx: RuleContext) -> Match[Aggregate] | Skip:
    if weighed.native is None or not weighed.ways:
        return Skip("There are no statistics for the join's keys: what aggregating first would leave is not known.")
    if weighed.rows < MIN_ROWS:
        return Skip(
            f"{round(weighed.rows):,} rows are too few to decide anything on (below {MIN_ROWS:,}).",
            weighed.alternatives(NATIVE),
        )
    best = weighed.best
    finding = weighed.finding[best]
    if weighed.ways[best].slowest > CLEARLY * weighed.native.slowest:
        return Skip(f"{finding}, which is not clearly less work.", weighed.alternatives(NATIVE))
    if weighed.doubts[best] is not None:
        return Skip(f"{finding}, but {weighed.doubts[best]}.", weighed.alternatives(NATIVE))
    skew = skew_of(join, ctx.settings.join.skew)
    if is_parted(join, skew, _demand(join, ctx), ctx.statistics):
        reason = f"{finding}, but join.skew is {skew}: no hot keys are joined apart over an aggregate."
        return Skip(reason, weighed.alternatives(NATIVE))
    return Match(node, best, f"{finding}.", weighed.alternatives(best))


def _weigh(node: Aggregate, over: JoinedAggregate, ways: list[str], ctx: RuleContext) -> _Weighed:
    statistics, kind = ctx.statistics, over.join.kind
    keys = {side: _profile(over, side, None, ctx) for side in Side}
    left, right = keys[Side.LEFT], keys[Side.RIGHT]
    if left is None or right is None:
        return _Weighed(None, {}, {}, {})
    tasks, by_text = input_tasks(over.join, statistics), _has_text(key.expression for key in over.keys)

    def cost(one: JoinInput, other: JoinInput, aggregated: frozenset[Side]) -> Cost:
        eager = Side.LEFT in aggregated, Side.RIGHT in aggregated
        broadcast = _is_broadcast(node, over, aggregated, ctx)
        return join_then_aggregate(one, other, kind, eager, statistics.slots, tasks, broadcast, by_text)

    native = cost(JoinInput(left, left, True), JoinInput(right, right, True), frozenset())
    joined = output_profile(left, right, kind)
    costs: dict[str, Cost] = {}
    found: dict[str, str] = {}
    for way in ways:
        inputs = [_input(over, side, keys, WAYS[way], ctx) for side in Side]
        if inputs[0] is None or inputs[1] is None:
            continue
        one, other = inputs[0], inputs[1]
        costs[way] = cost(one, other, WAYS[way])
        found[way] = _finding(one, other, WAYS[way], kind)
    doubts = {way: _doubt(over, WAYS[way], ctx) for way in costs}
    return _Weighed(native, costs, found, doubts, max(left.rows, right.rows, joined.rows))


def _bounds(over: JoinedAggregate, statistics: Statistics) -> SumBounds:
    """What the files tell of the values and the rows of both sides."""
    ranges = {}
    for side in Side:
        for name in names_of(over.input(side)):
            scanned = scanned_columns(over.input(side), (name,))
            known = statistics.ranges.get(scanned[0]) if scanned else None
            if known is not None and known.is_whole:
                ranges[name] = (known.low, known.high)
    rows = {side: most_joined_rows(over.input(side), statistics) for side in Side}
    return SumBounds(ranges, {side: most for side, most in rows.items() if most is not None})


def _demand(join: Join, ctx: RuleContext) -> Demand:
    return demand_of(join, ctx.settings.join.ship, ctx.settings.join.local)


def _is_broadcast(node: Aggregate, over: JoinedAggregate, aggregated: frozenset[Side], ctx: RuleContext) -> bool:
    """Whether a side of the join is sent whole to every task, with the sides in `aggregated` aggregated first."""
    ship, _ = _demand(over.join, ctx)
    if ship in _BROADCAST_SIDE:
        return True
    ship_by_size = _broadcast_by_size(over.join, ctx)
    if ship_by_size is None:
        return False
    if _BROADCAST_SIDE[ship_by_size] in aggregated:
        return _kept_broadcast(node, over, aggregated, ctx) is not None
    return not is_too_large_to_send(over.join, ship_by_size, ctx.statistics)


def _kept_broadcast(
    node: Aggregate, over: JoinedAggregate, aggregated: frozenset[Side], ctx: RuleContext
) -> JoinShip | None:
    """The broadcast to ask for, of a side that Spark would send as it is: aggregated it has more columns, by which
    Spark would estimate it to be larger than its files are. None where no such side is aggregated, and where it does
    not surely fit in memory: Spark asks nothing of what a hint names.
    """
    ship = _broadcast_by_size(over.join, ctx)
    if ship is None or _BROADCAST_SIDE[ship] not in aggregated:
        return None
    made = aggregate_below(node, over, aggregated, _bounds(over, ctx.statistics))
    sides = join_sides(join_within(made), ctx.statistics)
    return ship if sides is not None and sent_side(ship, sides).fits_in_broadcast(ctx.statistics) else None


def _broadcast_by_size(join: Join, ctx: RuleContext) -> JoinShip | None:
    """What Spark would broadcast by itself, for its files are small; None where something else is demanded."""
    return broadcast_side(join, ctx.statistics) if _demand(join, ctx) == NOTHING else None


def _finding(left: JoinInput, right: JoinInput, aggregated: frozenset[Side], kind: JoinKind) -> str:
    """What aggregating those sides first leaves, as the beginning of a sentence."""
    told, profiles = [], []
    for side, rows in ((Side.LEFT, left), (Side.RIGHT, right)):
        profiles.append(rows.aggregated() if side in aggregated else rows.rows)
        if side in aggregated:
            became = f"{round(rows.rows.rows):,} {side.value.lower()} rows become {round(rows.groups.distinct):,}"
            told.append(became)
    before, after = output_profile(left.rows, right.rows, kind), output_profile(profiles[0], profiles[1], kind)
    return f"{' and '.join(told)}, and the join puts out {round(after.rows):,} in place of {round(before.rows):,}"


def _input(
    over: JoinedAggregate,
    side: Side,
    keys: dict[Side, KeyProfile | None],
    aggregated: frozenset[Side],
    ctx: RuleContext,
) -> JoinInput | None:
    rows = keys[side]
    if rows is None:
        return None
    if side not in aggregated:
        return JoinInput(rows, rows, True)
    scalars = group_columns(over, side, aggregated)
    columns, by_text = columns_of(scalars), _has_text(scalars)
    if columns is not None and columns == columns_of(over.key(side)):
        return JoinInput(rows, rows, True, by_text)
    groups = _profile(over, side, aggregated, ctx)
    return None if groups is None else JoinInput(rows, groups, False, by_text)


def _has_text(scalars: Iterable[Scalar]) -> bool:
    """Whether one of them is a text, or bytes, as far as is known."""
    return any(scalar.type is not None and scalar.type.name in _TEXTS for scalar in scalars)


def _profile(
    over: JoinedAggregate, side: Side, aggregated: frozenset[Side] | None, ctx: RuleContext
) -> KeyProfile | None:
    """How the side's rows spread over its join keys, or over what it would be grouped by."""
    scalars = over.key(side) if aggregated is None else group_columns(over, side, aggregated)
    columns = columns_of(scalars)
    return profile_of(over.input(side), columns, ctx.statistics) if columns else None


def _doubt(over: JoinedAggregate, aggregated: frozenset[Side], ctx: RuleContext) -> str | None:
    """Why the samples of the sides to aggregate are not believed: of their join keys, and of what they are grouped by.

    How many rows of the other side meet them decides little: they are sent as they are in either case, and the more
    they meet, the more is saved.
    """
    for side in sorted(aggregated):
        for scalars in (over.key(side), group_columns(over, side, aggregated)):
            columns = scanned_columns(over.input(side), columns_of(scalars))
            doubt = doubt_of_sample(columns, ctx.statistics) if columns else None
            if doubt is not None:
                return doubt
    return None
