"""What a plan node emits."""

from __future__ import annotations

from typing import cast

from service.spec.query import JoinKind
from service.spec.types import INT, DataType, Field, TypeName, struct
from workers.engine.plan.nodes import Aggregate, Expand, Join, Named, Node, Project, Scan, Union, Windows

UNKNOWN = DataType(TypeName.OTHER)
"""The type of an expression that only Spark can type."""

_OUTPUT, _NAMES = "_output", "_names"

ONE_SIDED = frozenset({JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI})
"""Joins that emit their left columns alone."""


def output_of(node: Node) -> tuple[Field, ...]:
    """The columns that `node` emits, in order. An expression without a known type has type OTHER.

    They are computed once: a node is immutable and keeps them, outside of its fields.
    """
    kept = vars(node)
    if _OUTPUT not in kept:
        kept[_OUTPUT] = _output_of(node)
    return cast("tuple[Field, ...]", kept[_OUTPUT])


def _output_of(node: Node) -> tuple[Field, ...]:
    match node:
        case Scan():
            return tuple(field for field, _ in node.columns)
        case Project():
            return tuple(_field(item) for item in node.items)
        case Aggregate():
            return (*(_field(key) for key in node.keys), *(call.output for call in node.calls))
        case Join():
            left = output_of(node.left)
            return left if node.kind in ONE_SIDED else (*left, *output_of(node.right))
        case Expand():
            return (*output_of(node.input), Field(node.name, INT))
        case Windows():
            return (*output_of(node.input), Field(node.name, window_type(node.column.type or UNKNOWN)))
        case Union():
            return output_of(node.inputs[0])
        case _:
            return output_of(node.input)


def window_type(instant: DataType) -> DataType:
    """The type of a window over a column of the type `instant`."""
    return struct((Field("start", instant), Field("end", instant)))


def names_of(node: Node) -> frozenset[str]:
    """The names of the columns that `node` emits. They are computed once, as in `output_of`."""
    kept = vars(node)
    if _NAMES not in kept:
        kept[_NAMES] = frozenset(field.name for field in output_of(node))
    return cast("frozenset[str]", kept[_NAMES])


def _field(item: Named) -> Field:
    return Field(item.name, item.expression.type or UNKNOWN)
