"""Formats a plan as text and as a tree of reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from itertools import groupby

from service.contract.model import format_duration
from service.contract.query import AggregateFunction
from service.contract.reports import PlanNodeReport, PlanTree
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
    Named,
    Node,
    Phases,
    Project,
    Recursion,
    Scan,
    Shared,
    Sort,
    SortItem,
    StepRows,
    Union,
    Values,
    Watermark,
    WindowFunctions,
    Windows,
    Within,
    inputs_of,
)
from workers.engine.plan.sql import sql_of
from workers.engine.plan.traversal import id_of, walk_up

_SHOWN_ALIKE = 8
_NUMBER = re.compile(r"\d+")
_NUMBERED = re.compile(r"(\$[a-z]+\d+)(?:, \$[a-z]+\d+){8,}, (\$[a-z]+\d+)")


def explain(node: Node, changed_by: Mapping[int, str], rows_of: Callable[[Node], int | None]) -> PlanTree:
    """Returns the tree below `node`: reports with inputs before the nodes that read them, indented text, and SQL.

    `changed_by` has the rule that created or changed a node, by the node's id; `rows_of` estimates how many rows a node
    emits. Raises ValueError if a node has no id.
    """
    reports = tuple(
        PlanNodeReport(
            id=id_of(current),
            operator=type(current).__name__,
            detail=detail_of(current),
            inputs=tuple(map(id_of, inputs_of(current))),
            changed_by=changed_by.get(id_of(current)),
            estimated_rows=rows_of(current),
        )
        for current in walk_up(node)
    )
    return PlanTree(nodes=reports, text=text_of(node), sql=sql_of(node))


def text_of(node: Node) -> str:
    """Returns the tree as text: one node per line, inputs indented by two more spaces, left first."""
    lines = [line_of(node)]
    for child in inputs_of(node):
        lines += ["  " + line for line in text_of(child).splitlines()]
    return "\n".join(lines)


def line_of(node: Node) -> str:
    """Returns the node without its inputs, on one line."""
    detail = detail_of(node)
    return f"{type(node).__name__} {detail}".rstrip()


def detail_of(node: Node) -> str:
    """Returns the node's arguments, without its operator's name."""
    match node:
        case Scan():
            columns = ", ".join(field.name for field, _ in node.columns)
            return f"{node.table} AS {node.alias} [{columns}]"
        case Values():
            return f"{len(node.rows)} rows [{', '.join(field.name for field in node.columns)}]"
        case StepRows():
            of = "the step before" if node.place == 0 else f"input {node.place + 1}"
            return f"of {of} [{', '.join(field.name for field, _ in node.columns)}]"
        case Recursion():
            columns = ", ".join(field.name for field in node.columns)
            most = "" if node.levels is None else f" AT MOST {node.levels} STEPS"
            return f"[{columns}]{most}: {line_of_step(node.step)}"
        case Watermark():
            return f"{node.column} DELAY {_duration(node.delay_ms)}"
        case Windows():
            slide = "" if node.slide_ms == node.size_ms else f" SLIDE {_duration(node.slide_ms)}"
            return f"{node.column} SIZE {_duration(node.size_ms)}{slide} AS {node.name}"
        case Filter():
            return str(node.condition)
        case Project():
            return _named(node.items)
        case Join():
            return _join(node)
        case Aggregate():
            return _aggregate(node)
        case Deduplicate():
            return ""
        case Expand():
            return f"{node.branches} branches AS {node.name}"
        case Generate():
            arguments = ", ".join(map(str, node.arguments))
            columns = ", ".join(field.name for field in node.columns)
            return f"{'OUTER ' if node.outer else ''}{node.function.value}({arguments}) AS {columns}"
        case WindowFunctions():
            return _named(node.calls)
        case Exchange():
            return _exchange(node)
        case Union():
            return f"{len(node.inputs)} inputs"
        case MultisetOperation():
            return node.kind.replace("_", " ").upper()
        case Sort():
            return ", ".join(_sort_item(item) for item in node.keys)
        case Limit():
            return _limit(node)
        case Shared():
            return f"{node.number}"


def line_of_step(step: Node) -> str:
    """Returns the tree of a recursion's step on one line, each node before its inputs."""
    inputs = ", ".join(map(line_of_step, inputs_of(step)))
    return f"{line_of(step)} ({inputs})" if inputs else line_of(step)


