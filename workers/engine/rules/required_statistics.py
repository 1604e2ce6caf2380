"""Decides which statistics a plan needs: the keys to sample, and nothing if settings force every choice."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from service.contract.options import AggPhase, DistinctMethod, JobSettings, JoinLocal, JoinShip, JoinSkew, Toggle
from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.scalar import Scalar
from service.sql.joins import HASHED_SIDE, Side
from service.sql.types.data_types import TypeName
from workers.engine.plan.aggregates import distinct_sets
from workers.engine.plan.joined_aggregate import JoinedAggregate, joined_aggregate
from workers.engine.plan.nodes import (
    Aggregate,
    Join,
    Node,
    Scan,
    WindowFunctions,
    columns_of,
    output_of,
    scanned_columns,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.counted_percentiles import percentiles_of
from workers.engine.rules.eager.pushdown import refusal_of
from workers.engine.rules.eager.rewrite import aggregate_below, group_columns, pushed_over_joins
from workers.engine.rules.joins.strategy_cost import forced_strategy, skew_of
from workers.engine.rules.windows.running import call_groups, over_of
from workers.engine.rules.windows.skewed_windows import refusal_of_input
from workers.engine.statistics.model import KeyOrder, Statistics

NOT_READ = (
    "The settings decide everything, so no file was read before the run. The numbers of rows are estimated from the "
    "sizes of the files."
)

READ_IN_PART = (
    "Settings force the choices for some joins or aggregates of the query: before the run, only the keys of the others "
    "were read."
)

_SUMS = frozenset({AggregateFunction.SUM, AggregateFunction.AVG})
_NOTHING = Statistics({}, {}, slots=1)
_TEXTS = frozenset({TypeName.STRING, TypeName.BINARY})
_METHODS_WITHOUT = frozenset({DistinctMethod.NATIVE, DistinctMethod.SPLIT})


def statistics_keys(node: Node, matters: Callable[[Node], bool] = lambda _: True) -> frozenset[tuple[str, ...]]:
    """Returns the keys to sample, as tuples of emitted column names of one scan.

    These are join keys, group keys, distinct arguments, and group keys with a distinct argument, the group keys first;
    for an aggregate over a join, also the join keys of a side with its columns that are needed above; for a join with
    keys of several tables on one side, those of each table. Keys that are
    expressions, or of several tables, are omitted. A renamed column of a derived table counts as the scan's column.
    Only nodes for which `matters` is true have keys.
    """
    table_of = {field.name: scan.alias for scan in walk_up(node) if isinstance(scan, Scan) for field, _ in scan.columns}
    candidates = (
        scanned_columns(below, columns_of(scalars))
        for part in walk_up(node)
        if matters(part)
        for below, scalars in _candidates(part)
    )
    return frozenset(
        columns for columns in candidates if columns and len({table_of.get(name) for name in columns}) == 1
    )


def window_orders(plan: Node, matters: Callable[[Node], bool] = lambda _: True) -> frozenset[KeyOrder]:
    """Returns the keys of windows that may be split by ranges of their order column, each with that column."""
    found: set[KeyOrder] = set()
    for node in walk_up(plan):
        if not isinstance(node, WindowFunctions) or not matters(node) or refusal_of_input(node) is not None:
            continue
        for group in call_groups(node, _NOTHING):
            if group.order_by and group.is_open:
                keys = scanned_columns(node.input, columns_of(group.partition_by)) if group.partition_by else ()
                order = scanned_columns(node.input, (group.order_column,))
                if keys is not None and order is not None:
                    found.add((keys, order[0]))
    return frozenset(found)


def summed_columns(node: Node) -> frozenset[str]:
    """Returns the scans' integer columns that are summed over a join or in a window. If their ranges show that the
    sums, and multiples of them, fit, the partial sums are BIGINTs.
    """
    found: set[str] = set()
    for part in walk_up(node):
        if isinstance(part, WindowFunctions):
            found.update(_summed_in_windows(part))
        over = joined_aggregate(part) if isinstance(part, Aggregate) else None
        for call in over.calls if over is not None else ():
            names = columns_of(call.arguments) if call.function is AggregateFunction.SUM else None
            of = call.arguments[0].type if over is not None and names else None
            if over is not None and of is not None and of.is_integral:
                found.update(scanned_columns(over.join, names) or ())
    return frozenset(found)


def _summed_in_windows(node: WindowFunctions) -> Iterator[str]:
    integral = {field.name for field in output_of(node.input) if field.type.is_integral}
    for over in map(over_of, node.calls):
        names = columns_of(Scalar(argument, None) for argument in over.arguments)
        if over.function in _SUMS and over.order_by and names and integral.issuperset(names):
            yield from scanned_columns(node.input, names) or ()


def _candidates(node: Node) -> Iterator[tuple[Node, tuple[Scalar, ...]]]:
    """Yields the keys of `node`, each with the input that has its columns."""
    if isinstance(node, Join):
        yield node.left, tuple(left for left, _ in node.keys)
        yield node.right, tuple(right for _, right in node.keys)
        if len(node.keys) > 1:
            yield from _keys_by_table(node)
    if isinstance(node, WindowFunctions) and _may_be_split(node):
        for group in call_groups(node, _NOTHING):
            if group.partition_by and group.is_open:
                yield node.input, group.partition_by
    if isinstance(node, Aggregate):
        keys = tuple(key.expression for key in node.keys)
        yield node.input, keys
        for call in node.calls:
            if call.distinct:
                yield node.input, call.arguments
                yield node.input, (*keys, *call.arguments)
        for call in percentiles_of(node):
            yield node.input, (*keys, call.arguments[0])
        # The columns to group the sides of a join below by, if they are aggregated first.
        over = joined_aggregate(node)
        if over is not None and over.join.keys:
            for side in Side:
                yield over.input(side), group_columns(over, side, frozenset(Side))
            for part in _pushed(node, over):
                yield from _candidates(part)


def _keys_by_table(node: Join) -> Iterator[tuple[Node, tuple[Scalar, ...]]]:
    """Yields the keys that two tables have in common, if one side of the join has keys of several tables."""
    alias_of = {field.name: part.alias for part in walk_up(node) if isinstance(part, Scan) for field, _ in part.columns}
    common: dict[tuple[str | None, str | None], list[tuple[Scalar, Scalar]]] = {}
    for left, right in node.keys:
        tables = alias_of.get(left.column or ""), alias_of.get(right.column or "")
        common.setdefault(tables, []).append((left, right))
    for pairs in common.values() if len(common) > 1 else ():
        yield node.left, tuple(left for left, _ in pairs)
        yield node.right, tuple(right for _, right in pairs)


def _pushed(node: Aggregate, over: JoinedAggregate) -> tuple[Aggregate, ...]:
    """Returns the aggregates over the next joins of a chain, if the sides of this join are aggregated first."""
    choices = (frozenset(Side), frozenset({Side.LEFT}), frozenset({Side.RIGHT}))
    sides = next((choice for choice in choices if refusal_of(over, choice) is None), None)
    if sides is None or over.join.kind is JoinKind.FULL:
        return ()
    return pushed_over_joins(node, aggregate_below(node, over, sides))


def _may_be_split(node: WindowFunctions) -> bool:
    return refusal_of_input(node) is None and any(group.is_open for group in call_groups(node, _NOTHING))


def undecided(plan: Node, settings: JobSettings) -> Callable[[Node], bool]:
    """Returns a predicate on nodes of `plan`: whether a rule still has to decide about the node, and so needs its keys.

    A join is decided if its ship and local strategy are forced and `join.skew` is NONE; an aggregate if its phases are
    forced and, with DISTINCT or PERCENTILE, its method. If aggregation below joins is possible, both are undecided.
    Calls with OVER are decided if `skewed_windows` is false, or if they cannot be computed in parts.
    """
    nodes = list(walk_up(plan))
    joins = [node for node in nodes if isinstance(node, Join) and node.keys]
    aggregates = [node for node in nodes if isinstance(node, Aggregate)]
    eager = settings.eager_aggregation is Toggle.AUTO and bool(joins) and bool(aggregates)
    open_joins = [join for join in joins if eager or not _join_is_forced(join, settings)]
    open_aggregates = [
        node for node in aggregates if (eager and _has_join(node)) or not _aggregate_is_forced(node, settings)
    ]
    # By identity: comparing nodes by value walks their subtrees.
    open_windows = [
        node for node in nodes if isinstance(node, WindowFunctions) and settings.skewed_windows is not Toggle.FALSE
    ]
    by_identity = {id(node): node for node in (*open_joins, *open_aggregates, *open_windows)}
    return lambda node: id(node) in by_identity


def joined_texts(plan: Node, matters: Callable[[Node], bool] = lambda _: True) -> frozenset[str]:
    """Returns the emitted names of the tables' string and binary columns below joins for which `matters` is true: a
    hashed side holds them in memory.
    """
    joins = (node for node in walk_up(plan) if isinstance(node, Join) and node.keys and matters(node))
    scans = {part for join in joins for part in walk_up(join) if isinstance(part, Scan)}
    return frozenset(field.name for scan in scans for field, _ in scan.columns if field.type.name in _TEXTS)


def is_all_forced(plan: Node, settings: JobSettings) -> bool:
    """Whether `plan` has joins, aggregates or windows to decide about, and settings force all of these choices."""
    to_decide = _to_decide(plan)
    return bool(to_decide) and not any(map(undecided(plan, settings), to_decide))


def are_all_undecided(plan: Node, settings: JobSettings) -> bool:
    """Whether settings force no choice for any join, aggregate or window of `plan`."""
    return all(map(undecided(plan, settings), _to_decide(plan)))


def _to_decide(plan: Node) -> list[Node]:
    return [
        node
        for node in walk_up(plan)
        if isinstance(node, Aggregate)
        or (isinstance(node, Join) and node.keys)
        or (isinstance(node, WindowFunctions) and _may_be_split(node))
    ]


def _has_join(node: Aggregate) -> bool:
    return any(isinstance(part, Join) for part in walk_up(node.input))


def _join_is_forced(join: Join, settings: JobSettings) -> bool:
    ship, local = forced_strategy(join, settings.join)
    skew = skew_of(join, settings.join.skew)
    # The broadcast side is the hashed one, and the other side's rows are not shuffled.
    return ship in HASHED_SIDE or (
        ship is JoinShip.REPARTITION and local is not JoinLocal.AUTO and skew is JoinSkew.NONE
    )


def _aggregate_is_forced(node: Aggregate, settings: JobSettings) -> bool:
    if settings.agg_phase is AggPhase.AUTO:
        return False
    split, method = settings.distinct_split.enabled, settings.distinct_method
    if not distinct_sets(node):
        is_open = method is DistinctMethod.AUTO and split is Toggle.AUTO
        return not percentiles_of(node) or not is_open
    return method in _METHODS_WITHOUT or (method is DistinctMethod.AUTO and split is Toggle.TRUE)
