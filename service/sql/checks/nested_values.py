"""Finds queries that compute with nested values, which workers of earlier versions refuse."""

from __future__ import annotations

from collections.abc import Iterator

from service.contract.query import AggregateFunction
from service.sql.expressions.aggregate_parameters import has_several_percentages
from service.sql.expressions.analysis import type_in
from service.sql.expressions.nodes import (
    Call,
    Cast,
    Column,
    Element,
    Expression,
    GetField,
    Lambda,
    Over,
    Test,
    Variable,
    children,
    walk,
)
from service.sql.resolve.bound import BoundQuery, queries_of
from service.sql.resolve.bound_trees import trees_of
from service.sql.types.aggregates import NEAREST, PERCENTILES
from service.sql.types.nested_functions import NESTED_GROUPS

_COMPARING = frozenset(
    {
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        *NEAREST,
        # What MIN_BY and MAX_BY of groups become.
        AggregateFunction.FIRST_VALUE,
        AggregateFunction.LAST_VALUE,
    }
)
_NAMES = frozenset(name for group in NESTED_GROUPS.values() for name in group)


def uses_nested_values(query: BoundQuery) -> bool:
    """Whether `query` uses parts of nested values, functions of them, or generators. Selecting whole columns, grouping
    by them and IS NULL are older.
    """
    return any(inner.generators or any(map(_computes, _roots(inner))) for inner in queries_of(query))


def uses_new_nested_values(query: BoundQuery) -> bool:
    """Whether workers of version 12 of the job format refuse what `query` does with nested values: extremes, joins by
    them, and arrays of percentages.
    """
    return any(map(_is_of_version_13, queries_of(query)))


def joins_by_nested_values(query: BoundQuery) -> bool:
    """Whether a join has a nested value as a key. Workers of version 13 refuse such an equality in WHERE."""
    keys = (key for inner in queries_of(query) for join in inner.joins for key, _ in join.keys)
    return any(key.type is not None and key.type.is_nested for key in keys)


def _is_of_version_13(query: BoundQuery) -> bool:
    return (
        any(_calls_new(call.function, [argument.tree for argument in call.arguments]) for call in query.calls)
        or any(_is_new_window(window.expression.tree) for window in query.windows)
        or any(join.residual is not None and _computes(join.residual.tree) for join in query.joins)
    )


def _is_new_window(tree: Expression) -> bool:
    return isinstance(tree, Over) and (
        tree.function == AggregateFunction.MODE or _calls_new(tree.function, list(tree.arguments))
    )


def _calls_new(function: str, arguments: list[Expression]) -> bool:
    if function in PERCENTILES:
        return has_several_percentages(arguments[1])
    type_ = type_in(arguments[0]) if arguments and function in _COMPARING else None
    return type_ is not None and type_.is_nested


def _roots(query: BoundQuery) -> Iterator[Expression]:
    yield from trees_of(query)
    yield from (window.expression.tree for window in query.windows)


def _computes(tree: Expression) -> bool:
    return any(map(_is_new, walk(tree)))


def _is_new(node: Expression) -> bool:
    match node:
        case Test() | Column():
            return False
        case GetField() | Element() | Lambda() | Variable():
            return True
        case Call(name) if name in _NAMES:
            return True
        case Cast(type=type_) if type_.is_nested:
            return True
        case Call("isnull" | "isnotnull"):
            return False
    return any(isinstance(part, Column) and part.type is not None and part.type.is_nested for part in children(node))
