"""Finds queries that compute with nested values, which workers of earlier versions refuse."""

from __future__ import annotations

from collections.abc import Iterator

from service.sql.expressions.nodes import (
    Call,
    Cast,
    Column,
    Element,
    Expression,
    GetField,
    Lambda,
    Test,
    Variable,
    children,
    walk,
)
from service.sql.resolve.bound import BoundQuery, queries_of
from service.sql.resolve.bound_trees import trees_of
from service.sql.types.nested_functions import NESTED_GROUPS

_NAMES = frozenset(name for group in NESTED_GROUPS.values() for name in group)


def uses_nested_values(query: BoundQuery) -> bool:
    """Whether `query` uses parts of nested values, functions of them, or generators. Selecting whole columns, grouping
    by them and IS NULL are older.
    """
    return any(inner.generators or any(map(_computes, _roots(inner))) for inner in queries_of(query))


def _roots(query: BoundQuery) -> Iterator[Expression]:
    yield from trees_of(query)
    yield from (window.expression.tree for window in query.windows)


def _computes(tree: Expression) -> bool:
    return any(map(_is_new, walk(tree)))


def _is_new(node: Expression) -> bool:
    match node:
        case GetField() | Element() | Lambda() | Variable():
            return True
        case Call(name) if name in _NAMES:
            return True
        case Cast(type=type_) if type_.is_nested:
            return True
        case Test() | Column():
            return False
        case Call("isnull" | "isnotnull"):
            return False
    return any(isinstance(part, Column) and part.type is not None and part.type.is_nested for part in children(node))
