"""A checked scalar expression, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from service.spec.rendering import render
from service.spec.tree import Column, Expression, columns_of
from service.spec.types import DataType


@dataclass(frozen=True, eq=False)
class Scalar:
    """An expression with every column resolved, and its type. Scalars are equal if their text and type are.

    A client's expression has passed the allow-list (`service.spec.expressions`); rules compose others of it. `type` is
    None where only Spark knows it. `longest` bounds the bytes of a value (see `service.spec.growth`), `size` is how
    many nodes the expression has, columns of derived tables written out.
    """

    tree: Expression
    type: DataType | None
    longest: int | None = field(default=None, repr=False)
    size: int = field(default=1, repr=False)

    @cached_property
    def sql(self) -> str:
        """Canonical Spark SQL; every column is back-quoted under its full output name (`` `o.amount` ``)."""
        return render(self.tree)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns in it, in order of first appearance."""
        return columns_of(self.tree)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Scalar) and self.sql == other.sql and self.type == other.type

    def __hash__(self) -> int:
        return hash(self.sql)

    def __str__(self) -> str:
        return self.sql.replace("`", "")

    @property
    def column(self) -> str | None:
        """The name of the column where the expression is nothing but one."""
        return self.tree.name if isinstance(self.tree, Column) else None


def column(name: str, type_: DataType | None) -> Scalar:
    """A reference to the output column `name`."""
    return Scalar(Column(name, type_), type_)
