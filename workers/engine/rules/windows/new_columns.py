"""Columns that a rewrite of windows adds, with names that no other column has."""

from __future__ import annotations

from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import DataType, Field, known
from workers.engine.plan.expressions import fresh_name
from workers.engine.plan.nodes import UNKNOWN, Named, Node, Project, output_of
from workers.engine.rules.joins.skew_rewrite import unchanged_columns


class NewNames:
    """Names that no column has: neither those of `taken` nor those given out before."""

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = taken

    def new(self, stem: str, type_: DataType) -> Scalar:
        """Returns a column with a new name."""
        number = 0
        while f"${stem}{number}" in self._taken:
            number += 1
        name = fresh_name(f"${stem}{number}", self._taken)
        self._taken |= {name}
        return column(name, known(type_))


def named(scalar: Scalar, name: Scalar) -> Named:
    """Returns `scalar` as an item with the name of the column `name`."""
    return Named(scalar, name.columns[0])


def field_of(name: Scalar) -> Field:
    """Returns the field of the column `name`."""
    return Field(name.columns[0], name.type or UNKNOWN)


def with_item(rows: Node, item: Named) -> Project:
    """Returns `rows` followed by `item`."""
    return Project(rows, (*unchanged_columns(output_of(rows)), item))
