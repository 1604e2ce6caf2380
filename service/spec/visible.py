"""What `*` and `table.*` stand for, in the order that Spark gives: the columns of USING come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.spec.query import JoinKind
from service.spec.tree import Call, Expression, Name
from service.spec.types import Schema


@dataclass(frozen=True)
class VisibleColumn:
    """A column by its table (None for one that a full join made of two), its name and its expression."""

    alias: str | None
    name: str
    tree: Expression


@dataclass(frozen=True)
class Visible:
    """`output` is what `*` stands for; `hidden` are the other sides of USING, which `table.*` alone shows, first."""

    output: tuple[VisibleColumn, ...]
    hidden: tuple[VisibleColumn, ...] = ()

    @classmethod
    def of_table(cls, alias: str, schema: Schema) -> Visible:
        """The columns of one table in its own order."""
        return cls(tuple(VisibleColumn(alias, name, Name(alias, name)) for name in schema.names))

    def of(self, alias: str) -> tuple[VisibleColumn, ...]:
        """What `alias.*` stands for."""
        return tuple(column for column in (*self.hidden, *self.output) if column.alias == alias)

    def joined(self, right: Visible, kind: JoinKind, using: Sequence[tuple[Expression, Expression]]) -> Visible:
        """These columns joined with those of a further table; `using` are both sides of each column of USING."""
        one_sided = kind in {JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}
        left_keys = [_column(self, left) for left, _ in using]
        right_keys = [_column(right, other) for _, other in using]
        merged, hidden = left_keys, right_keys
        if kind is JoinKind.RIGHT:
            merged, hidden = right_keys, left_keys
        elif kind is JoinKind.FULL:
            merged, hidden = (
                [_merged(*pair) for pair in zip(left_keys, right_keys, strict=True)],
                left_keys + right_keys,
            )
        rest = [column for column in self.output if column not in left_keys]
        if one_sided:
            return Visible((*merged, *rest), self.hidden)
        rest += [column for column in right.output if column not in right_keys]
        return Visible((*merged, *rest), (*hidden, *self.hidden))


def _column(side: Visible, tree: Expression) -> VisibleColumn:
    return next(column for column in side.output if column.tree == tree)


def _merged(left: VisibleColumn, right: VisibleColumn) -> VisibleColumn:
    return VisibleColumn(None, left.name, Call("coalesce", (left.tree, right.tree)))
