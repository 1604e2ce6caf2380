"""Decides where each part of an aggregate over a join is computed if sides of the join are aggregated first.

An aggregated side is grouped by its join keys and its *carried* columns: those that are needed above the join (group
keys, conditions, arguments of DISTINCT, and what cannot be computed below). Rows that are equal in all of these have
the same partners and are handled alike above, so one row represents them, with their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from service.contract.query import AggregateFunction
from service.sql.expressions.analysis import cannot_fail, never_true_of_nulls, null_of_nulls, tree_of
from service.sql.expressions.nodes import Expression
from service.sql.expressions.scalar import Scalar
from service.sql.joins import Side
from service.sql.types.aggregates import refusal_of_parts
from workers.engine.plan.aggregates import is_distinct
from workers.engine.plan.explain import call_text
from workers.engine.plan.joined_aggregate import JoinedAggregate
from workers.engine.plan.nodes import Call, output_of
from workers.engine.rules.eager.wide_sums import Factor, factors_of

EXTREMES = frozenset({AggregateFunction.MIN, AggregateFunction.MAX})
NEAREST = frozenset({AggregateFunction.FIRST_VALUE, AggregateFunction.LAST_VALUE})
COUNTED = frozenset({AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.AVG})


@dataclass(frozen=True)
class Placement:
    """Where a call is computed: `argument` is the side that aggregates its arguments, `filter` the side that evaluates
    its FILTER; None means above the join. `factors` are the operands of a product of both sides; each aggregated side
    aggregates its own operand.
    """

    argument: Side | None = None
    filter: Side | None = None
    factors: tuple[Factor, Factor] | None = None


def placement_of(call: Call, over: JoinedAggregate, aggregated: frozenset[Side]) -> Placement:
    """Returns where `call` is computed if the sides in `aggregated` are aggregated first.

    A FILTER stays with an argument that may fail, since it may exclude the rows that fail. Results are cached in
    `over`.
    """
    key = (call, aggregated)
    if key not in over.known:
        over.known[key] = _placement_of(call, over, aggregated)
    return cast("Placement", over.known[key])


def _placement_of(call: Call, over: JoinedAggregate, aggregated: frozenset[Side]) -> Placement:
    if is_distinct(call) or call.function not in COUNTED | EXTREMES | NEAREST:
        return Placement()
    used = call.arguments if call.order_by is None else (*call.arguments, call.order_by)
    argument = over.side_of(*used)
    if argument not in aggregated or not all(_computable_below(scalar, argument, over) for scalar in used):
        argument = None
    checked = None if call.filter is None else over.side_of(call.filter)
    if call.filter is None or checked not in aggregated or not _checkable_below(call.filter, checked, over):
        checked = None
    factors = None if argument is not None else factors_of(call, over)
    if factors is not None and all(_has_parts(factor, over, aggregated) for factor in factors):
        return Placement(None, checked, factors)
    if argument is None and call.function in COUNTED and not _cannot_fail_above(call.arguments, over):
        # A FILTER evaluated below makes the weight NULL, but Spark still evaluates the weighted argument.
        checked = None
    return Placement(argument, checked)


def multiplying_sides(placement: Placement, over: JoinedAggregate, aggregated: frozenset[Side]) -> tuple[Side, ...]:
    """Returns the sides by whose numbers of rows the values of such a call are multiplied."""
    if placement.factors is not None:
        return ()
    return tuple(
        side for side in Side if side in aggregated and over.multiplies(side) and side is not placement.argument
    )


def carried_columns(side: Side, over: JoinedAggregate, aggregated: frozenset[Side]) -> tuple[str, ...]:
    """Returns the columns of `side` that are needed above it, each once; they may include join keys."""
    names = {field.name for field in output_of(over.input(side))}
    needed = (name for scalar in _above(over, aggregated) for name in scalar.columns)
    return tuple(name for name in dict.fromkeys(needed) if name in names)


def refusal_of(over: JoinedAggregate, aggregated: frozenset[Side]) -> str | None:
    """Returns a sentence that says why aggregating the sides in `aggregated` first would change the result; None if it
    would not.
    """
    for call in over.calls:
        reason = _call_refusal(call, over, aggregated)
        if reason is not None:
            return f"{call_text(call)} {reason}."
    return next(filter(None, (_carried_refusal(side, over, aggregated) for side in sorted(aggregated))), None)


def _computable_below(scalar: Scalar, side: Side, over: JoinedAggregate) -> bool:
    tree = _tree(scalar, side, over)
    return tree is not None and cannot_fail(tree) and (not over.null_extended(side) or null_of_nulls(tree))


def _has_parts(factor: Factor, over: JoinedAggregate, aggregated: frozenset[Side]) -> bool:
    """Whether a factor can be computed below on its side, or, if that is not aggregated, above for every row."""
    if factor.side in aggregated:
        return _computable_below(factor.value, factor.side, over)
    return _cannot_fail_above((factor.value,), over)


def _checkable_below(scalar: Scalar, side: Side | None, over: JoinedAggregate) -> bool:
    tree = None if side is None else _tree(scalar, side, over)
    if tree is None or side is None:
        return False
    return cannot_fail(tree) and (not over.null_extended(side) or never_true_of_nulls(tree))


def _cannot_fail_above(scalars: Iterable[Scalar], over: JoinedAggregate) -> bool:
    trees = [tree_of(scalar, over.joined_columns) for scalar in scalars]
    return all(tree is not None and cannot_fail(tree) for tree in trees)


def _tree(scalar: Scalar, side: Side, over: JoinedAggregate) -> Expression | None:
    return tree_of(scalar, over.columns[side])


def _above(over: JoinedAggregate, aggregated: frozenset[Side]) -> Iterable[Scalar]:
    """Yields every expression that is evaluated above the aggregated sides, without the join's keys."""
    yield from (key.expression for key in over.keys)
    yield from over.conditions
    if over.join.residual is not None:
        yield over.join.residual
    for call in over.calls:
        placement = placement_of(call, over, aggregated)
        if placement.argument is None and placement.factors is None:
            yield from call.arguments
            yield from () if call.order_by is None else (call.order_by,)
        if placement.filter is None and call.filter is not None:
            yield call.filter


def _call_refusal(call: Call, over: JoinedAggregate, aggregated: frozenset[Side]) -> str | None:
    if is_distinct(call):
        return None
    placement = placement_of(call, over, aggregated)
    is_weighted = bool(multiplying_sides(placement, over, aggregated))
    if placement.argument is None and not is_weighted:
        return None
    if call.function not in COUNTED | EXTREMES | NEAREST:
        return "cannot be computed from rows that represent several rows"
    if call.function not in {AggregateFunction.SUM, AggregateFunction.AVG}:
        return None
    is_average = call.function is AggregateFunction.AVG
    return refusal_of_parts(call.arguments[0].type, is_average=is_average, weighed=is_weighted)


def _carried_refusal(side: Side, over: JoinedAggregate, aggregated: frozenset[Side]) -> str | None:
    fields = {field.name: field.type for field in output_of(over.input(side))}
    for key in over.key(side):
        if key.type is None or not key.type.is_atomic:
            return f"The join key {key} has a type that may not be groupable."
    for name in carried_columns(side, over, aggregated):
        if not fields[name].is_groupable:
            return f"{name} is needed above the join and has a type that may not be groupable."
    for scalar in _above(over, aggregated):
        for name in () if scalar.column is not None else scalar.columns:
            if name in fields and fields[name].is_fractional:
                return (
                    f"{scalar} is computed above the join, where groups no longer distinguish -0.0 from 0.0 in {name}."
                )
    return None
