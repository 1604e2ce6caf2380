"""Two streams that are joined and aggregated by the join's key: which such queries can be kept in one state.

Rows of both are aggregated by the key side by side, and put together group by group: no row of either is kept for the
other. So whatever the query asks of the joined rows must follow from what each side counts, sums and compares by
itself (the planner's part of it is `workers/engine/plan/stream_join.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.spec.bound import BoundCall, BoundDerived, BoundJoin, BoundQuery, BoundUnion, sources_of
from service.spec.errors import Issue
from service.spec.evaluation import cannot_fail, never_true_of_nulls, null_of_nulls
from service.spec.join_pairs import ONE_SIDED
from service.spec.join_sides import CONDITION_MOVES, NULL_EXTENDED, RESIDUAL_MOVES, Side
from service.spec.query import AggregateFunction, JoinKind
from service.spec.scalar_trees import Columns, columns_by_name, scalar_from, tree_of, type_in
from service.spec.sum_parts import product_has_parts, refusal_of_parts
from service.spec.tree import Arithmetic, Column, Connective, Expression, columns_of
from service.spec.types import DataType, TypeName

_PARTED = frozenset(
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
"""Calls over joined rows that follow from calls over a side."""

_WAY_OUT = "Give one of the two tables the role 'static', or"


@dataclass(frozen=True)
class JoinedRows:
    """The rows that a query groups, which come out of a join with nothing but filters and expressions between: the last
    join of `query`, whose pointer is `at`. `columns` are what the grouping query's names stand for, over the join's
    columns; `conditions` stand above the join, None for one that cannot be read.
    """

    query: BoundQuery
    at: str
    columns: Columns
    conditions: tuple[Expression | None, ...]

    @property
    def join(self) -> BoundJoin:
        """The join."""
        return self.query.joins[-1]

    @property
    def pointer(self) -> str:
        """Where the join stands."""
        return f"{self.at}/joins/{self.join.index}"

    def side_of(self, *trees: Expression) -> Side | None:
        """The side whose columns the trees are over; None for both sides' and for none's."""
        names = {name for tree in trees for name in columns_of(tree)}
        right = {field.name for field, _ in self.join.right.columns}
        if names and names <= right:
            return Side.RIGHT
        return Side.LEFT if names and not names & right else None

    def null_extended(self, side: Side) -> bool:
        """Whether the join makes rows in which the side's columns are all NULL."""
        return side in NULL_EXTENDED.get(self.join.kind, frozenset())


def joined_rows(query: BoundQuery, at: str) -> JoinedRows | None:
    """What `query`, whose pointer is `at`, groups, where that comes out of a join."""
    around: list[tuple[BoundDerived, BoundQuery]] = []
    inner = query
    while not inner.joins:
        source = inner.source
        if not isinstance(source, BoundDerived) or isinstance(source.query, BoundUnion):
            return None
        around.append((source, inner))
        inner, at = source.query, f"{at}/source/query"
        if inner.is_aggregate or is_ordered(inner):
            return None
    columns: Columns = columns_by_name(tuple(field for source in sources_of(inner) for field, _ in source.columns))
    conditions = list(_condition(inner, columns))
    joined = inner
    for source, outer in reversed(around):
        made = {item.name: tree_of(item.expression, columns) for item in inner.select}
        seen = ((field.name, made[name]) for field, name in source.columns)
        columns = {name: tree for name, tree in seen if tree is not None}
        conditions += _condition(outer, columns)
        inner = outer
    return JoinedRows(joined, at, columns, tuple(conditions))


def is_ordered(query: BoundQuery) -> bool:
    """Whether the query has an ORDER BY that orders, or a LIMIT."""
    return query.limit is not None or any(key.expression.columns for key in query.order_by)


def call_text(call: BoundCall) -> str:
    """A call as SQL."""
    arguments = ", ".join(map(str, call.arguments)) or "*"
    condition = "" if call.filter is None else f" FILTER (WHERE {call.filter})"
    return f"{call.function.value}({'DISTINCT ' if call.distinct else ''}{arguments}){condition}"


def is_distinct(call: BoundCall) -> bool:
    """Whether DISTINCT matters to the call."""
    return call.distinct and call.function not in {AggregateFunction.MIN, AggregateFunction.MAX}


