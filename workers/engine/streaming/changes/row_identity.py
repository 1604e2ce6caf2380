"""The columns that identify the rows of a query's result: a row with other values in the remaining columns replaces the
one that has the same values in these.
"""

from __future__ import annotations

from dataclasses import replace

from service.sql.expressions.nodes import Column, Comparison, GetField, Number, Over
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import Field
from workers.engine.plan.expressions import fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    Filter,
    Limit,
    Named,
    Node,
    Project,
    Sort,
    WindowFunctions,
    names_of,
    output_of,
)


def with_keys(built: Project) -> tuple[Project, tuple[str, ...] | None]:
    """Returns the query with the columns that identify its rows, and their names; None if no columns are known to."""
    below = _identity(built.input)
    if below is None:
        return built, None
    shown = {item.expression.column: item.name for item in reversed(built.items)}
    taken = names_of(built)
    hidden, keys = [], []
    for place, columns in enumerate(below):
        name = next((shown[field.name] for field in columns if field.name in shown), None)
        if name is None:
            name = fresh_name(f"$key{place}", taken)
            hidden.append(Named(column(columns[0].name, columns[0].type), name))
        keys.append(name)
    return replace(built, items=(*built.items, *hidden)), tuple(keys)


_Identity = tuple[tuple[Field, ...], ...]
"""Columns that identify rows, each with others that have the same values in the same rows."""


def _identity(node: Node) -> _Identity | None:
    """Returns columns of which each row of `node` has other values; None if none are known."""
    match node:
        case WindowFunctions():
            return _identity(node.input) or _numbered(node)
        case Filter() if (single := _first_of_each(node)) is not None:
            return single
        case Filter() | Sort() | Limit():
            return _identity(node.input)
        case Aggregate() if not node.grouping_sets:
            return tuple((field,) for field in output_of(node)[: len(node.keys)])
        case Project():
            below = _identity(node.input)
            return None if below is None else _shown(node, below)
    return None


def _numbered(node: WindowFunctions) -> _Identity | None:
    """Returns the partition keys and the number of a ROW_NUMBER, if there is one."""
    fields = {field.name: field for field in output_of(node)}
    for call in node.calls:
        tree = call.expression.tree
        if isinstance(tree, Over) and tree.function.upper() == "ROW_NUMBER":
            keys = [key.name for key in tree.partition_by if isinstance(key, Column)]
            if len(keys) == len(tree.partition_by):
                return tuple((fields[name],) for name in (*keys, call.name))
    return None


def _first_of_each(node: Filter) -> _Identity | None:
    """Returns the partition keys of a ROW_NUMBER, if the filter keeps one row of each partition."""
    condition = node.condition.tree
    if not isinstance(node.input, WindowFunctions) or not isinstance(condition, Comparison):
        return None
    found = _numbered(node.input)
    is_one = isinstance(condition.right, Number) and condition.right.text == "1" and condition.operator in {"=", "<="}
    if found is None or not is_one or not isinstance(condition.left, Column):
        return None
    return found[:-1] if condition.left.name == found[-1][0].name else None


_BOUNDS = frozenset({"start", "end"})


def _shown(node: Project, below: _Identity) -> _Identity | None:
    """Returns the columns of `node` that are those of its input, or the start or end of a window of event time."""
    own = {field.name: field for field in output_of(node)}
    found = []
    for columns in below:
        same = tuple(own[item.name] for item in node.items if any(_is_same(item.expression, one) for one in columns))
        if not same:
            return None
        found.append(same)
    return tuple(found)


def _is_same(value: Scalar, field: Field) -> bool:
    """Whether `value` is the column `field`, or a bound of the window in it."""
    tree = value.tree
    is_bound = isinstance(tree, GetField) and tree.name in _BOUNDS and tree.operand == Column(field.name, field.type)
    return value.column == field.name or is_bound
