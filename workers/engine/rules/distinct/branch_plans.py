"""Plans for distinct values that replace Spark's own: an aggregate per set, copies of rows after one exchange, or an
exchange by group and value.
"""

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


def branch_aggregates(node: Aggregate) -> tuple[Aggregate, ...]:
    """Returns an aggregate for each set of distinct values of `node`, with the calls of that set; the first one also
    has all calls without DISTINCT values.
    """
    sets = [frozenset(value.sql for value in values) for values in distinct_sets(node)]

    def branch_of(call: Call) -> int:
        return sets.index(distinct_set_of(call)) if is_distinct(call) else 0

    return tuple(
        replace(node, calls=tuple(call for call in node.calls if branch_of(call) == number))
        for number in range(len(sets))
    )


def joined_branches(node: Aggregate, branch_plan: Callable[[Aggregate], Node]) -> Project:
    """Returns the branches of `node`, each planned by `branch_plan`, joined on the group keys, NULL with NULL.

    Every branch has every group once, whichever rows its calls filter. Without keys each branch is one row.
    """
    taken = names_of(node) | names_of(node.input)
    first, *others = branch_aggregates(node)
    joined = branch_plan(first)
    for number, branch in enumerate(others, start=1):
        renamed = tuple(
            replace(key, name=fresh_name(f"$k{number}_{index}", taken)) for index, key in enumerate(branch.keys)
        )
        right = branch_plan(replace(branch, keys=renamed))
        pairs = tuple(
            (column(key.name, key.expression.type), column(other.name, other.expression.type))
            for key, other in zip(node.keys, renamed, strict=True)
        )
        kind = JoinKind.INNER if pairs else JoinKind.CROSS
        joined = Join(joined, right, kind, pairs, null_safe=bool(pairs))
    outputs = tuple(Named(column(call.output.name, call.output.type), call.output.name) for call in node.calls)
    return Project(joined, (*key_columns(node), *outputs))


def keyed_branches(node: Aggregate, partitions: int | None = None) -> Project:
    """Returns `node` over one exchange by its keys: each row is copied there for each set, and each group is
    deduplicated in its task. `partitions` is the exchange's number of partitions.

    Our `Expand` becomes Spark's Generate, which keeps the partitioning of rows; Spark's own Expand does not. Raises
    ValueError for a call that cannot be split.
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
    """Returns `node`, with one set of distinct values, over one exchange by group and value: values are deduplicated
    there in one phase, then counted by group in two. `partitions` is the exchange's number of partitions. Raises
    ValueError for a call that cannot be split.
    """
    taken = names_of(node) | names_of(node.input)
    (values,) = distinct_sets(node)
    sent = Exchange(node.input, (*(key.expression for key in node.keys), *values), partitions)
    parts = deduplicate(node, sent, node.keys, None, taken)
    deduplicated = replace(parts.rows, phases=Phases.ONE_PHASE)
    final = Aggregate(deduplicated, key_columns(node), parts.calls, AggregateRole.FINAL, Phases.TWO_PHASE)
    return Project(final, (*key_columns(node), *parts.results))


def is_cheap_to_repeat(node: Node) -> bool:
    """Whether computing `node` again only reads tables: it has only scans, filters and projections."""
    return all(isinstance(part, Scan | Filter | Project) for part in walk_up(node))


def is_deterministic(node: Node) -> bool:
    """Whether `node` returns the same rows each time that it is computed, so that several parts of a plan may compute
    it.

    A LIMIT may take other rows, a sum of fractions depends on the order of rows in its last digits, and FIRST_VALUE or
    LISTAGG may take any of several equal values.
    """
    return all(_is_deterministic_node(part) for part in walk_up(node))


def _is_deterministic_node(node: Node) -> bool:
    if isinstance(node, Aggregate):
        return all(_is_order_independent(call) for call in node.calls)
    return not isinstance(node, Limit)


def _is_order_independent(call: Call) -> bool:
    """Whether the result of `call` is known not to depend on the order of rows."""
    if call.function in _SUMS:
        types = (*(argument.type for argument in call.arguments), call.output.type)
        return all(one is not None and not one.is_fractional for one in types)
    return call.function in _EXACT
