"""The columns of `*` and `table.*`, in Spark's order: the columns of USING come first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.contract.query import JoinKind
from service.sql.expressions.nodes import Call, Expression, Name
from service.sql.joins import ONE_SIDED
from service.sql.types.data_types import Schema


@dataclass(frozen=True)
class VisibleColumn:
    """A column: its table (None for the column of USING of a full join), its name and its expression."""

    alias: str | None
    name: str
    tree: Expression


@dataclass(frozen=True)
class Visible:
    """`output` are the columns of `*`; `hidden` are the other sides of USING, which only `table.*` includes, first."""

    output: tuple[VisibleColumn, ...]
    hidden: tuple[VisibleColumn, ...] = ()

    @classmethod
    def of_table(cls, alias: str, schema: Schema) -> Visible:
        """Returns the columns of one table in its own order."""
        return cls(tuple(VisibleColumn(alias, name, Name(alias, name)) for name in schema.names))

    def of(self, alias: str) -> tuple[VisibleColumn, ...]:
        """Returns the columns of `alias.*`."""
        return tuple(column for column in (*self.hidden, *self.output) if column.alias == alias)

    def joined(self, right: Visible, kind: JoinKind, using: Sequence[tuple[Expression, Expression]]) -> Visible:
        """Returns these columns joined with those of another table; `using` has both sides of each column of USING."""
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
        rest = _without(self.output, left_keys)
        if kind in ONE_SIDED:
            return Visible((*merged, *rest), self.hidden)
        return Visible((*merged, *rest, *_without(right.output, right_keys)), (*hidden, *self.hidden))


def _without(output: tuple[VisibleColumn, ...], keys: Sequence[VisibleColumn]) -> Sequence[VisibleColumn]:
    if not keys:
        return output
    left_out = {id(key) for key in keys}
    return [column for column in output if id(column) not in left_out]


def _column(side: Visible, tree: Expression) -> VisibleColumn:
    return next(column for column in side.output if column.tree == tree)


def _merged(left: VisibleColumn, right: VisibleColumn) -> VisibleColumn:
    return VisibleColumn(None, left.name, coalesced(left.tree, right.tree))


def coalesced(left: Expression, right: Expression, at: int | None = None) -> Call:
    """Returns the column of USING of a full join. A chain of full joins becomes a single call, so its depth is one."""
    known = left.arguments if isinstance(left, Call) and left.name == "coalesce" else (left,)
    return Call("coalesce", (*known, right), at)
