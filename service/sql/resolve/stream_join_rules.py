"""The rules for joins of two streams: submission checks jobs with them, and the planner of streams plans by them.

A join of two streams runs in one of two ways:

- *In one state*, below an aggregate by its key: both sides are aggregated separately and combined group by group, so no
  joined rows are kept. Every aggregate must be computable from aggregates of each side (`one_state_refusal`).
- *As joined rows*: Spark keeps the rows of both sides until the watermarks have passed them. So ON must bound the time
  between the rows of a pair (`joined_rows_refusals`).

`STREAM_JOINS` has the kinds of joins that are supported, `REASONS` the reason for each refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.analysis import (
    Columns,
    GroupCall,
    cannot_fail,
    never_true_of_nulls,
    null_of_nulls,
    scalar_from,
    tree_of,
    type_in,
)
from service.sql.expressions.nodes import Arithmetic, Column, Connective, Expression, columns_of
from service.sql.expressions.scalar import Scalar
from service.sql.joins import CONDITION_MOVES, NULL_EXTENDED, ONE_SIDED, RESIDUAL_MOVES, Side
from service.sql.types.aggregates import product_has_parts, refusal_of_parts
from service.sql.types.data_types import DataType

_BOTH = frozenset(Side)
_LEFT, _RIGHT = frozenset({Side.LEFT}), frozenset({Side.RIGHT})


@dataclass(frozen=True)
class StreamJoin:
    """A supported kind of join. A group exists once all sides in `needs` have rows of its key. The key is that of the
    sides in `keys`; on the other sides it may be NULL or missing. `is_updatable`: groups of joined rows may be emitted
    as they change.
    """

    needs: frozenset[Side]
    keys: frozenset[Side]
    is_updatable: bool = False


STREAM_JOINS = {
    JoinKind.INNER: StreamJoin(_BOTH, _BOTH, is_updatable=True),
    JoinKind.LEFT: StreamJoin(_LEFT, _LEFT),
    JoinKind.RIGHT: StreamJoin(_RIGHT, _RIGHT),
    JoinKind.LEFT_SEMI: StreamJoin(_BOTH, _LEFT),
}

_KINDS_REFUSED = {
    JoinKind.FULL: "full_outer_stream_join",
    JoinKind.LEFT_ANTI: "stream_anti_join",
    JoinKind.CROSS: "stream_join_no_equality",
}

REASONS = {
    "full_outer_stream_join": "the rows of a FULL JOIN change as matches arrive",
    "stream_anti_join": "an anti join would have to retract rows when a match arrives",
    "stream_join_no_equality": "the join has no equality between its sides",
    "join_residual_two_sided": "{} uses columns of both streams, or of the side that may have no match",
    "join_key_types": "the types of {} are not known to be equal",
    "join_group_not_key": "{}",
    "stream_join_needs_rows": "{}",
    "stream_join_not_last": "the join is below another join, UNION or DISTINCT",
    "too_many_streams_joined": "more than two streams are joined",
    "stream_join_not_bounded": "the rows of both streams would be kept for ever, since ON does not bound the time "
    "between them",
    "stream_join_not_first": "a stream is grouped or made DISTINCT before the join",
    "outer_stream_join_updated": "the join emits unmatched rows when the watermark has passed, which needs the output "
    "'append'",
}
"""The reason for each refusal, by the code of its issue; {} is its subject."""


@dataclass(frozen=True)
class Refusal:
    """Why a join is not supported: the code of an issue, the part of the query that does not conform, and the index of
    that group key or call.
    """

    code: str
    subject: str = ""
    index: int | None = None

    def __str__(self) -> str:
        return REASONS[self.code].format(self.subject)


class AggregateCall(GroupCall, Protocol):
    """An aggregate call of a query or of a plan, with its modifiers."""

    @property
    def distinct(self) -> bool:
        """Whether it is written with DISTINCT."""

    @property
    def filter(self) -> Scalar | None:
        """The condition of FILTER."""

    @property
    def order_by(self) -> Scalar | None:
        """The order of its values."""


@dataclass(frozen=True)
class JoinedRows:
    """The rows of a join of two streams that an aggregate groups, after filters and projections.

    `keys` are the equalities of the join, `right` the columns of its right side. `columns` maps the columns that the
    aggregate uses to expressions over the join's columns. `conditions` are the terms of filters above the join,
    `residual` the other terms of ON; None is a term that cannot be expressed by the join's columns.
    """

    kind: JoinKind
    keys: tuple[tuple[Scalar, Scalar], ...]
    right: frozenset[str]
    columns: Columns
    conditions: Sequence[Expression | None]
    residual: Sequence[Expression | None]

    def side_of(self, *trees: Expression) -> Side | None:
        """Returns the side whose columns the trees use; None if they use both sides or none."""
        names = {name for tree in trees for name in columns_of(tree)}
        if names and names <= self.right:
            return Side.RIGHT
        return Side.LEFT if names and not names & self.right else None

    def null_extended(self, side: Side) -> bool:
        """Whether the join emits rows in which the side's columns are all NULL."""
        return side in NULL_EXTENDED.get(self.kind, frozenset())


