"""What holds for every plan. A plan that breaks one is an engine bug, found before Spark sees it."""

from __future__ import annotations

from collections.abc import Iterator

from service.spec.scalar import Scalar
from service.spec.types import Field
from workers.engine.errors import InvalidPlanError
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Exchange,
    Expand,
    Filter,
    Join,
    Limit,
    Node,
    Phases,
    Project,
    Scan,
    Sort,
    inputs_of,
)
from workers.engine.plan.schema import names_of, output_of
from workers.engine.plan.transform import walk_up


def check(plan: Node, made_by: str, output: tuple[Field, ...] | None = None) -> None:
    """Raises `InvalidPlanError` with everything that is wrong with `plan`; `output` is what it must emit."""
    violations = [f"{line_of(node)}: {violation}" for node in walk_up(plan) for violation in _violations(node)]
    if output is not None and output_of(plan) != output:
        violations.append(f"it emits {_columns(output_of(plan))} in place of {_columns(output)}")
    if violations:
        raise InvalidPlanError(made_by, tuple(violations))


def _violations(node: Node) -> Iterator[str]:
    names = [field.name for field in output_of(node)]
    folded = [name.casefold() for name in names]
    for name in names:
        if folded.count(name.casefold()) > 1 and not isinstance(node, Project):
            yield f"two columns are called {name}"
    yield from _unknown_columns(node)
    if isinstance(node, Aggregate):
        yield from _aggregate_violations(node)
    if isinstance(node, Exchange) and not node.keys:
        yield "an exchange needs a key"
    if isinstance(node, Expand) and node.branches < 1:
        yield "an expansion needs a branch"
    if isinstance(node, Limit) and node.count < 0:
        yield "a limit is not negative"


def _unknown_columns(node: Node) -> Iterator[str]:
    if isinstance(node, Join):
        left, right = names_of(node.left), names_of(node.right)
        for left_key, right_key in node.keys:
            yield from _missing(left_key, left)
            yield from _missing(right_key, right)
        if node.residual is not None:
            yield from _missing(node.residual, left | right)
        return
    below = frozenset[str]().union(*(names_of(child) for child in inputs_of(node)))
    for scalar in _scalars(node):
        yield from _missing(scalar, below)


def _missing(scalar: Scalar, names: frozenset[str]) -> Iterator[str]:
    for name in scalar.columns:
        if name not in names:
            yield f"column {name} is not below it"


def _scalars(node: Node) -> Iterator[Scalar]:
    match node:
        case Filter():
            yield node.condition
        case Project():
            yield from (item.expression for item in node.items)
        case Aggregate():
            yield from (key.expression for key in node.keys)
            for call in node.calls:
                yield from _call_scalars(call)
        case Exchange():
            yield from node.keys
        case Sort():
            yield from (item.expression for item in node.keys)
        case Scan() | Join() | Expand() | Limit():
            return


def _call_scalars(call: Call) -> Iterator[Scalar]:
    yield from call.arguments
    yield from (scalar for scalar in (call.filter, call.order_by) if scalar is not None)


def _aggregate_violations(node: Aggregate) -> Iterator[str]:
    below = node.input
    if node.phases is Phases.ONE_PHASE:
        keys = {key.expression for key in node.keys}
        if not isinstance(below, Exchange) or not keys or set(below.keys) != keys:
            yield "one phase needs an exchange by exactly its keys below it"
        below = below.input if isinstance(below, Exchange) else below
    if node.role is AggregateRole.FINAL:
        partial = below
        if not isinstance(partial, Aggregate) or partial.role is not AggregateRole.PARTIAL:
            yield "a final aggregate needs a partial one below it"
    if node.role is AggregateRole.FINAL and any(call.distinct for call in node.calls):
        yield "a final aggregate cannot have DISTINCT calls"


def _columns(fields: tuple[Field, ...]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)
