"""The plan that aggregates sides of a join before it and puts the joined rows together above it."""

from __future__ import annotations

from dataclasses import replace

from service.spec.query import AggregateFunction, JoinKind
from service.spec.scalar import Scalar, column
from workers.engine.plan.eager_bounds import NOTHING_KNOWN, SumBounds
from workers.engine.plan.eager_calls import EagerCalls
from workers.engine.plan.eager_placement import carried
from workers.engine.plan.joined_aggregate import JoinedAggregate, Side, all_of, stands_over_a_join
from workers.engine.plan.nodes import Aggregate, Call, Filter, Join, Named, Node, PlanFunction, Project, inputs_of
from workers.engine.plan.numbering import identities
from workers.engine.plan.scalars import compose, fresh_name
from workers.engine.plan.schema import names_of, output_of

_OF_ONE_ROW = frozenset(
    {
        AggregateFunction.SUM,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        PlanFunction.MIN_BY,
        PlanFunction.MAX_BY,
    }
)
"""Calls of the final aggregate whose value over one row is their first argument there."""

_ONE_PARTNER = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.RIGHT})


def aggregate_below(
    node: Aggregate, over: JoinedAggregate, aggregated: frozenset[Side], bounds: SumBounds = NOTHING_KNOWN
) -> Node:
    """`node` with the sides in `aggregated` aggregated below its join: the same columns, types and rows.

    `refusal_of` must have found nothing against it. The right side of a semi or anti join, which emits nothing, is made
    distinct. No final aggregate is needed where the groups are the join's keys and both sides have one row for each.
    """
    taken = names_of(node) | names_of(over.join.left) | names_of(over.join.right)
    calls = EagerCalls(over, aggregated, taken, bounds)
    results = tuple(calls.result_of(call) for call in over.calls)
    join, keys = over.join, _key_columns(over, aggregated, taken)
    inputs = {side: _input(side, over, aggregated, keys[side], tuple(calls.partial[side])) for side in Side}
    pairs = tuple(
        (_column(left), _column(right)) for left, right in zip(keys[Side.LEFT], keys[Side.RIGHT], strict=True)
    )
    below: Node = replace(join, left=inputs[Side.LEFT], right=inputs[Side.RIGHT], keys=pairs)
    condition = all_of(over.conditions)
    if condition is not None:
        below = Filter(below, condition)
    emitted = tuple(Named(column(key.name, key.expression.type), key.name) for key in over.keys)
    if has_one_row_a_group(over, aggregated) and all(has_value_of_one_row(call) for call in calls.final):
        above: Node = Project(below, (*over.keys, *(of_one_row(call) for call in calls.final)))
    else:
        above = Aggregate(below, over.keys, tuple(calls.final))
    return Project(above, (*emitted, *results))


def pushed_over_joins(before: Node, after: Node) -> tuple[Aggregate, ...]:
    """The aggregates of sides, in what `aggregate_below` made of `before`, that stand over joins in turn."""
    known = identities(before)
    sides = (side for side in inputs_of(join_within(after)) if isinstance(side, Aggregate) and id(side) not in known)
    return tuple(side for side in sides if stands_over_a_join(side))


def join_within(after: Node) -> Join:
    """The join whose sides `aggregate_below` aggregated, in what it made."""
    while not isinstance(after, Join):
        after = inputs_of(after)[0]
    return after


def group_columns(over: JoinedAggregate, side: Side, aggregated: frozenset[Side]) -> tuple[Scalar, ...]:
    """What `side` is grouped by: its join keys, then its carried columns."""
    types = {field.name: field.type for field in output_of(over.input(side))}
    keys = over.key(side)
    known = {key.column for key in keys}
    rest = (name for name in carried(side, over, aggregated) if name not in known)
    return (*keys, *(column(name, types[name]) for name in rest))


def has_one_row_a_group(over: JoinedAggregate, aggregated: frozenset[Side]) -> bool:
    """Whether the joined rows are the groups already: both sides are grouped by the join's keys alone, of which each
    value has one partner at most, and the query groups by those of a side that keeps its rows.
    """
    join = over.join
    if aggregated != frozenset(Side) or join.kind not in _ONE_PARTNER:
        return False
    # Different texts may be one number.
    if any(left.type is None or left.type != right.type for left, right in join.keys):
        return False
    if any(len(group_columns(over, side, aggregated)) > len(over.key(side)) for side in Side):
        return False
    groups = {key.expression.column for key in over.keys}
    left, right = ([key.column for key in over.key(side)] for side in Side)
    if None in groups or not groups <= {*left, *right}:
        return False
    if join.kind is JoinKind.INNER:
        return all(one in groups or other in groups for one, other in zip(left, right, strict=True))
    return set(left if join.kind is JoinKind.LEFT else right) <= groups


def _key_columns(
    over: JoinedAggregate, aggregated: frozenset[Side], taken: frozenset[str]
) -> dict[Side, tuple[Named, ...]]:
    """The join keys of each side, those that are expressions under names of their own where the side is aggregated."""
    named: dict[Side, tuple[Named, ...]] = {}
    for side in Side:
        prefix = f"$k{side.value[0].lower()}"
        named[side] = tuple(
            Named(key, key.column or (fresh_name(f"{prefix}{number}", taken) if side in aggregated else ""))
            for number, key in enumerate(over.key(side))
        )
    return named


def _column(key: Named) -> Scalar:
    return column(key.name, key.expression.type) if key.name else key.expression


def _input(
    side: Side,
    over: JoinedAggregate,
    aggregated: frozenset[Side],
    keys: tuple[Named, ...],
    calls: tuple[Call, ...],
) -> Node:
    if side not in aggregated:
        return over.input(side)
    rest = group_columns(over, side, aggregated)[len(keys) :]
    unique = {key.name: key for key in (*keys, *(Named(scalar, scalar.column or "") for scalar in rest))}
    return Aggregate(over.input(side), tuple(unique.values()), calls)


def has_value_of_one_row(call: Call) -> bool:
    """Whether a final call over a single joined row is its argument there."""
    return call.function in _OF_ONE_ROW and not call.distinct


def of_one_row(call: Call) -> Named:
    """The value of a final call over a single joined row."""
    value = call.arguments[0]
    if call.filter is not None:
        value = compose("IF({0}, {1}, NULL)", (call.filter, value), call.output.type)
    return Named(replace(value, type=call.output.type), call.output.name)
