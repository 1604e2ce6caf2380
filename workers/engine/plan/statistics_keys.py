"""Which keys of a plan are worth a sketch before the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from service.spec.query import AggregateFunction, JoinKind
from service.spec.scalar import Scalar
from workers.engine.plan.eager_placement import refusal_of
from workers.engine.plan.eager_plan import aggregate_below, group_columns, pushed_over_joins
from workers.engine.plan.joined_aggregate import JoinedAggregate, Side, joined_aggregate
from workers.engine.plan.keys import columns_of, scanned_columns
from workers.engine.plan.nodes import Aggregate, Join, Node, Scan
from workers.engine.plan.transform import walk_up


def statistics_keys(node: Node, matters: Callable[[Node], bool] = lambda _: True) -> frozenset[tuple[str, ...]]:
    """Tuples of emitted column names, each of one scan: join keys, group keys, distinct arguments, and group keys with
    a distinct argument, the group keys first; below an aggregate the join keys of a side with its columns that are
    needed above. Keys that are expressions, or of several tables, are left out.

    A column of a derived table stands for the scan's column that it is under another name. Nodes that do not `matter`
    have no keys.
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


def summed_columns(node: Node) -> frozenset[str]:
    """The scans' columns of integers whose sums over a join are worth a range: where it says that they, and their
    multiples, fit, they are BIGINTs throughout.
    """
    found: set[str] = set()
    for part in walk_up(node):
        over = joined_aggregate(part) if isinstance(part, Aggregate) else None
        for call in over.calls if over is not None else ():
            names = columns_of(call.arguments) if call.function is AggregateFunction.SUM else None
            of = call.arguments[0].type if over is not None and names else None
            if over is not None and of is not None and of.is_integral:
                found.update(scanned_columns(over.join, names) or ())
    return frozenset(found)


def _candidates(node: Node) -> Iterator[tuple[Node, tuple[Scalar, ...]]]:
    """The keys of `node`, each with the input that has its columns."""
    if isinstance(node, Join):
        yield node.left, tuple(left for left, _ in node.keys)
        yield node.right, tuple(right for _, right in node.keys)
    if isinstance(node, Aggregate):
        keys = tuple(key.expression for key in node.keys)
        yield node.input, keys
        for call in node.calls:
            if call.distinct:
                yield node.input, call.arguments
                yield node.input, (*keys, *call.arguments)
        # What the sides of a join below would be grouped by, were they aggregated first.
        over = joined_aggregate(node)
        if over is not None and over.join.keys:
            for side in Side:
                yield over.input(side), group_columns(over, side, frozenset(Side))
            for part in _pushed(node, over):
                yield from _candidates(part)


def _pushed(node: Aggregate, over: JoinedAggregate) -> tuple[Aggregate, ...]:
    """The aggregates that would stand over the next joins of a chain, were the sides of this one aggregated first."""
    ways = (frozenset(Side), frozenset({Side.LEFT}), frozenset({Side.RIGHT}))
    sides = next((way for way in ways if refusal_of(over, way) is None), None)
    if sides is None or over.join.kind is JoinKind.FULL:
        return ()
    return pushed_over_joins(node, aggregate_below(node, over, sides))
