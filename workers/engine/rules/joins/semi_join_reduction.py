"""The rule `semi_join_reduction`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from service.contract.options import JoinLocal, JoinShip
from service.contract.query import JoinKind
from service.sql.expressions.analysis import cannot_fail, never_true_of_nulls, scalar_from, tree_of
from service.sql.expressions.nodes import conjuncts
from service.sql.expressions.scalar import Scalar, column
from service.sql.joins import Side
from service.sql.types.data_types import DataType
from workers.engine.plan.expressions import all_of
from workers.engine.plan.nodes import (
    Aggregate,
    Deduplicate,
    Exchange,
    Filter,
    Join,
    JoinStrategy,
    Limit,
    Named,
    Node,
    Project,
    Scan,
    Shared,
    Sort,
    WindowFunctions,
    inputs_of,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.rules.cost import Choice, Cost, row_of_table
from workers.engine.rules.joins.strategy_cost import (
    GATHERED,
    NOT_FORCED,
    SORTED,
    adaptive_broadcast,
    broadcast_bytes,
    forced_strategy,
    join_sides,
)
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import estimate_rows, share_before_join
from workers.engine.statistics.model import Statistics
from workers.engine.statistics.partitioning import is_broadcast

REDUCED = "REDUCED"
NONE = "NONE"

MIN_ROWS = 500_000
"""Rows below which shuffles cost too little to be reduced."""

CLEAR_GAIN = 1.5
"""The plan is changed only if its shuffles cost at least so many times as much without the reduction."""

_RESCANNED = 0.1
"""The cost of a row of the reducing table that is read once more: a few of its columns are decoded and compared."""

_TARGETS = {
    JoinKind.INNER: (Side.LEFT, Side.RIGHT),
    JoinKind.LEFT: (Side.RIGHT,),
    JoinKind.LEFT_SEMI: (Side.LEFT, Side.RIGHT),
    JoinKind.LEFT_ANTI: (Side.RIGHT,),
    JoinKind.RIGHT: (Side.LEFT,),
}
"""The sides of a join whose rows without a partner are not emitted."""

_KEEPS_NO_OTHER = (
    frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}),
    frozenset({JoinKind.INNER, JoinKind.RIGHT}),
)
"""The kinds of joins that may be computed after rows of the left input, or of the right one, are dropped."""

_SAME_ROWS = (Deduplicate, Exchange, Limit, Sort, WindowFunctions)
"""Nodes whose rows are some of the rows of their input, with all columns of the input and perhaps more."""


class SemiJoinReduction:
    """Drops rows that a later join would drop, before they are aggregated or shuffled.

    >>> part, of = column("p.id", BIGINT), column("l.part", BIGINT)
    >>> parts = Scan("parts", "p", ((Field("p.id", BIGINT), "id"), (Field("p.size", INT), "size")))
    >>> lines = Scan("lines", "l", ((Field("l.part", BIGINT), "part"),))
    >>> count = Call(AggregateFunction.COUNT, (), Field("n", BIGINT))
    >>> small = compose("{0} < 3", (column("p.size", INT),), BOOLEAN)
    >>> before = Join(Filter(parts, small), Aggregate(lines, (Named(of, "part"),), (count,)), JoinKind.INNER,
    ...     ((part, column("part", BIGINT)),))
    >>> tables = {"p": TableSize("parts", 1, 1 << 20, 10_000, True), "l": TableSize("lines", 1, 1 << 30, 10**7, True)}
    >>> known = Statistics(tables, {}, slots=4, table_shares={small.sql: {"p": 0.01}})
    >>> ctx = RuleContext(JobSettings(), known)
    >>> print(text_of(SemiJoinReduction().rewrite(Match(before, "REDUCED", ""), ctx)))
    Join INNER ON p.id = part
      Filter p.size < 3
        Scan parts AS p [p.id, p.size]
      Aggregate BY l.part AS part [COUNT(*) AS n]
        Join LEFT_SEMI BROADCAST_RIGHT HASH_RIGHT ON l.part = p.id
          Scan lines AS l [l.part]
          Project p.id
            Filter p.size < 3
              Scan parts AS p [p.id, p.size]

    The condition on one table often leaves few keys, and the rows of another table with these keys are joined only
    after they were aggregated, or together with all others shuffled: a subquery computes a value for each key, and the
    query asks for few keys. Here, the table with the condition is read twice. Its keys are broadcast, and the rows of
    the other table are filtered by them where they are read. In Spark, the Bloom filters of
    `spark.sql.optimizer.runtime.bloomFilter` do this for joins of at least 10 GB, and not below aggregates.

    Fires when:
        - one side of an equi-join, the target, is aggregated by a column of the key, or is shuffled by joins, and has
          at least 500,000 rows there; and
        - rows of the other side have keys of a table whose conditions leave few of its rows, by a sample; and
        - these keys are certain to fit in a broadcast, together with the broadcasts below the join; and
        - it costs clearly less: the rows that are dropped would have cost more to aggregate and shuffle than it costs
          to read the table again, and to look up the key of each row.

    Does not fire when:
        - a ship or local strategy is forced for the join: a shuffle is forced if broadcasts took too much memory;
        - the target keeps its rows without a partner, as the left side of a left join does;
        - the key is computed, a FLOAT or DOUBLE, of another type on the other side, or compared by `<=>`;
        - between the target's table and the join there is a LIMIT, a UNION, a window function, or an outer join that
          keeps the table's rows without a partner as NULL;
        - no condition is left: one that can fail, or is true of NULLs, does not count.

    Why the result is the same:
        a row of the target that is dropped has a key that no row of the other side has, because each of those comes
        from a row of the reducing table with this key, for which the conditions are true. So the join would drop the
        row, or the group of all rows with this key. A condition above the join is false or NULL for NULLs, so an outer
        join above emits no row for it either.

    Settings read:
        join.ship, join.local
    """

    name = "semi_join_reduction"

    def match(self, node: Node, ctx: RuleContext) -> Match[Join] | Skip | None:
        """Returns None, without a trace, for joins with nothing to reduce."""
        if not isinstance(node, Join) or not node.keys or node.null_safe or node.kind not in _TARGETS:
            return None
        best = _best(node, ctx)
        if best is None:
            return None
        choice, reduced = best.choice(ctx.statistics), best.target.scan.table
        share = f"{best.reducer.share:.0%}" if best.reducer.share >= 0.01 else "less than 1%"
        left = f"Conditions leave {share} of {best.reducer.scan.table}"
        if not choice.is_clearly_cheaper(REDUCED, NONE, CLEAR_GAIN):
            return choice.skip(f"{left}, but filtering {reduced} by these keys first would not cost clearly less.")
        reason = f"{left}: {reduced} is filtered by these keys before its rows are aggregated or shuffled."
        return choice.match(node, REDUCED, reason)

    def rewrite(self, match: Match[Join], ctx: RuleContext, /) -> Node:
        """Returns the join with a semi-join above the target's table."""
        best = _best(match.node, ctx)
        if best is None:
            raise ValueError("the join has nothing to reduce")
        left, right = match.node.left, match.node.right
        if best.side is Side.LEFT:
            return replace(match.node, left=_with_place(left, best.target.path, best.semi_join()))
        return replace(match.node, right=_with_place(right, best.target.path, best.semi_join()))