def is_distinct(call: AggregateCall) -> bool:
    """Whether DISTINCT changes the result of the call."""
    return call.distinct and call.function not in {AggregateFunction.MIN, AggregateFunction.MAX}


def call_text(call: AggregateCall) -> str:
    """Returns a call as SQL."""
    arguments = ", ".join(map(str, call.arguments)) or "*"
    condition = "" if call.filter is None else f" FILTER (WHERE {call.filter})"
    return f"{call.function}({'DISTINCT ' if call.distinct else ''}{arguments}){condition}"


def is_known(type_: DataType | None) -> bool:
    """Whether a state can have a column of the type."""
    return type_ is not None and type_.is_groupable


def kind_refusal(kind: JoinKind, *, has_keys: bool) -> Refusal | None:
    """Returns why no join of this kind is supported, whatever the query selects; None if some are."""
    code = _KINDS_REFUSED.get(kind)
    if code is not None:
        return Refusal(code)
    return None if has_keys else Refusal("stream_join_no_equality")


def joined_rows_refusals(
    kind: JoinKind, *, is_bounded: bool, has_keys: bool, has_state: bool, updates: bool
) -> Iterator[Refusal]:
    """Yields why Spark cannot join the rows of two streams.

    `is_bounded`: ON bounds the time between joined rows. `has_state`: a side is grouped or made DISTINCT. `updates`:
    the rows are aggregated, and groups are emitted as they change.
    """
    if not is_bounded:
        yield kind_refusal(kind, has_keys=has_keys) or Refusal("stream_join_not_bounded")
        return
    if has_state:
        yield Refusal("stream_join_not_first")
    if updates and not STREAM_JOINS[kind].is_updatable:
        yield Refusal("outer_stream_join_updated")


def one_state_refusals(
    rows: JoinedRows, groups: Sequence[Scalar], calls: Sequence[AggregateCall], *, has_grouping_sets: bool = False
) -> Iterator[Refusal]:
    """Yields why an aggregate of `rows` by `groups` cannot be computed in one state, without joined rows."""
    refusal = _join_refusal(rows) or _group_refusal(rows, groups, has_grouping_sets=has_grouping_sets)
    if refusal is not None:
        yield refusal
        return
    for index, call in enumerate(calls):
        why = _call_refusal(call, rows)
        if why is not None:
            yield Refusal("stream_join_needs_rows", f"{call_text(call)} {why}", index)


def terms_of(tree: Expression | None) -> tuple[Expression | None, ...]:
    """Returns the terms of an AND; other trees are a term themselves."""
    return tree.terms if isinstance(tree, Connective) and tree.operator == "AND" else (tree,)


def _join_refusal(rows: JoinedRows) -> Refusal | None:
    of_kind = kind_refusal(rows.kind, has_keys=bool(rows.keys))
    if of_kind is not None:
        return of_kind
    for terms, moves in ((rows.conditions, CONDITION_MOVES), (rows.residual, RESIDUAL_MOVES)):
        for tree in terms:
            side = None if tree is None else rows.side_of(tree)
            if side is None or side not in moves.get(rows.kind, frozenset()):
                condition = None if tree is None else scalar_from(tree)
                return Refusal(
                    "join_residual_two_sided", "A condition" if condition is None else f"The condition {condition}"
                )
    for left, right in rows.keys:
        if left.type != right.type or not is_known(left.type):
            return Refusal("join_key_types", f"{left} = {right}")
    return None


