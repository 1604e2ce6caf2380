"""A checked scalar expression, as a value."""

from __future__ import annotations

from dataclasses import dataclass, field

from service.spec.types import DataType


@dataclass(frozen=True)
class Scalar:
    """An expression that passed the allow-list, with every column resolved.

    `sql` is canonical Spark SQL, rendered by `service.spec.expressions` and never a caller's text; every column stands
    in it back-quoted under its full output name (`` `o.amount` ``). `columns` are those names, in order of appearance.
    `type` is None where only Spark knows it. `longest` bounds the bytes of a value (see `service.spec.growth`), `size`
    is how many nodes it has, columns of derived tables written out.
    """

    sql: str
    columns: tuple[str, ...]
    type: DataType | None
    longest: int | None = field(default=None, compare=False, repr=False)
    size: int = field(default=1, compare=False, repr=False)

    def __str__(self) -> str:
        return self.sql.replace("`", "")

    @property
    def column(self) -> str | None:
        """The name of the column where the expression is nothing but one."""
        only = len(self.columns) == 1 and self.sql == quoted(self.columns[0])
        return self.columns[0] if only else None


def quoted(name: str) -> str:
    """`name` as a Spark identifier."""
    return "`" + name.replace("`", "``") + "`"


def column(name: str, type_: DataType | None) -> Scalar:
    """A reference to the output column `name`."""
    return Scalar(quoted(name), (name,), type_)