Shuffles = tuple[tuple[float, float], ...]
"""Rows that are aggregated or shuffled, each with the cost of a row."""


@dataclass(frozen=True)
class _Reducer:
    """A table that has the key of every row of one side of a join, and the conditions that leave few of its rows."""

    scan: Scan
    key: Scalar
    conditions: tuple[Scalar, ...]
    share: float
    rows: float


@dataclass(frozen=True)
class _Target:
    """The place of a table below the other side, where its rows can be filtered by a column of the join key; `path` has
    the numbers of the inputs on the way from the join's side to it.

    `shuffled` has the rows of each aggregate and shuffle between the table and the join, with the cost of a row.
    """

    scan: Scan
    key: Scalar
    place: Node
    rows: float
    shuffled: Shuffles
    path: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Reduction:
    """The filtering of a target on one side of a join by the keys of a reducer on the other side."""

    side: Side
    reducer: _Reducer
    target: _Target

    def semi_join(self) -> Join:
        """Returns the target's rows, filtered by the keys of the reducer."""
        reducer = self.reducer
        condition = all_of(reducer.conditions)
        rows: Node = reducer.scan if condition is None else Filter(reducer.scan, condition)
        keys = Project(rows, (Named(reducer.key, str(reducer.key.column)),))
        strategy = JoinStrategy(JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT)
        pair = (self.target.key, reducer.key)
        return Join(self.target.place, keys, JoinKind.LEFT_SEMI, (pair,), strategy=strategy)

    def saved(self, statistics: Statistics) -> float:
        """Returns the cost without the reduction, less that with it."""
        costs = self.choice(statistics).costs
        return costs[NONE].slowest - costs[REDUCED].slowest

    def choice(self, statistics: Statistics) -> Choice:
        """Returns the costs with and without the reduction."""
        slots, kept = statistics.slots, self.reducer.share * self.reducer.rows
        rows = sum(rows for rows, _ in self.target.shuffled)
        now = sum(rows * weight for rows, weight in self.target.shuffled) / slots
        looked_up = row_of_table(kept) * self.target.rows / slots
        added = GATHERED * kept + _RESCANNED * self.reducer.rows / slots + looked_up
        share = self.reducer.share
        reduced = Cost(share * now + added, share * rows, share * rows / slots)
        return Choice({NONE: Cost(now, rows, rows / slots), REDUCED: reduced}, NONE)


