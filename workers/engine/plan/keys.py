"""From which columns of scans, or of the input, a node's columns come."""

from __future__ import annotations

from collections.abc import Iterable

from service.spec.scalar import Scalar
from workers.engine.plan.nodes import Aggregate, Expand, Join, Named, Node, Project, Scan, Union, Windows
from workers.engine.plan.schema import names_of


def scanned_columns(node: Node, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The scans' columns whose values `node` emits as `columns`; None where one is computed, or comes from a union of
    different rows.
    """
    if columns is None:
        return None
    found = [_scanned(node, name) for name in columns]
    known = [name for name in found if name is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else None


def columns_below(items: Iterable[Named], columns: tuple[str, ...]) -> tuple[str, ...] | None:
    """What a projection to `items`, or a grouping by them, emits as `columns`, by its name below; None where one is an
    expression.
    """
    expressions = {item.name: item.expression for item in items}
    return columns_of(expressions[name] for name in columns) if expressions.keys() >= set(columns) else None


def _scanned(node: Node, name: str) -> str | None:
    match node:
        case Scan():
            return name
        case Union() | Project() if node.stands_for is not None:
            return _scanned(node.stands_for, name)
        case Union():
            return None
        case Join():
            return _scanned(node.left if name in names_of(node.left) else node.right, name)
        case Project() | Aggregate():
            items = node.items if isinstance(node, Project) else node.keys
            below = columns_below(items, (name,))
            return _scanned(node.input, below[0]) if below else None
        case Expand() | Windows() if name == node.name:
            return None
        case _:
            return _scanned(node.input, name)


def columns_of(scalars: Iterable[Scalar]) -> tuple[str, ...] | None:
    """The names of `scalars` that are columns, each once, in order; None where one is an expression."""
    names = [scalar.column for scalar in scalars]
    known = [name for name in names if name is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(names) else None