def is_known(type_: DataType | None) -> bool:
    """Whether a state can have a column of the type, NULLs of it included."""
    return type_ is not None and (type_.name is not TypeName.OTHER or bool(type_.parts))


def issues_of_joined_streams(query: BoundQuery, at: str, rows: JoinedRows) -> Iterator[Issue]:
    """Why `query`, which groups the rows of two streams that are joined, cannot be kept in one state."""
    join = _join_issue(rows) or _group_issue(query, at, rows)
    if join is not None:
        yield join
        return
    for index, call in enumerate(query.calls):
        why = _call_refusal(call, rows)
        if why is not None:
            detail = (
                f"Two streams are joined, and {call_text(call)} {why}: each of them is aggregated by itself. "
                f"{_WAY_OUT} ask for what follows from one side, or from counts and sums of both."
            )
            yield Issue(code="stream_join_needs_rows", detail=detail, pointer=f"{at}/aggregates/{index}")


def _condition(query: BoundQuery, columns: Columns) -> Iterator[Expression | None]:
    if query.where is not None:
        yield from _terms(tree_of(query.where, columns))


def _terms(tree: Expression | None) -> tuple[Expression | None, ...]:
    return tree.terms if isinstance(tree, Connective) and tree.operator == "AND" else (tree,)


def issue_of_kind(join: BoundJoin, pointer: str) -> Issue | None:
    """Why no rows of two streams can be joined so, whatever is asked of them."""
    alias = join.right.alias
    if join.kind is JoinKind.FULL:
        return Issue(
            code="full_outer_stream_join",
            detail=f"A FULL JOIN of two streams, as with {alias}, has rows and groups that change as partners come. "
            "Use INNER, LEFT or RIGHT.",
            pointer=pointer,
        )
    if join.kind is JoinKind.LEFT_ANTI:
        return Issue(
            code="stream_anti_join",
            detail=f"An anti join of two streams, as with {alias}, would take rows back when a partner comes. Give the "
            f"table of {alias} the role 'static', or use a LEFT JOIN, count a column of {alias}, and look for 0 when "
            "reading.",
            pointer=pointer,
        )
    if not join.keys:
        return Issue(
            code="stream_join_no_equality",
            detail=f"Two streams are joined without an equality, as with {alias}. {_WAY_OUT} join them by a key.",
            pointer=pointer,
        )
    return None


def _join_issue(rows: JoinedRows) -> Issue | None:
    join = rows.join
    of_kind = issue_of_kind(join, rows.pointer)
    if of_kind is not None:
        return of_kind
    left_over = next(_left_over(rows), None)
    if left_over is not None:
        return Issue(
            code="join_residual_two_sided",
            detail=f"{left_over} of the join of two streams with {rows.join.right.alias} is over both of them, or over "
            f"the one whose rows may be missing: it cannot be checked before they meet. {_WAY_OUT} leave it out.",
            pointer=rows.pointer,
        )
    odd = next((key for key in join.keys if key[0].type != key[1].type or not is_known(key[0].type)), None)
    if odd is not None:
        return Issue(
            code="join_key_types",
            detail=f"Two streams are joined by {odd[0]} = {odd[1]}, whose types are not known to be the same: "
            "cast both to one type.",
            pointer=rows.pointer,
        )
    return None


def _left_over(rows: JoinedRows) -> Iterator[str]:
    """The conditions that no side can check by itself."""
    fields = tuple(field for source in sources_of(rows.query) for field, _ in source.columns)
    residual = rows.join.residual
    within = () if residual is None else _terms(tree_of(residual, columns_by_name(fields)))
    for terms, moves in ((rows.conditions, CONDITION_MOVES), (within, RESIDUAL_MOVES)):
        for tree in terms:
            side = None if tree is None else rows.side_of(tree)
            if side is None or side not in moves.get(rows.join.kind, frozenset()):
                told = None if tree is None else scalar_from(tree)
                yield "A condition" if told is None else f"The condition {told}"


