"""Checks the invariants of plans. A violation is a bug of the engine, found before Spark runs the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

from service.sql.expressions.nodes import Over
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import Field
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    Limit,
    MultisetOperation,
    Node,
    Phases,
    Project,
    Recursion,
    Scan,
    Shared,
    Sort,
    StepRows,
    Union,
    Values,
    Watermark,
    WindowFunctions,
    Windows,
    inputs_of,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import walk_up


class InvalidPlanError(Exception):
    """A plan violates invariants. `made_by` is the builder or the rule that made the plan; `violations` has one
    sentence for each violation.
    """

    code: ClassVar[str] = "invalid_plan"

    def __init__(self, made_by: str, violations: tuple[str, ...]) -> None:
        self.made_by = made_by
        self.violations = violations
        super().__init__(f"the plan made by {made_by} is invalid: {'; '.join(violations)}")


def check(
    plan: Node, made_by: str, output: tuple[Field, ...] | None = None, known: dict[int, Node] | None = None
) -> None:
    """Raises `InvalidPlanError` with all violations of `plan`; `output` are the columns that it must emit.

    `known` are the nodes of earlier calls by their identity, which are not checked again. This call adds its nodes.
    """
    known = {} if known is None else known
    violations = list[str]()
    for node in walk_up(plan):
        if id(node) not in known:
            violations += (f"{line_of(node)}: {violation}" for violation in _violations(node))
            known[id(node)] = node
    if output is not None and output_of(plan) != output:
        violations.append(f"it emits {_columns(output_of(plan))} instead of {_columns(output)}")
    if violations:
        raise InvalidPlanError(made_by, tuple(violations))


def _violations(node: Node) -> Iterator[str]:
    names = [field.name for field in output_of(node)]
    folded = Counter(name.casefold() for name in names)
    for name in names:
        if folded[name.casefold()] > 1 and not isinstance(node, Project):
            yield f"two columns have the name {name}"
    yield from _unknown_columns(node)
    if isinstance(node, Aggregate):
        yield from _aggregate_violations(node)
    if isinstance(node, Exchange) and node.partitions is not None and node.partitions < 1:
        yield "an exchange needs at least one partition"
    if isinstance(node, Union | MultisetOperation):
        yield from _union_violations(node)
    if isinstance(node, Values) and any(len(row) != len(node.columns) for row in node.rows):
        yield "a row has another number of values"
    if isinstance(node, Expand) and node.branches < 1:
        yield "an expansion needs at least one branch"
    if isinstance(node, WindowFunctions) and not all(isinstance(call.expression.tree, Over) for call in node.calls):
        yield "a call without OVER"
    if isinstance(node, Watermark | Windows) and node.column.column is None:
        yield "it needs a column, not an expression"
    if isinstance(node, Generate) and not (node.arguments and node.columns):
        yield "a generator needs arguments and columns"
    if isinstance(node, Watermark) and node.delay_ms < 0:
        yield "the delay is negative"
    if isinstance(node, Windows) and not 1 <= node.slide_ms <= node.size_ms:
        yield "the slide of a window must be at least a millisecond and at most its size"
    if isinstance(node, Recursion):
        yield from _recursion_violations(node)
    if isinstance(node, Limit) and ((node.count or 0) < 0 or node.offset < 0):
        yield "the limit is negative"


def _recursion_violations(node: Recursion) -> Iterator[str]:
    types = [field.type for field in node.columns]
    for part in (node.inputs[0], node.step):
        if [field.type for field in output_of(part)] != types:
            yield f"a part of it emits {_columns(output_of(part))} instead of {_columns(node.columns)}"
    names = [frozenset(field.name for field in node.columns), *map(names_of, node.inputs[1:])]
    for leaf in walk_up(node.step):
        if isinstance(leaf, StepRows) and not {name for _, name in leaf.columns} <= names[leaf.place]:
            yield f"its step reads columns that input {leaf.place + 1} does not emit"


def _unknown_columns(node: Node) -> Iterator[str]:
    if isinstance(node, Union | MultisetOperation | Values | Recursion | StepRows):
        return
    if isinstance(node, Join):
        left, right = names_of(node.left), names_of(node.right)
        for left_key, right_key in node.keys:
            yield from _missing(left_key, left)
            yield from _missing(right_key, right)
        if node.within is not None:
            yield from _missing(node.within.left, left)
            yield from _missing(node.within.right, right)
        if node.residual is not None:
            yield from _missing(node.residual, left | right)
        return
    below = frozenset[str]().union(*(names_of(child) for child in inputs_of(node)))
    for scalar in scalars_of(node):
        yield from _missing(scalar, below)


def _missing(scalar: Scalar, names: frozenset[str]) -> Iterator[str]:
    for name in scalar.columns:
        if name not in names:
            yield f"its input has no column {name}"


def scalars_of(node: Node) -> Iterator[Scalar]:
    """Yields the expressions of a node, without those of its inputs; for a join, none."""
    match node:
        case Filter():
            yield node.condition
        case Watermark() | Windows():
            yield node.column
        case Project():
            yield from (item.expression for item in node.items)
        case Aggregate():
            yield from (key.expression for key in node.keys)
            for call in node.calls:
                yield from _call_scalars(call)
        case Generate():
            yield from node.arguments
        case WindowFunctions():
            yield from (call.expression for call in node.calls)
        case Exchange():
            yield from node.keys
        case Sort():
            yield from (item.expression for item in node.keys)
        case Scan() | Values() | Join() | Deduplicate() | Expand() | Union() | MultisetOperation() | Limit():
            return
        case Recursion() | StepRows() | Shared():
            return


def _call_scalars(call: Call) -> Iterator[Scalar]:
    yield from call.arguments
    yield from (scalar for scalar in (call.filter, call.order_by) if scalar is not None)


def _aggregate_violations(node: Aggregate) -> Iterator[str]:
    below = node.input
    positions = {position for one in node.grouping_sets for position in one}
    if not positions <= set(range(len(node.keys))):
        yield "a grouping set has a key that does not exist"
    if node.grouping_sets and (node.role is not AggregateRole.WHOLE or node.phases is not Phases.UNDECIDED):
        yield "an aggregate with grouping sets must not be split"
    if node.phases is Phases.ONE_PHASE:
        if not _is_exchanged_by_keys(node):
            yield "one phase needs an exchange by all or some of its keys below it"
        below = below.input if isinstance(below, Exchange) else below
    if node.role is AggregateRole.FINAL:
        partial = below
        if not isinstance(partial, Aggregate) or partial.role is not AggregateRole.PARTIAL:
            yield "a final aggregate needs a partial one below it"
    if node.role is AggregateRole.FINAL and any(call.distinct for call in node.calls):
        yield "a final aggregate cannot have DISTINCT calls"


def _is_exchanged_by_keys(node: Aggregate) -> bool:
    """Whether an exchange by keys of `node` is below it, with only copies of rows and aggregates between them."""
    keys = [key.expression for key in node.keys]
    below = node.input
    while isinstance(below, Expand | Aggregate):
        if isinstance(below, Aggregate):
            emitted = {key.name: key.expression for key in below.keys}
            keys = [emitted[key.column] for key in keys if key.column in emitted]
        below = below.input
    return isinstance(below, Exchange) and bool(below.keys) and set(below.keys) <= set(keys)


def _union_violations(node: Union | MultisetOperation) -> Iterator[str]:
    if len(inputs_of(node)) < 2:
        yield "a union needs at least two inputs"
    outputs = [output_of(branch) for branch in inputs_of(node)]
    if any(output != outputs[0] for output in outputs):
        yield f"its inputs emit different columns: {'; '.join(_columns(output) for output in outputs)}"


def _columns(fields: tuple[Field, ...]) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in fields)
