"""Scalars for tests of plans, written as SQL."""

from __future__ import annotations

from service.sql.expressions.nodes import Column, Expression, Name, map_children
from service.sql.expressions.reader import read_template
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import DataType


def scalar(sql: str, type_: DataType | None) -> Scalar:
    """Parses `sql`, in which columns have their full names in back quotes."""
    return Scalar(_resolved(read_template(sql)), type_)


def _resolved(node: Expression) -> Expression:
    return Column(node.name, None) if isinstance(node, Name) else map_children(node, _resolved)
