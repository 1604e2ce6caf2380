"""A plan as text and as a tree of reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from service.spec.reports import PlanNodeReport, PlanTree
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
    Sort,
    SortItem,
    inputs_of,
)


def explain(node: Node, changed_by: Mapping[Node, str], rows_of: Callable[[Node], int | None]) -> PlanTree:
    """The tree below `node`: reports with inputs before the nodes that read them, and indented text.

    `changed_by` names the rule that made a node; `rows_of` estimates how many rows a node emits.
    """
    reports: list[PlanNodeReport] = []

    def add(current: Node) -> int:
        inputs = tuple(add(child) for child in inputs_of(current))
        reports.append(
            PlanNodeReport(
                id=len(reports),
                operator=type(current).__name__,
                detail=detail_of(current),
                inputs=inputs,
                changed_by=changed_by.get(current),
                estimated_rows=rows_of(current),
            )
        )
        return reports[-1].id

    add(node)
    return PlanTree(nodes=tuple(reports), text=text_of(node))


def text_of(node: Node) -> str:
    """The tree as text: one node a line, inputs two spaces further in, left first."""
    lines = [line_of(node)]
    for child in inputs_of(node):
        lines += ["  " + line for line in text_of(child).splitlines()]
    return "\n".join(lines)


def line_of(node: Node) -> str:
    """The node alone, on one line."""
    detail = detail_of(node)
    return f"{type(node).__name__} {detail}".rstrip()


def detail_of(node: Node) -> str:
    """What the node does, without its operator's name."""
    match node:
        case Scan():
            columns = ", ".join(field.name for field, _ in node.columns)
            return f"{node.table} AS {node.alias} [{columns}]"
        case Filter():
            return str(node.condition)
        case Project():
            return _named(node.items)
        case Join():
            return _join(node)
        case Aggregate():
            return _aggregate(node)
        case Expand():
            return f"{node.branches} branches AS {node.name}"
        case Exchange():
            return "BY " + ", ".join(str(key) for key in node.keys)
        case Sort():
            return ", ".join(_sort_item(item) for item in node.keys)
        case Limit():
            return str(node.count)


def call_text(call: Call) -> str:
    """A call as SQL, without its alias."""
    arguments = ", ".join(str(argument) for argument in call.arguments) or "*"
    distinct = "DISTINCT " if call.distinct else ""
    order = f" ORDER BY {call.order_by}" if call.order_by else ""
    filter_ = f" FILTER (WHERE {call.filter})" if call.filter else ""
    return f"{call.function}({distinct}{arguments}{order}){filter_}"


def _aggregate(node: Aggregate) -> str:
    parts = []
    if node.role is not AggregateRole.WHOLE:
        parts.append(node.role.value)
    if node.phases is not Phases.UNDECIDED:
        parts.append(node.phases.value)
    if node.keys:
        parts.append(f"BY {_named(node.keys)}")
    calls = ", ".join(f"{call_text(call)} AS {call.output.name}" for call in node.calls)
    return " ".join([*parts, f"[{calls}]"])


def _join(node: Join) -> str:
    keys = " AND ".join(f"{left} = {right}" for left, right in node.keys)
    residual = f" AND {node.residual}" if node.residual else ""
    on = f" ON {keys}{residual}" if keys or residual else ""
    return f"{node.kind.value.upper()}{on}"


def _named(items: tuple[Named, ...]) -> str:
    return ", ".join(
        str(item.expression) if item.expression.column == item.name else f"{item.expression} AS {item.name}"
        for item in items
    )


def _sort_item(item: SortItem) -> str:
    return f"{item.expression} {item.direction.value.upper()} NULLS {item.nulls.value.upper()}"
