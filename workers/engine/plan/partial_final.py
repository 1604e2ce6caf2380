"""The two aggregates that a split one becomes, with their phases decided."""

from __future__ import annotations

from dataclasses import replace

from service.spec.options import AggPhase
from service.spec.scalar import column
from workers.engine.plan.nodes import Aggregate, AggregateRole, Call, Exchange, Named, Phases


def key_columns(node: Aggregate) -> tuple[Named, ...]:
    """The group keys of `node` for an aggregate above it: the columns that it emits them as."""
    return tuple(Named(column(key.name, key.expression.type), key.name) for key in node.keys)


def partial_of(aggregate: Aggregate, spread: bool) -> Aggregate:
    """`aggregate` as the partial one: in two phases, or, where `spread`, in one behind an exchange by its keys."""
    if not spread:
        return replace(aggregate, role=AggregateRole.PARTIAL, phases=Phases.TWO_PHASE)
    exchange = Exchange(aggregate.input, tuple(key.expression for key in aggregate.keys))
    return replace(aggregate, input=exchange, role=AggregateRole.PARTIAL, phases=Phases.ONE_PHASE)


def final_of(partial: Aggregate, keys: tuple[Named, ...], calls: tuple[Call, ...], phase: AggPhase) -> Aggregate:
    """The final aggregate over `partial`: in two phases, or, where one is forced and there are keys, in one."""
    if phase is AggPhase.ONE_PHASE and keys:
        exchange = Exchange(partial, tuple(key.expression for key in keys))
        return Aggregate(exchange, keys, calls, AggregateRole.FINAL, Phases.ONE_PHASE)
    return Aggregate(partial, keys, calls, AggregateRole.FINAL, Phases.TWO_PHASE)