def _best(join: Join, ctx: RuleContext) -> _Reduction | None:
    """Returns the reduction that saves most; None if none is possible, or if it is forced how the join runs: a shuffle
    is forced if broadcasts took too much memory.
    """
    if forced_strategy(join, ctx.settings.join) != NOT_FORCED:
        return None
    found = [one for side in _TARGETS[join.kind] for one in _reductions(join, side, ctx)]
    return max(found, key=lambda one: one.saved(ctx.statistics), default=None)


def _reductions(join: Join, side: Side, ctx: RuleContext) -> Iterator[_Reduction]:
    statistics = ctx.statistics
    target, other = (join.left, join.right) if side is Side.LEFT else (join.right, join.left)
    shuffled = _shuffle_of(join, side, ctx)
    conditions = tuple((condition, condition) for condition in ctx.above)
    reduced_by = {part.alias for part in walk_up(target) if isinstance(part, Scan)}
    for pair in join.keys:
        if not _are_equal(join, *pair):
            continue
        own, others = pair if side is Side.LEFT else pair[::-1]
        places = [
            place
            for place in _targets(target, own, shuffled, ctx.above, statistics)
            if max((rows for rows, _ in place.shuffled), default=0.0) >= MIN_ROWS
        ]
        if not places:
            continue
        for reducer in _reducers(other, frozenset({str(others.column)}), conditions, statistics):
            for place in places if reducer.scan.alias not in reduced_by else ():
                found = _Reduction(side, reducer, place)
                if reducer.rows < place.rows and _fits(found.semi_join(), join, statistics):
                    yield found


def _type_of(node: Node, key: Scalar) -> DataType | None:
    """Returns the type of a key that is a column; None for others, and for a type whose equal values may differ."""
    found = next((field.type for field in output_of(node) if field.name == key.column), None)
    return found if found is not None and found.is_atomic and not found.is_fractional else None


def _fits(semi_join: Join, join: Join, statistics: Statistics) -> bool:
    """Whether the keys are certain to fit in memory together with the broadcasts below `join`."""
    sides = join_sides(semi_join, statistics)
    if sides is None:
        return False
    return replace(sides[1], other_broadcasts=broadcast_bytes(join, statistics)).fits_in_broadcast(statistics)


# The side that has few keys


Conditions = tuple[tuple[Scalar, Scalar], ...]
"""Conditions as the query has them, by which their shares are known, and over the columns of a node."""


