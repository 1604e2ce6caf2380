"""An aggregate over a join, with filters and projections between them, in terms of the join's columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

from service.sql.expressions.analysis import Columns, columns_by_name, conjuncts_of, scalar_from, tree_of
from service.sql.expressions.scalar import Scalar
from service.sql.joins import CONDITION_MOVES, NULL_EXTENDED, ONE_SIDED, RESIDUAL_MOVES, Side
from workers.engine.plan.expressions import all_of
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Filter,
    Join,
    Named,
    Node,
    Project,
    inputs_of,
    join_input,
    join_keys,
    names_of,
    output_of,
)

_CACHE_KEY = "_joined_aggregate"


@dataclass(frozen=True)
class JoinedAggregate:
    """An aggregate by `keys` with `calls` over the rows of `join` that meet all `conditions`. Conditions on one side
    that may be evaluated below the join are filters of its inputs.
    """

    join: Join
    conditions: tuple[Scalar, ...]
    keys: tuple[Named, ...]
    calls: tuple[Call, ...]

    def input(self, side: Side) -> Node:
        """Returns the join's input on `side`."""
        return join_input(self.join, side)

    def key(self, side: Side) -> tuple[Scalar, ...]:
        """Returns the join's key expressions on `side`."""
        return join_keys(self.join, side)

    def side_of(self, *scalars: Scalar) -> Side | None:
        """Returns the side that has all columns of `scalars`; None if they use both sides or none."""
        names = {name for scalar in scalars for name in scalar.columns}
        return next((side for side in Side if names and names <= names_of(self.input(side))), None)

    @cached_property
    def columns(self) -> Mapping[Side, Columns]:
        """The columns of each side of the join, by name."""
        return {side: columns_by_name(output_of(self.input(side))) for side in Side}

    @cached_property
    def joined_columns(self) -> Columns:
        """The columns of both sides, by name."""
        return {**self.columns[Side.LEFT], **self.columns[Side.RIGHT]}

    @cached_property
    def known(self) -> dict[Hashable, object]:
        """The cache of `workers.engine.rules.eager.pushdown`."""
        return {}

    def null_extended(self, side: Side) -> bool:
        """Whether the join emits rows in which all columns of `side` are NULL."""
        return side in NULL_EXTENDED.get(self.join.kind, frozenset())

    def multiplies(self, side: Side) -> bool:
        """Whether the join emits a row of the other side once for each partner on `side`."""
        return side is Side.LEFT or self.join.kind not in ONE_SIDED


def is_over_join(node: Aggregate) -> bool:
    """Whether a join is below `node`, with only filters and projections between them."""
    below = node.input
    while isinstance(below, Filter | Project):
        below = below.input
    return isinstance(below, Join)


def is_multiplied(node: Node) -> bool:
    """Whether `node` may have many more rows than the tables: a join is below it, without an aggregate between."""
    return isinstance(node, Join) or (not isinstance(node, Aggregate) and any(map(is_multiplied, inputs_of(node))))


def joined_aggregate(node: Aggregate) -> JoinedAggregate | None:
    """Returns `node` as a `JoinedAggregate`; None if no join is below it, or if an expression between them cannot be
    rewritten over the join's columns.

    It is computed once and cached in the immutable node, outside of its fields.
    """
    cache = vars(node)
    if _CACHE_KEY not in cache:
        cache[_CACHE_KEY] = _joined_aggregate(node)
    return cast("JoinedAggregate | None", cache[_CACHE_KEY])


def _joined_aggregate(node: Aggregate) -> JoinedAggregate | None:
    between: list[Filter | Project] = []
    below = node.input
    while isinstance(below, Filter | Project):
        between.append(below)
        below = below.input
    if not isinstance(below, Join):
        return None
    collapsed = _collapsed(node, below, between)
    return None if collapsed is None else _with_conditions_moved(collapsed)


def _collapsed(node: Aggregate, join: Join, between: list[Filter | Project]) -> JoinedAggregate | None:
    columns: Columns = columns_by_name(output_of(join))
    projected = False
    conditions: list[Scalar] = []
    for part in reversed(between):
        if isinstance(part, Filter):
            condition = _over_join(part.condition, columns, projected)
            if condition is None:
                return None
            conditions.append(condition)
            continue
        trees = {item.name: tree_of(item.expression, columns) for item in part.items}
        columns = {name: tree for name, tree in trees.items() if tree is not None}
        projected = True
    keys = [_over_join(key.expression, columns, projected) for key in node.keys]
    calls = [_call(call, columns, projected) for call in node.calls]
    if any(part is None for part in (*keys, *calls)):
        return None
    return JoinedAggregate(
        join,
        tuple(conditions),
        tuple(Named(made, key.name) for made, key in zip(keys, node.keys, strict=True) if made is not None),
        tuple(call for call in calls if call is not None),
    )


def _over_join(scalar: Scalar, columns: Columns, projected: bool) -> Scalar | None:
    """Returns `scalar` over the join's columns; unchanged if no projection renames them; None if it is impossible."""
    if not projected:
        return scalar
    tree = tree_of(scalar, columns)
    made = None if tree is None else scalar_from(tree)
    return None if made is None else replace(made, type=scalar.type)


def _call(call: Call, columns: Columns, projected: bool) -> Call | None:
    arguments = [_over_join(argument, columns, projected) for argument in call.arguments]
    filter_ = None if call.filter is None else _over_join(call.filter, columns, projected)
    order_by = None if call.order_by is None else _over_join(call.order_by, columns, projected)
    known = tuple(argument for argument in arguments if argument is not None)
    is_incomplete = len(known) < len(arguments) or (call.filter is not None and filter_ is None)
    if is_incomplete or (call.order_by is not None and order_by is None):
        return None
    return replace(call, arguments=known, filter=filter_, order_by=order_by)


def _with_conditions_moved(over: JoinedAggregate) -> JoinedAggregate:
    join = over.join
    columns = columns_by_name((*output_of(join.left), *output_of(join.right)))
    above = [term for condition in over.conditions for term in conjuncts_of(condition, columns)]
    within = [] if join.residual is None else list(conjuncts_of(join.residual, columns))
    stay: list[Scalar] = []
    residual: list[Scalar] = []
    moved: dict[Side, list[Scalar]] = {side: [] for side in Side}
    for terms, moves, kept in ((above, CONDITION_MOVES, stay), (within, RESIDUAL_MOVES, residual)):
        for term in terms:
            side = over.side_of(term)
            may_move = side is not None and side in moves.get(join.kind, frozenset())
            (moved[side] if side is not None and may_move else kept).append(term)
    filtered = replace(
        join,
        left=_filtered(join.left, moved[Side.LEFT]),
        right=_filtered(join.right, moved[Side.RIGHT]),
        residual=all_of(residual),
    )
    return replace(over, join=filtered, conditions=tuple(stay))


def _filtered(node: Node, terms: list[Scalar]) -> Node:
    condition = all_of(terms)
    return node if condition is None else Filter(node, condition)