def call_text(call: Call) -> str:
    """Returns a call as SQL, without its alias."""
    arguments = ", ".join(str(argument) for argument in call.arguments)
    arguments = arguments or ("*" if call.function is AggregateFunction.COUNT else "")
    distinct = "DISTINCT " if call.distinct else ""
    order = f" ORDER BY {call.order_by}{' DESC' if call.descending else ''}" if call.order_by else ""
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
    if node.grouping_sets:
        sets = (", ".join(node.keys[position].name for position in one) for one in node.grouping_sets)
        parts.append(f"SETS {', '.join(f'({one})' for one in sets)}")
    return " ".join([*parts, f"[{', '.join(call_texts(node))}]"])


def call_texts(node: Aggregate) -> Iterator[str]:
    """Yields the calls with their aliases. Runs of calls that differ only in numbers are shortened: the first, a count,
    and the last.
    """
    calls = [f"{call_text(call)} AS {call.output.name}" for call in node.calls]
    for _, alike in groupby(calls, key=lambda call: _NUMBER.sub("", call)):
        run = list(alike)
        yield from run if len(run) <= _SHOWN_ALIKE else (run[0], f"… {len(run) - 2} more …", run[-1])


def _without_the_middle(text: str) -> str:
    """Returns `text` with long lists of numbered columns shortened, like the calls that create them."""
    return _NUMBERED.sub(r"\1, …, \2", text)


def _duration(milliseconds: int) -> str:
    return format_duration(timedelta(milliseconds=milliseconds))


def _exchange(node: Exchange) -> str:
    how = "BY " + ", ".join(str(key) for key in node.keys) if node.keys else "ROUND ROBIN"
    return how if node.partitions is None else f"{how} INTO {node.partitions}"


def _join(node: Join) -> str:
    equals = "<=>" if node.null_safe else "="
    residual = () if node.residual is None else (str(node.residual),)
    terms = (*(f"{left} {equals} {right}" for left, right in node.keys), *residual)
    on = f" ON {' AND '.join(terms)}" if terms else ""
    strategy = node.strategy
    choices = [one.value for one in (strategy.ship, strategy.local, strategy.skew) if one.value != "AUTO"]
    return " ".join([node.kind.value.upper(), *choices]) + on + ("" if node.within is None else _within(node.within))


def _within(within: Within) -> str:
    time = "" if within.event_time is None else f" EVENT TIME {within.event_time}"
    least, most = seconds(within.at_least_us), seconds(within.at_most_us)
    return f" WITHIN {within.left} - {within.right} FROM {least} TO {most}{time}"


def seconds(microseconds: int) -> str:
    """Returns microseconds as seconds, exactly: `-90s`, `0.5s`.

    >>> seconds(-90_000_000), seconds(500_000), seconds(315_360_000_000_001)
    ('-90s', '0.5s', '315360000.000001s')
    """
    whole, rest = divmod(abs(microseconds), 1_000_000)
    fraction = f".{rest:06}".rstrip("0") if rest else ""
    return f"{'-' if microseconds < 0 else ''}{whole}{fraction}s"


def _named(items: tuple[Named, ...]) -> str:
    return ", ".join(
        str(item.expression)
        if item.expression.column == item.name
        else f"{_without_the_middle(str(item.expression))} AS {item.name}"
        for item in items
    )


def _limit(node: Limit) -> str:
    count = [] if node.count is None else [str(node.count)]
    return " ".join([*count, *([f"OFFSET {node.offset}"] if node.offset else [])])


def _sort_item(item: SortItem) -> str:
    return f"{item.expression} {item.direction.value.upper()} NULLS {item.nulls.value.upper()}"