def _group_issue(query: BoundQuery, at: str, rows: JoinedRows) -> Issue | None:
    names = _columns_of_keys(rows)
    trees = [tree_of(key.expression, rows.columns) for key in query.keys]
    groups = [tree.name if isinstance(tree, Column) else None for tree in trees]
    way_out = f"Group by the join key, the whole of it. {_WAY_OUT} join them and aggregate in another job."
    if query.grouping_sets:
        detail = (
            f"Two streams are joined and grouped by several grouping sets, of which not all are the join key. {way_out}"
        )
        return Issue(code="join_group_not_key", detail=detail, pointer=f"{at}/group_by")
    for index, group in enumerate(groups):
        if not any(group in one_of for one_of in names):
            told = query.keys[index].expression
            detail = f"Two streams are joined and grouped by {told}, which is not the join key. {way_out}"
            return Issue(code="join_group_not_key", detail=detail, pointer=f"{at}/group_by/{index}")
    if any(not one_of & set(groups) for one_of in names):
        equalities = " AND ".join(f"{left} = {right}" for left, right in rows.join.keys)
        detail = f"Two streams are joined by {equalities}, and not grouped by the whole of it. {way_out}"
        return Issue(code="join_group_not_key", detail=detail, pointer=at)
    return None


def _columns_of_keys(rows: JoinedRows) -> list[set[str | None]]:
    """By equality, the columns that are the group's key: of a side whose rows may be missing, none."""
    kind = rows.join.kind
    sides = {
        JoinKind.LEFT: (True, False),
        JoinKind.LEFT_SEMI: (True, False),
        JoinKind.RIGHT: (False, True),
    }.get(kind, (True, True))
    return [
        {scalar.column for scalar, taken in zip(key, sides, strict=True) if taken} - {None} for key in rows.join.keys
    ]


def _call_refusal(call: BoundCall, rows: JoinedRows) -> str | None:
    """Why the call does not follow from what each side has, as the end of a sentence."""
    used = (*call.arguments, *(() if call.order_by is None else (call.order_by,)))
    trees = [tree_of(scalar, rows.columns) for scalar in used]
    condition = None if call.filter is None else tree_of(call.filter, rows.columns)
    read = [tree for tree in trees if tree is not None]
    if len(read) < len(trees) or (call.filter is not None and condition is None):
        return "cannot be read as one over the rows of the join"
    if not all(is_known(scalar.type) for scalar in used):
        return "is over a type that Spark alone knows"
    if is_distinct(call):
        return _distinct_refusal(read, condition, rows)
    if call.function not in _PARTED:
        return "needs the joined rows"
    return _plain_refusal(call, read, condition, rows)


def _distinct_refusal(trees: list[Expression], condition: Expression | None, rows: JoinedRows) -> str | None:
    every = trees if condition is None else [*trees, condition]
    side = rows.side_of(*every)
    if side is None:
        return "is over both"
    if rows.null_extended(side) and not any(map(null_of_nulls, trees)):
        return "may count rows that found no partner"
    return None if all(map(cannot_fail, every)) else "may fail on rows that find no partner"


def _plain_refusal(
    call: BoundCall, trees: list[Expression], condition: Expression | None, rows: JoinedRows
) -> str | None:
    side = rows.side_of(*trees)
    if side is not None and not all(_computable(tree, side, rows) for tree in trees):
        return "may fail on rows that find no partner, or be something there"
    is_product = side is None and _is_product(call, trees, rows)
    if side is None and not is_product and any(map(columns_of, trees)):
        return "is over both"
    if side is None and call.order_by is not None:
        return "needs the joined rows"
    if condition is not None and columns_of(condition):
        checked = rows.side_of(condition)
        if checked is None:
            return "has a FILTER over both"
        holds_alone = not rows.null_extended(checked) or never_true_of_nulls(condition)
        if not holds_alone or not cannot_fail(condition) or not (side or is_product or all(map(cannot_fail, trees))):
            return "has a FILTER that may fail on rows that find no partner, or hold there"
    if is_product or call.function not in {AggregateFunction.SUM, AggregateFunction.AVG}:
        return None
    weighed = any(one is not side for one in Side if one is Side.LEFT or rows.join.kind not in ONE_SIDED)
    is_average = call.function is AggregateFunction.AVG
    return refusal_of_parts(call.arguments[0].type, is_average=is_average, weighed=weighed)


def _computable(tree: Expression, side: Side, rows: JoinedRows) -> bool:
    return cannot_fail(tree) and (not rows.null_extended(side) or null_of_nulls(tree))


def _is_product(call: BoundCall, trees: list[Expression], rows: JoinedRows) -> bool:
    """Whether it is the SUM of a product of one side's value and the other's."""
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
        side is not None and _computable(factor, side, rows)
        for side, factor in zip(sides, (tree.left, tree.right), strict=True)
    )