def _reducers(node: Node, names: frozenset[str], conditions: Conditions, statistics: Statistics) -> Iterator[_Reducer]:
    """Yields the tables of `node` that have a column with the value that each of its rows has in the columns `names`,
    which are equal, with the `conditions` above.
    """
    match node:
        case Scan():
            yield from _reducers_of_scan(node, names, conditions, statistics)
        case Filter():
            yield from _reducers(node.input, names, (*conditions, (node.condition, node.condition)), statistics)
        case Project():
            items = {item.name: item.expression for item in node.items}
            below = frozenset(found for name in names if (found := items[name].column) is not None)
            yield from _reducers(node.input, below, _below_projection(node, conditions), statistics)
        case Aggregate() if not node.grouping_sets:
            keys = {key.name: key.expression.column for key in node.keys}
            grouped = frozenset(found for name in names if (found := keys.get(name)) is not None)
            yield from _reducers(node.input, grouped, (), statistics)
        case Shared():
            yield from _reducers(node.input, names, conditions, statistics)
        case Join() if not node.null_safe:
            yield from _reducers_of_join(node, names, conditions, statistics)
        case _ if isinstance(node, _SAME_ROWS):
            yield from _reducers(node.input, names & names_of(node.input), conditions, statistics)


def _below_projection(node: Project, conditions: Conditions) -> Conditions:
    trees = {item.name: item.expression.tree for item in node.items}
    below = ((original, tree_of(condition, trees)) for original, condition in conditions)
    scalars = ((original, None if tree is None else scalar_from(tree)) for original, tree in below)
    return tuple((original, found) for original, found in scalars if found is not None)


def _reducers_of_join(
    node: Join, names: frozenset[str], conditions: Conditions, statistics: Statistics
) -> Iterator[_Reducer]:
    if node.kind in {JoinKind.INNER, JoinKind.LEFT_SEMI}:
        pairs = [{left.column or "", right.column or ""} for left, right in node.keys if _are_equal(node, left, right)]
        for _ in pairs:
            names = names.union(*(pair for pair in pairs if pair & names))
    left, right = names & names_of(node.left), names & names_of(node.right)
    if left and node.kind in {JoinKind.INNER, JoinKind.LEFT, JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}:
        yield from _reducers(node.left, left, conditions, statistics)
    if right and node.kind in {JoinKind.INNER, JoinKind.RIGHT, JoinKind.LEFT_SEMI}:
        visible = () if node.kind is JoinKind.LEFT_SEMI else conditions
        yield from _reducers(node.right, right, visible, statistics)


def _are_equal(node: Join, left: Scalar, right: Scalar) -> bool:
    type_ = _type_of(node.left, left)
    return type_ is not None and type_ == _type_of(node.right, right)


def _reducers_of_scan(
    scan: Scan, names: frozenset[str], conditions: Conditions, statistics: Statistics
) -> Iterator[_Reducer]:
    size = statistics.tables.get(scan.alias)
    fields = [field for field, _ in scan.columns if field.name in names]
    if size is None or not fields:
        return
    share, kept, own = 1.0, list[Scalar](), names_of(scan)
    for original, condition in conditions:
        terms = [term for term in _terms(condition) if term.columns and own >= set(term.columns)]
        known = statistics.table_shares.get(original.sql, {}).get(scan.alias)
        if terms and known is not None:
            kept += terms
            share *= known
    if kept:
        key = fields[0]
        yield _Reducer(scan, column(key.name, key.type), tuple(dict.fromkeys(kept)), share, float(size.rows))


def _terms(condition: Scalar) -> Iterator[Scalar]:
    """Yields the terms of an AND that are evaluated on any row without an error, and are not true of NULLs."""
    for term in conjuncts(condition.tree):
        scalar = scalar_from(term) if cannot_fail(term) and never_true_of_nulls(term) else None
        if scalar is not None:
            yield scalar


# The side whose rows are filtered