def _group_refusal(rows: JoinedRows, groups: Sequence[Scalar], *, has_grouping_sets: bool) -> Refusal | None:
    if has_grouping_sets:
        return Refusal("join_group_not_key", "grouped by several grouping sets, instead of by the join key")
    sides = STREAM_JOINS[rows.kind].keys
    keys = [
        {scalar.column for side, scalar in zip(Side, pair, strict=True) if side in sides} - {None} for pair in rows.keys
    ]
    trees = [tree_of(group, rows.columns) for group in groups]
    names = [tree.name if isinstance(tree, Column) else None for tree in trees]
    for index, name in enumerate(names):
        if not any(name in key for key in keys):
            return Refusal("join_group_not_key", f"grouped by {groups[index]}, which is not the join key", index)
    if any(not key & set(names) for key in keys):
        return Refusal("join_group_not_key", "not grouped by the complete join key")
    return None


_COMPUTABLE_PER_SIDE = frozenset(
    {
        AggregateFunction.COUNT,
        AggregateFunction.SUM,
        AggregateFunction.AVG,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.FIRST_VALUE,
        AggregateFunction.LAST_VALUE,
    }
)
"""Functions over joined rows that can be computed from aggregates of one side."""


def _call_refusal(call: AggregateCall, rows: JoinedRows) -> str | None:
    """Returns why the call cannot be computed from each side separately, as the end of a sentence."""
    used = (*call.arguments, *(() if call.order_by is None else (call.order_by,)))
    trees = [tree_of(scalar, rows.columns) for scalar in used]
    condition = None if call.filter is None else tree_of(call.filter, rows.columns)
    read = [tree for tree in trees if tree is not None]
    if len(read) < len(trees) or (call.filter is not None and condition is None):
        return "cannot be traced back to the columns of the join"
    if not all(is_known(scalar.type) for scalar in used):
        return "has an argument whose type is not known before the query runs"
    if is_distinct(call):
        return _distinct_refusal(read, condition, rows)
    if call.function not in _COMPUTABLE_PER_SIDE:
        return "needs the joined rows"
    return _plain_refusal(call, read, condition, rows)


def _distinct_refusal(trees: list[Expression], condition: Expression | None, rows: JoinedRows) -> str | None:
    every = trees if condition is None else [*trees, condition]
    side = rows.side_of(*every)
    if side is None:
        return "uses columns of both sides"
    if rows.null_extended(side) and not any(map(null_of_nulls, trees)):
        return "may count rows without a match"
    return None if all(map(cannot_fail, every)) else "may fail on rows without a match"


def _plain_refusal(
    call: AggregateCall, trees: list[Expression], condition: Expression | None, rows: JoinedRows
) -> str | None:
    side = rows.side_of(*trees)
    if side is not None and not all(_is_computable(tree, side, rows) for tree in trees):
        return "may fail on rows without a match, or may not be NULL there"
    is_product = side is None and _is_product(call, trees, rows)
    if side is None and not is_product and any(map(columns_of, trees)):
        return "uses columns of both sides"
    if side is None and call.order_by is not None:
        return "needs the joined rows"
    if condition is not None and columns_of(condition):
        checked = rows.side_of(condition)
        if checked is None:
            return "has a FILTER over columns of both sides"
        holds_alone = not rows.null_extended(checked) or never_true_of_nulls(condition)
        if not holds_alone or not cannot_fail(condition) or not (side or is_product or all(map(cannot_fail, trees))):
            return "has a FILTER that may fail on rows without a match, or may be true there"
    if is_product or call.function not in {AggregateFunction.SUM, AggregateFunction.AVG}:
        return None
    weighed = any(one is not side for one in Side if one is Side.LEFT or rows.kind not in ONE_SIDED)
    is_average = call.function is AggregateFunction.AVG
    return refusal_of_parts(call.arguments[0].type, is_average=is_average, weighed=weighed)


def _is_computable(tree: Expression, side: Side, rows: JoinedRows) -> bool:
    return cannot_fail(tree) and (not rows.null_extended(side) or null_of_nulls(tree))


def _is_product(call: AggregateCall, trees: list[Expression], rows: JoinedRows) -> bool:
    """Whether the call is the SUM of a product of a value of one side and a value of the other."""
    if call.function is not AggregateFunction.SUM or call.distinct:
        return False
    tree = trees[0]
    if not isinstance(tree, Arithmetic) or tree.operator != "*":
        return False
    sides = (rows.side_of(tree.left), rows.side_of(tree.right))
    if None in sides or sides[0] is sides[1]:
        return False
    if not product_has_parts(call.arguments[0].type, type_in(tree.left), type_in(tree.right)):
        return False
    return all(
        side is not None and _is_computable(factor, side, rows)
        for side, factor in zip(sides, (tree.left, tree.right), strict=True)
    )
