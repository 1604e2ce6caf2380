"""Aggregate functions that are computed as others, so that plans, rules and streams need not know them.

COUNT_IF is a COUNT, BOOL_AND and BOOL_OR are MIN and MAX of conditions, MIN_BY and MAX_BY are FIRST_VALUE and
LAST_VALUE with an order. ANY_VALUE is MIN and MODE returns the smallest of equally frequent values, so that
the result is the same whenever the job runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from service.contract.query import AggregateFunction
from service.sql.expressions.nodes import Boolean, Call, Cast, Expression
from service.sql.expressions.scalar import Scalar
from service.sql.types.aggregates import CONDITIONAL, NEAREST
from service.sql.types.data_types import BOOLEAN, TypeName

COMPUTED_AS = {
    AggregateFunction.COUNT_IF: AggregateFunction.COUNT,
    AggregateFunction.BOOL_AND: AggregateFunction.MIN,
    AggregateFunction.BOOL_OR: AggregateFunction.MAX,
    AggregateFunction.MIN_BY: AggregateFunction.FIRST_VALUE,
    AggregateFunction.MAX_BY: AggregateFunction.LAST_VALUE,
    AggregateFunction.ANY_VALUE: AggregateFunction.MIN,
}
"""By function, the one that computes it. A plan has none of the keys."""
_BY_ORDER = {
    AggregateFunction.FIRST: AggregateFunction.FIRST_VALUE,
    AggregateFunction.LAST: AggregateFunction.LAST_VALUE,
}
_WITHOUT_ORDER = {ordered: function for function, ordered in _BY_ORDER.items()}


@dataclass(frozen=True)
class Computed:
    """The function, arguments and order with which a call is computed."""

    function: AggregateFunction
    arguments: tuple[Scalar, ...]
    order_by: Scalar | None


def computed(call: Computed) -> Computed:
    """Returns how a checked call is computed."""
    function, arguments, order_by = call.function, call.arguments, call.order_by
    if function in NEAREST:
        return Computed(COMPUTED_AS[function], arguments[:1], arguments[1])
    if function in CONDITIONAL:
        condition = _as_condition(arguments[0])
        if function is AggregateFunction.COUNT_IF:
            condition = _with_tree(condition, Call("nullif", (condition.tree, Boolean(False))))
        return Computed(COMPUTED_AS[function], (condition,), None)
    if function is AggregateFunction.ANY_VALUE:
        of = arguments[0].type
        is_nested = of is not None and of.name is TypeName.OTHER
        return replace(call, function=AggregateFunction.FIRST if is_nested else AggregateFunction.MIN)
    if function is AggregateFunction.MODE:
        return replace(call, arguments=(arguments[0], Scalar(Boolean(True), BOOLEAN)))
    if order_by is not None and function in _BY_ORDER:
        return replace(call, function=_BY_ORDER[function])
    if order_by is None and function in _WITHOUT_ORDER:
        return replace(call, function=_WITHOUT_ORDER[function])
    return call


def _as_condition(scalar: Scalar) -> Scalar:
    return scalar if scalar.type == BOOLEAN else _with_tree(scalar, Cast(scalar.tree, BOOLEAN, tries=False))


def _with_tree(scalar: Scalar, tree: Expression) -> Scalar:
    return Scalar(tree, BOOLEAN, scalar.longest, scalar.size + 2)
