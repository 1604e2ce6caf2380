"""Finds joins with one row whose columns are used in conditions. Spark computes them as subqueries that are values.

Spark moves a condition on such a value below other joins, to the scan of a table, which it does not with a condition on
a joined row. Values inside of values remain joins: Spark runs values in a pool of threads, each of which would wait for
the one inside.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.contract.query import JoinKind
from workers.engine.plan.nodes import Aggregate, Filter, Join, Node, Project, Shared, inputs_of, output_of
from workers.engine.plan.traversal import walk_up


def value_joins(plan: Node) -> frozenset[int]:
    """Returns the identity (`id`) of each join of `plan` whose right side is computed as a value."""
    used = {name for node in walk_up(plan) for name in _names_in_conditions(node)}
    return frozenset(_value_joins(plan, used))


def has_one_row(join: Join) -> bool:
    """Whether the right side has exactly one row, whose columns the join adds to each row of the left side, and no
    strategy is set.
    """
    one = join.right
    while isinstance(one, Project | Shared):
        one = one.input
    return (
        join.kind in {JoinKind.INNER, JoinKind.CROSS}
        and join.strategy.hint is None
        and join.within is None
        and isinstance(one, Aggregate)
        and not one.keys
        and not one.grouping_sets
        and bool(output_of(join.right))
    )


def _value_joins(node: Node, used: set[str]) -> Iterator[int]:
    if isinstance(node, Join) and has_one_row(node) and any(field.name in used for field in output_of(node.right)):
        yield id(node)
        yield from _value_joins(node.left, used)
        return
    for child in inputs_of(node):
        yield from _value_joins(child, used)


def _names_in_conditions(node: Node) -> Iterator[str]:
    if isinstance(node, Filter):
        yield from node.condition.columns
    elif isinstance(node, Join):
        for pair in node.keys:
            for side in pair:
                yield from side.columns
        if node.residual is not None:
            yield from node.residual.columns