def _shuffle_of(join: Join, side: Side, ctx: RuleContext) -> Shuffles:
    """Returns the rows of a side that the join shuffles, with the cost of a row; nothing if it is broadcast."""
    node = join.left if side is Side.LEFT else join.right
    rows = estimate_rows(node, ctx.statistics)
    if rows is None or is_broadcast(join, ctx.statistics):
        return ()
    sides = join_sides(join, ctx.statistics, ctx.above)
    is_sorted = sides is None or adaptive_broadcast(join, sides, ctx.statistics) is None
    return ((rows * share_before_join(node, ctx.above, ctx.statistics), 1.0 + (SORTED if is_sorted else 0.0)),)


def _targets(
    node: Node, key: Scalar, shuffled: Shuffles, above: tuple[Scalar, ...], statistics: Statistics
) -> Iterator[_Target]:
    """Yields the tables of `node` that have the column `key`, or one that equals it, and may be filtered by it. `above`
    are the conditions above `node` with only joins between.
    """
    match node:
        case Scan():
            yield from _target_at(node, node, key, shuffled, above, statistics)
        case Filter() if isinstance(node.input, Scan):
            yield from _target_at(node.input, node, key, shuffled, above, statistics)
        case Filter():
            yield from _below(node, 0, key, shuffled, (*above, node.condition), statistics)
        case Sort() | Exchange() | Deduplicate():
            yield from _below(node, 0, key, shuffled, (), statistics)
        case Project():
            found = _column_below(node.items, key)
            if found is not None:
                yield from _below(node, 0, found, shuffled, (), statistics)
        case Aggregate() if not node.grouping_sets:
            found, added = _column_below(node.keys, key), _aggregated(node, statistics)
            if found is not None and added is not None:
                yield from _below(node, 0, found, (*shuffled, added), (), statistics)
        case Join():
            for number, found in _inputs_with(node, key):
                side = inputs_of(node)[number]
                rows = None if is_broadcast(node, statistics) else estimate_rows(side, statistics)
                sent = () if rows is None else ((rows * share_before_join(side, above, statistics), 1.0),)
                yield from _below(node, number, found, (*shuffled, *sent), above, statistics)


def _below(
    node: Node, number: int, key: Scalar, shuffled: Shuffles, above: tuple[Scalar, ...], statistics: Statistics
) -> Iterator[_Target]:
    for found in _targets(inputs_of(node)[number], key, shuffled, above, statistics):
        yield replace(found, path=(number, *found.path))


def _target_at(
    scan: Scan, place: Node, key: Scalar, shuffled: Shuffles, above: tuple[Scalar, ...], statistics: Statistics
) -> Iterator[_Target]:
    rows = estimate_rows(place, statistics)
    if rows is not None:
        yield _Target(scan, key, place, rows * share_before_join(place, above, statistics), shuffled)


def _column_below(items: tuple[Named, ...], key: Scalar) -> Scalar | None:
    """Returns the column of the input that is emitted as `key`; None if it is computed."""
    found = next((item.expression for item in items if item.name == key.column), None)
    return found if found is not None and found.column is not None else None


def _aggregated(node: Aggregate, statistics: Statistics) -> tuple[float, float] | None:
    rows, groups = estimate_rows(node.input, statistics), estimate_rows(node, statistics)
    return None if rows is None else (float(rows), row_of_table(rows if groups is None else groups))


def _inputs_with(node: Join, key: Scalar) -> Iterator[tuple[int, Scalar]]:
    """Yields the numbers of the inputs that have `key`, or a column that equals it in all rows of the join, if the join
    emits no other rows after rows with other keys are dropped there.
    """
    own = 0 if key.column in names_of(node.left) else 1
    if node.kind in _KEEPS_NO_OTHER[own]:
        yield own, key
    if node.kind is JoinKind.INNER and not node.null_safe:
        for pair in node.keys:
            if pair[own].column == key.column and _are_equal(node, *pair):
                yield 1 - own, pair[1 - own]


def _with_place(node: Node, path: tuple[int, ...], made: Node) -> Node:
    """Returns `node` with `made` in the place to which `path` leads."""
    if not path:
        return made
    inputs = list(inputs_of(node))
    inputs[path[0]] = _with_place(inputs[path[0]], path[1:], made)
    return with_inputs(node, tuple(inputs))
