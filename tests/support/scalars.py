"""Scalars for tests of plans, written as SQL."""

from __future__ import annotations

from service.sql.expressions.nodes import Column, Expression, Name, map_children
from service.sql.expressions.reader import read_template
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import DataType


def scalar(sql: str, type_: DataType | None, columns: tuple[str, ...] | None = None) -> Scalar:
    """The expression `sql`; the columns in it are back-quoted under their full names, and `columns`, where given, are
    those that it must have.
    """
    made = Scalar(_resolved(read_template(sql)), type_)
    assert columns is None or set(made.columns) == set(columns), made.columns
    return made


def _resolved(node: Expression) -> Expression:
    return Column(node.name, None) if isinstance(node, Name) else map_children(node, _resolved)
