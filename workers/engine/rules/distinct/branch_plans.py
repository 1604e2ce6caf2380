"""Several sets of distinct values apart, in place of Spark's Expand: an aggregate for each, or a copy of every row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.scalar import column
from service.sql.types.data_types import INT
from workers.engine.plan.aggregates import distinct_set_of, distinct_sets, is_distinct, key_columns
from workers.engine.plan.expressions import fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    Named,
    Node,
    Phases,
    Project,
    Scan,
    names_of,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.bitmaps import BIT_SETTING
from workers.engine.rules.distinct.deduplication import deduplicate


def branch_aggregates(node: Aggregate) -> tuple[Aggregate, ...]:
    """`node` once for each of its sets of distinct values, with the calls of that set; the first has all others too."""
    sets = [frozenset(value.sql for value in values) for values in distinct_sets(node)]

    def branch_of(call: Call) -> int:
        return sets.index(distinct_set_of(call)) if is_distinct(call) else 0

    return tuple(
        replace(node, calls=tuple(call for call in node.calls if branch_of(call) == number))
        for number in range(len(sets))
    )


def joined_branches(node: Aggregate, told_apart: Callable[[Aggregate], Node]) -> Project:
    """The branches of `node`, each as `told_apart` makes it, joined on the group keys, NULL with NULL.

    Every branch has every group once, whatever its calls leave out. Without keys each is one row.
    """
    taken = names_of(node) | names_of(node.input)
    first, *others = branch_aggregates(node)
    joined = told_apart(first)
    for number, branch in enumerate(others, start=1):
        renamed = tuple(
            replace(key, name=fresh_name(f"$k{number}_{index}", taken)) for index, key in enumerate(branch.keys)
        )
        right = told_apart(replace(branch, keys=renamed))
        pairs = tuple(
            (column(key.name, key.expression.type), column(other.name, other.expression.type))
            for key, other in zip(node.keys, renamed, strict=True)
        )
        kind = JoinKind.INNER if pairs else JoinKind.CROSS
        joined = Join(joined, right, kind, pairs, null_safe=bool(pairs))
    outputs = tuple(Named(column(call.output.name, call.output.type), call.output.name) for call in node.calls)
    return Project(joined, (*key_columns(node), *outputs))


def keyed_branches(node: Aggregate, partitions: int | None = None) -> Project:
    """`node` behind one exchange by its keys: each row copied for each set there, and every group told apart in place.
    `partitions` is the exchange's.

    An `Expand` here is Spark's Generate, which leaves rows parted as they are; its own Expand does not. Raises
    ValueError for a call that the algebra does not split.
    """
    taken = names_of(node) | names_of(node.input)
    sets = distinct_sets(node)
    rows: Node = Exchange(node.input, tuple(key.expression for key in node.keys), partitions)
    branch = column(fresh_name("$branch", taken), INT) if len(sets) > 1 else None
    if branch is not None:
        rows = Expand(rows, len(sets), branch.columns[0])
    parts = deduplicate(node, rows, node.keys, branch, taken)
    partial = replace(parts.rows, phases=Phases.ONE_PHASE)
    final = Aggregate(partial, key_columns(node), parts.calls, AggregateRole.FINAL, Phases.ONE_PHASE)
    return Project(final, (*key_columns(node), *parts.results))


def sent_by_value(node: Aggregate, partitions: int | None = None) -> Project:
    """`node`, of one set of distinct values, behind one exchange by group and value: told apart there at once, then
    counted by group in two phases. `partitions` is the exchange's. Raises ValueError for a call that the algebra does
    not split.
    """
    taken = names_of(node) | names_of(node.input)
    (values,) = distinct_sets(node)
    sent = Exchange(node.input, (*(key.expression for key in node.keys), *values), partitions)
    parts = deduplicate(node, sent, node.keys, None, taken)
    apart = replace(parts.rows, phases=Phases.ONE_PHASE)
    final = Aggregate(apart, key_columns(node), parts.calls, AggregateRole.FINAL, Phases.TWO_PHASE)
    return Project(final, (*key_columns(node), *parts.results))


def repeats_cheaply(node: Node) -> bool:
    """Whether reading `node` once more is reading a table: scans under filters and projections alone."""
    return all(isinstance(part, Scan | Filter | Project) for part in walk_up(node))


def repeats_alike(node: Node) -> bool:
    """Whether `node` gives the same rows each time that it is computed, so that two parts of a plan may each do so.

    A LIMIT may take other rows, a sum of fractions has other last digits where rows come in another order, and what
    FIRST_VALUE or LISTAGG take of equal values may be any.
    """
    return all(_gives_the_same(part) for part in walk_up(node))


def _gives_the_same(node: Node) -> bool:
    if isinstance(node, Aggregate):
        return all(_depends_on_rows_alone(call) for call in node.calls)
    return not isinstance(node, Limit)


def _depends_on_rows_alone(call: Call) -> bool:
    """And not on their order, as far as it is known of the function."""
    if call.function in _SUMS:
        types = (*(argument.type for argument in call.arguments), call.output.type)
        return all(one is not None and not one.is_fractional for one in types)
    return call.function in _EXACT


_SUMS = frozenset({AggregateFunction.SUM, AggregateFunction.AVG})
_EXACT = frozenset(
    {
        AggregateFunction.COUNT,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.GROUPING,
        AggregateFunction.GROUPING_ID,
        *BIT_SETTING,
    }
)
