"""The rule `join_order`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from service.contract.options import JoinLocal, JoinShip, Toggle
from service.contract.query import JoinKind
from service.sql.expressions.analysis import cannot_fail, scalar_from
from service.sql.expressions.nodes import Expression, conjuncts
from service.sql.expressions.nodes import columns_of as columns_of_expression
from service.sql.expressions.scalar import Scalar
from service.sql.joins import ONE_SIDED
from workers.engine.plan.expressions import all_of
from workers.engine.plan.nodes import (
    Aggregate,
    Filter,
    Join,
    JoinStrategy,
    Node,
    Project,
    Scan,
    inputs_of,
    names_of,
)
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.rules.cost import Choice, Cost, key_profile
from workers.engine.rules.joins.strategy_cost import GATHERED, SORTED
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import (
    UNKNOWN_CONDITION,
    bounded,
    estimate_rows,
    factors_of_range,
    joined_profile,
    share_before_join,
)
from workers.engine.statistics.model import Statistics
from workers.engine.statistics.partitioning import BROADCAST_BYTES, size_of

WRITTEN = "WRITTEN"
REORDERED = "REORDERED"

CLEAR_GAIN = 1.5
"""The order is changed only if the written one costs at least this many times as much as the new one."""

MIN_SAVED = 3_000_000.0
"""The order is changed only if this saves at least this many rows, summed over all slots."""

_MOST_STARTS = 4
"""How many tables are tried as the first one, the largest ones first."""

_LEAST = 3
"""Two tables have only one order: Spark chooses the side that it hashes or broadcasts."""


class JoinOrder:
    """Joins the tables of inner joins in another order, if that leaves far fewer rows for the later joins.

    >>> day, of_day = column("d.id", BIGINT), column("s.day", BIGINT)
    >>> of_part, stocked = column("s.part", BIGINT), column("w.part", BIGINT)
    >>> def scan(alias, *names):
    ...     return Scan(alias, alias, tuple((Field(f"{alias}.{name}", BIGINT), name) for name in names))
    >>> stock = Join(scan("s", "day", "part"), scan("w", "part", "day"), JoinKind.INNER, ((of_part, stocked),))
    >>> earlier = compose("{0} < {1}", (column("w.day", BIGINT), day), BOOLEAN)
    >>> dated = Join(stock, scan("d", "id", "year"), JoinKind.INNER, ((of_day, day),), earlier)
    >>> year = compose("{0} = 1999", (column("d.year", BIGINT),), BOOLEAN)
    >>> count = Call(AggregateFunction.COUNT, (), Field("n", BIGINT))
    >>> before = Aggregate(Filter(dated, year), (), (count,))
    >>> sizes = {"s": 10**6, "w": 10**7, "d": 1000}
    >>> tables = {alias: TableSize(alias, 1, 100 * rows, rows, True) for alias, rows in sizes.items()}
    >>> keys = {("s.part",): ("s", 1000), ("w.part",): ("w", 1000), ("s.day",): ("s", 1000), ("d.id",): ("d", 1000)}
    >>> sketches = {key: KeySketch(alias, key, 1000, values, 0.0, ()) for key, (alias, values) in keys.items()}
    >>> known = Statistics(tables, sketches, slots=4, table_shares={year.sql: {"d": 0.01}})
    >>> ctx = RuleContext(JobSettings(), known)
    >>> print(text_of(JoinOrder().rewrite(Match(before, "REORDERED", ""), ctx)))
    Aggregate [COUNT(*) AS n]
      Filter d.year = 1999
        Join INNER ON s.part = w.part AND w.day < d.id
          Join INNER ON s.day = d.id
            Scan s AS s [s.day, s.part]
            Scan d AS d [d.id, d.year]
          Scan w AS w [w.part, w.day]

    Spark joins in the order that the query has, unless it has column statistics of tables in a catalog. An early join
    that multiplies the rows, or that keeps all of them, makes every join after it slower.

    The order is a chain: it begins with one of the largest tables, and then always joins the table that costs least
    next. All tables with a key in common with those before are possible.

    Fires when:
        - three or more tables are joined by inner joins on keys, without anything but conditions between the joins; and
        - the joins clearly cost less in the new order: rows that are read, looked up, shuffled and emitted.

    Does not fire when:
        - `optimizer.join_reorder` is false, or a ship or local strategy is forced for all joins: which table it applies
          to depends on the order. A join with a hint keeps its place and its two inputs; joins inside of an input may
          change;
        - a key or a condition of the joins can fail, or one on several tables above them, such as a division: in the
          new order, Spark may evaluate it for rows that an earlier join dropped;
        - a key has columns of several tables;
        - the number of rows of a table, or of values of a key, is not known.

    Why the result is the same:
        inner joins emit the combinations of rows for which all their conditions are true, in any order. Each condition
        belongs to the first join that has all of its columns. The node above reads columns by their names.

    Settings read:
        optimizer.join_reorder, join.ship, join.local
    """

    name = "join_order"

    def match(self, node: Node, ctx: RuleContext) -> Match[Project | Aggregate] | Skip | None:
        """Matches the projection or aggregate above the joins. Returns None, without a trace, if there are too few
        tables, or their joins cost too little.
        """
        if not isinstance(node, Project | Aggregate):
            return None
        setting = ctx.settings.optimizer.join_reorder
        is_forced = setting is Toggle.TRUE
        costly = [each for each in _searches(node, ctx) if is_forced or each.written.cost >= MIN_SAVED]
        if not costly:
            return None
        largest = max(costly, key=lambda each: each.written.cost - each.best.cost)
        choice = largest.choice(ctx.statistics.slots)
        if setting is Toggle.FALSE:
            return choice.skip("optimizer.join_reorder is false.")
        if _is_ship_forced(ctx) and not is_forced:
            return choice.skip("join.ship or join.local is set, which depends on the order of the joins.")
        changed = [each for each in costly if each.is_better(is_forced=is_forced)]
        if not changed and largest.is_guessed:
            return choice.skip("How many values the keys of the joins have is not known.")
        if not changed:
            return choice.skip("Another order of the joins would not cost clearly less.")
        return choice.match(node, REORDERED, " ".join(map(_reason, changed)))

    def rewrite(self, match: Match[Project | Aggregate], ctx: RuleContext, /) -> Node:
        """Returns the node over the joins in their new order."""
        is_forced = ctx.settings.optimizer.join_reorder is Toggle.TRUE
        better = [each for each in _searches(match.node, ctx) if each.is_better(is_forced=is_forced)]
        made = {id(each.region.top): each.joined() for each in better}
        return with_inputs(match.node, (_replaced(match.node.input, made),))


def _is_ship_forced(ctx: RuleContext) -> bool:
    return (ctx.settings.join.ship, ctx.settings.join.local) != (JoinShip.AUTO, JoinLocal.AUTO)


def _replaced(node: Node, made: Mapping[int, Node]) -> Node:
    node = made.get(id(node), node)
    if not isinstance(node, Filter | Join):
        return node
    return with_inputs(node, tuple(_replaced(child, made) for child in inputs_of(node)))


def _reason(search: _Search) -> str:
    names = [_name(search.region.tables[number]) for number in search.best.order]
    chain = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return (
        f"Joined in the order {chain}: about {round(search.best.emitted):,} rows leave the joins, instead of "
        f"{round(search.written.emitted):,}."
    )


def _name(table: Node) -> str:
    return " with ".join(part.alias for part in walk_up(table) if isinstance(part, Scan)) or "VALUES"


# The joins whose order may change


@dataclass(frozen=True)
class _Pair:
    """An equality of a join: `left` is over the table with the number `left_table`."""

    left: Scalar
    right: Scalar
    left_table: int
    right_table: int


@dataclass(frozen=True)
class _Region:
    """Inner joins below `top`, with the numbered `tables` that they join. `terms` are the other conditions in ON, each
    with the numbers of its tables; `above` are conditions that filter the joined rows.
    """

    top: Join
    tables: tuple[Node, ...]
    pairs: tuple[_Pair, ...]
    terms: tuple[tuple[Scalar, frozenset[int]], ...]
    above: tuple[Scalar, ...]


def _searches(node: Project | Aggregate, ctx: RuleContext) -> Iterator[_Search]:
    for region in _regions(node.input, (), tuple(_filtered_items(node, ctx))):
        search = _search(region, ctx.statistics)
        if search is not None:
            yield search


def _filtered_items(node: Project | Aggregate, ctx: RuleContext) -> Iterator[Expression]:
    """Yields what `node` computes for a condition above it. Spark moves such a condition below the node."""
    filtered = {name for condition in (*ctx.above, *ctx.conditions) for name in condition.columns}
    for item in node.items if isinstance(node, Project) else node.keys:
        if item.name in filtered:
            yield item.expression.tree


def _regions(node: Node, above: tuple[Scalar, ...], moved: tuple[Expression, ...]) -> Iterator[_Region]:
    """Yields the joins below a projection or an aggregate whose order may change, above other such nodes. `moved` are
    further expressions above, which Spark may evaluate between the joins.
    """
    match node:
        case Filter():
            yield from _regions(node.input, (*above, node.condition), moved)
        case Join() if _is_open(node):
            tables = tuple(_tables(node))
            region = _region(node, tables, above, moved) if len(tables) >= _LEAST else None
            if region is not None:
                yield region
            moved = (*moved, *(tree for join in _joins(node) for tree in _expressions(join)))
            for table in tables:
                yield from _regions(table, above, moved)
        case Join():
            moved = (*moved, *_expressions(node))
            yield from _regions(node.left, above, moved)
            yield from _regions(node.right, () if node.kind in ONE_SIDED else above, moved)


def _expressions(join: Join) -> Iterator[Expression]:
    """Yields the keys and the conditions of a join."""
    yield from (key.tree for pair in join.keys for key in pair)
    yield from () if join.residual is None else conjuncts(join.residual.tree)


def _is_open(node: Node) -> bool:
    return (
        isinstance(node, Join)
        and node.kind is JoinKind.INNER
        and bool(node.keys)
        and not node.null_safe
        and node.within is None
        and node.strategy == JoinStrategy()
    )


def _tables(node: Node) -> Iterator[Node]:
    if isinstance(node, Join) and _is_open(node):
        yield from _tables(node.left)
        yield from _tables(node.right)
    else:
        yield node


def _region(
    top: Join, tables: tuple[Node, ...], above: tuple[Scalar, ...], moved: tuple[Expression, ...]
) -> _Region | None:
    """Returns None if a condition must stay where it is."""
    number_of = {name: number for number, table in enumerate(tables) for name in names_of(table)}
    for tree in (*moved, *(term for condition in above for term in conjuncts(condition.tree))):
        numbers = {number_of[name] for name in columns_of_expression(tree) if name in number_of}
        if len(numbers) > 1 and not cannot_fail(tree):
            return None
    pairs, terms = list[_Pair](), list[tuple[Scalar, frozenset[int]]]()
    for join in _joins(top):
        for left, right in join.keys:
            of = tuple(_numbers(key.columns, number_of) for key in (left, right))
            if any(len(numbers) != 1 for numbers in of) or not cannot_fail(left.tree) or not cannot_fail(right.tree):
                return None
            pairs.append(_Pair(left, right, *(next(iter(numbers)) for numbers in of)))
        for tree in () if join.residual is None else conjuncts(join.residual.tree):
            term = scalar_from(tree) if cannot_fail(tree) else None
            if term is None:
                return None
            terms.append((term, _numbers(term.columns, number_of)))
    return _Region(top, tables, tuple(pairs), tuple(terms), above)


def _joins(node: Node) -> Iterator[Join]:
    if isinstance(node, Join) and _is_open(node):
        yield from _joins(node.left)
        yield from _joins(node.right)
        yield node


def _numbers(columns: Iterable[str], number_of: Mapping[str, int]) -> frozenset[int]:
    return frozenset(number_of[name] for name in columns)


# The rows and the costs of an order


@dataclass(frozen=True)
class _Rows:
    """Estimates of a region: by number, the `rows` of each table that its conditions keep, its `sizes` in bytes as
    Spark knows them; `shares` of the combinations of two tables whose keys are equal; and the tables of `terms` on
    several tables, each of which keeps a third. `is_guessed`: the values of a key are not known.
    """

    rows: tuple[float, ...]
    sizes: tuple[int | None, ...]
    shares: Mapping[int, Mapping[int, float]]
    terms: tuple[frozenset[int], ...]
    is_guessed: bool

    def is_broadcast(self, tables: frozenset[int]) -> bool:
        """Whether Spark broadcasts tables without a hint. It multiplies the sizes of the sides of a join."""
        size = self.sizes[next(iter(tables))] if len(tables) == 1 else None
        return size is not None and size <= BROADCAST_BYTES


@dataclass(frozen=True)
class _Joined:
    """Joined tables: their numbers in `order`, the rows, the cost of the joins, and the rows that all joins emit."""

    order: tuple[int, ...]
    rows: float
    cost: float = 0.0
    emitted: float = 0.0


@dataclass(frozen=True)
class _Search:
    """The costs of a region as it is written, and in the best order that was found."""

    region: _Region
    written: _Joined
    best: _Joined
    is_guessed: bool

    def is_better(self, *, is_forced: bool) -> bool:
        """Whether the order is changed: if it costs clearly less, or with `is_forced`, if it costs less."""
        if is_forced or self.is_guessed:
            return is_forced and self.best.cost < self.written.cost
        saved = self.written.cost - self.best.cost
        return saved >= MIN_SAVED and self.best.cost * CLEAR_GAIN <= self.written.cost

    def choice(self, slots: int) -> Choice:
        """Returns both costs for the trace."""
        costs = {
            name: Cost(each.cost / slots, each.emitted, each.emitted / slots)
            for name, each in ((WRITTEN, self.written), (REORDERED, self.best))
        }
        return Choice(costs, WRITTEN)

    def joined(self) -> Node:
        """Returns the joins in the best order. Each condition is in the first join that has its columns."""
        region, (first, *others) = self.region, self.best.order
        node, before = region.tables[first], frozenset((first,))
        for number in others:
            after = before | {number}
            keys = [
                (pair.left, pair.right) if pair.right_table == number else (pair.right, pair.left)
                for pair in region.pairs
                if {pair.left_table, pair.right_table} <= after and number in {pair.left_table, pair.right_table}
            ]
            # The first join also has the conditions on its first table, and those without columns.
            is_first = len(before) == 1
            terms = [term for term, tables in region.terms if tables <= after and (is_first or not tables <= before)]
            node = Join(node, region.tables[number], JoinKind.INNER, tuple(keys), all_of(terms))
            before = after
        return node


def _search(region: _Region, statistics: Statistics) -> _Search | None:
    estimates = _estimated(region, statistics)
    if estimates is None:
        return None
    written = _written(region.top, iter(range(len(region.tables))), estimates)
    starts = sorted(range(len(region.tables)), key=lambda number: -estimates.rows[number])[:_MOST_STARTS]
    orders = [found for start in starts if (found := _chain(start, estimates)) is not None]
    best = min(orders, key=lambda found: found.cost, default=written)
    return _Search(region, written, best, estimates.is_guessed)


def _written(node: Node, numbers: Iterator[int], estimates: _Rows) -> _Joined:
    """Returns the costs of joins in their own order; `numbers` are those of the tables from left to right."""
    if isinstance(node, Join) and _is_open(node):
        left = _written(node.left, numbers, estimates)
        right = _written(node.right, numbers, estimates)
        share = math.prod(estimates.shares[one].get(other, 1.0) for one in left.order for other in right.order)
        return _join(left, right, share, estimates)
    number = next(numbers)
    return _Joined((number,), estimates.rows[number])


def _chain(start: int, estimates: _Rows) -> _Joined | None:
    """Returns an order that begins with the table `start`; None if the others have no key in common with it."""
    joined = _Joined((start,), estimates.rows[start])
    shares = dict(estimates.shares[start])
    while len(joined.order) < len(estimates.rows):
        nexts = [
            _join(joined, _Joined((number,), estimates.rows[number]), share, estimates)
            for number, share in shares.items()
        ]
        if not nexts:
            return None
        joined = min(nexts, key=lambda found: found.cost + found.rows)
        added = joined.order[-1]
        del shares[added]
        for number, share in estimates.shares[added].items():
            if number not in joined.order:
                shares[number] = shares.get(number, 1.0) * share
    return joined


def _join(left: _Joined, right: _Joined, share: float, estimates: _Rows) -> _Joined:
    before, added = frozenset(left.order), frozenset(right.order)
    after = before | added
    new = sum(term <= after and not (term <= before or term <= added) for term in estimates.terms)
    rows = bounded(max(bounded(left.rows * right.rows) * share * UNKNOWN_CONDITION**new, 1.0))
    if estimates.is_broadcast(added):
        cost = left.rows + GATHERED * right.rows
    elif estimates.is_broadcast(before):
        cost = right.rows + GATHERED * left.rows
    else:
        cost = (1.0 + SORTED) * (left.rows + right.rows)
    return _Joined(
        (*left.order, *right.order),
        rows,
        left.cost + right.cost + cost + rows,
        left.emitted + right.emitted + rows,
    )


def _estimated(region: _Region, statistics: Statistics) -> _Rows | None:
    whole = [estimate_rows(table, statistics) for table in region.tables]
    known = [float(count) for count in whole if count is not None]
    if len(known) < len(whole):
        return None
    rows = [max(count * min(_kept(number, region, statistics), 1.0), 1.0) for number, count in enumerate(known)]
    between = defaultdict[tuple[int, int], list[_Pair]](list)
    for pair in region.pairs:
        between[min(pair.left_table, pair.right_table), max(pair.left_table, pair.right_table)].append(pair)
    shares: dict[int, dict[int, float]] = {number: {} for number in range(len(known))}
    is_guessed = False
    for (one, other), pairs in between.items():
        share = _equal_share(pairs, region, statistics)
        if share is None:
            is_guessed = True
            # Assumes that the smaller table's key is unique, and every row of the larger one has a partner.
            share = 1.0 / max(min(known[one], known[other]), 1.0)
        shares[one][other] = shares[other][one] = share
    number_of = {name: number for number, table in enumerate(region.tables) for name in names_of(table)}
    filters = (term for condition in region.above for term in conjuncts(condition.tree))
    filtered = [
        frozenset(number_of[name] for name in columns_of_expression(term) if name in number_of) for term in filters
    ]
    terms = (*filtered, *(tables for _, tables in region.terms))
    sizes = tuple(size_of(table, statistics) for table in region.tables)
    return _Rows(tuple(rows), sizes, shares, tuple(tables for tables in terms if len(tables) > 1), is_guessed)


def _kept(number: int, region: _Region, statistics: Statistics) -> float:
    """Returns the share of a table's rows that the conditions on it keep. A calendar has many years, and the facts that
    are joined with it a few: then the share of one year is that of the days that the facts have.
    """
    table = region.tables[number]
    share = share_before_join(table, region.above, statistics)
    if any(tables == {number} for _, tables in region.terms):
        share *= UNKNOWN_CONDITION
    conditions = [*region.above, *((table.condition,) if isinstance(table, Filter) else ())]
    own = names_of(table)
    for kept in (found for condition in conditions for found in statistics.kept_keys.get(condition.sql, ())):
        if own.isdisjoint(kept.ranges):
            continue
        pairs = [(pair.left, pair.right) for pair in region.pairs if number in {pair.left_table, pair.right_table}]
        share *= max((factor for pair in pairs for factor in factors_of_range(pair, kept, statistics)), default=1.0)
    return share


def _equal_share(pairs: Sequence[_Pair], region: _Region, statistics: Statistics) -> float | None:
    """Returns the share of the combinations of rows of two tables that are equal in the keys; None if not known."""
    one, other = pairs[0].left_table, pairs[0].right_table
    turned = [pair if pair.left_table == one else replace(pair, left=pair.right, right=pair.left) for pair in pairs]
    left = key_profile(region.tables[one], [pair.left for pair in turned], statistics)
    right = key_profile(region.tables[other], [pair.right for pair in turned], statistics)
    if left is None or right is None or not left.rows or not right.rows:
        return None
    return joined_profile(left, right, inner=True).rows / (left.rows * right.rows)
