"""Decides which joins of two streams are supported, and creates the issues for the others.

A join that is aggregated by its key needs no state of rows: both sides are aggregated separately and combined group by
group (`workers/engine/streaming/stream_joins.py`). So every aggregate must be computable from aggregates of each side.

Any other join keeps the rows of both sides until the watermarks have passed them. So both streams need an event time,
and ON must bound the time between the rows of a pair (`service/sql/resolve/event_time.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.contract.problems import Issue
from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.analysis import (
    Columns,
    cannot_fail,
    columns_by_name,
    never_true_of_nulls,
    null_of_nulls,
    scalar_from,
    tree_of,
    type_in,
)
from service.sql.expressions.nodes import Arithmetic, Column, Connective, Expression, columns_of
from service.sql.resolve.bound import (
    BoundCall,
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundSource,
    BoundUnion,
    sources_of,
)
from service.sql.resolve.event_time import EventTimes, example_of_bounds, has_state, tables_without_event_time
from service.sql.statements.join_hints import CONDITION_MOVES, NULL_EXTENDED, ONE_SIDED, RESIDUAL_MOVES, Side
from service.sql.types.aggregates import product_has_parts, refusal_of_parts
from service.sql.types.data_types import DataType, TypeName

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

_WAY_OUT = "Give one of the two tables the role 'static', or"


@dataclass(frozen=True)
class JoinedRows:
    """The rows that a query groups, if they are those of the last join of `query` after filters and projections.

    `at` is the pointer of `query`. `columns` maps the names of the grouping query to expressions over the join's
    columns; `conditions` are the filters above the join, None for one that cannot be read.
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
        """The pointer of the join."""
        return f"{self.at}/joins/{self.join.index}"

    def side_of(self, *trees: Expression) -> Side | None:
        """Returns the side whose columns the trees read; None if they read both sides or none."""
        names = {name for tree in trees for name in columns_of(tree)}
        right = {field.name for field, _ in self.join.right.columns}
        if names and names <= right:
            return Side.RIGHT
        return Side.LEFT if names and not names & right else None

    def null_extended(self, side: Side) -> bool:
        """Whether the join emits rows in which the side's columns are all NULL."""
        return side in NULL_EXTENDED.get(self.join.kind, frozenset())


def joined_rows(query: BoundQuery, at: str) -> JoinedRows | None:
    """Returns the rows that `query`, whose pointer is `at`, groups, if they come from a join; else None."""
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
    """Whether the query has an ORDER BY with a column, or a LIMIT."""
    return query.limit is not None or any(key.expression.columns for key in query.order_by)


def call_text(call: BoundCall) -> str:
    """Returns a call as SQL."""
    arguments = ", ".join(map(str, call.arguments)) or "*"
    condition = "" if call.filter is None else f" FILTER (WHERE {call.filter})"
    return f"{call.function.value}({'DISTINCT ' if call.distinct else ''}{arguments}){condition}"


def is_distinct(call: BoundCall) -> bool:
    """Whether DISTINCT changes the result of the call."""
    return call.distinct and call.function not in {AggregateFunction.MIN, AggregateFunction.MAX}


def is_known(type_: DataType | None) -> bool:
    """Whether a state can have a column of the type."""
    return type_ is not None and (type_.name is not TypeName.OTHER or bool(type_.parts))


def issues_of_joined_streams(query: BoundQuery, at: str, rows: JoinedRows) -> Iterator[Issue]:
    """Yields why `query`, which groups the rows of a join of two streams, cannot be computed in one state."""
    join = _join_issue(rows) or _group_issue(query, at, rows)
    if join is not None:
        yield join
        return
    for index, call in enumerate(query.calls):
        why = _call_refusal(call, rows)
        if why is not None:
            detail = (
                f"Each side of a join of two streams is aggregated separately, but {call_text(call)} {why}. "
                f"{_WAY_OUT} use aggregates over the columns of one side, or SUM of a product of both sides."
            )
            yield Issue(code="stream_join_needs_rows", detail=detail, pointer=f"{at}/aggregates/{index}")


def _condition(query: BoundQuery, columns: Columns) -> Iterator[Expression | None]:
    if query.where is not None:
        yield from _terms(tree_of(query.where, columns))


def _terms(tree: Expression | None) -> tuple[Expression | None, ...]:
    return tree.terms if isinstance(tree, Connective) and tree.operator == "AND" else (tree,)


def issue_of_kind(join: BoundJoin, pointer: str) -> Issue | None:
    """Returns the issue of a join of two streams that is never supported, whatever the query selects; else None."""
    alias = join.right.alias
    if join.kind is JoinKind.FULL:
        return Issue(
            code="full_outer_stream_join",
            detail=f"The FULL JOIN of two streams with {alias} is not supported, because its rows change as matches "
            "arrive. Use an INNER, LEFT or RIGHT JOIN.",
            pointer=pointer,
        )
    if join.kind is JoinKind.LEFT_ANTI:
        return Issue(
            code="stream_anti_join",
            detail=f"The anti join of two streams with {alias} is not supported, because it would have to retract rows "
            f"when a match arrives. Give the table of {alias} the role 'static', or use a LEFT JOIN, count a column of "
            f"{alias}, and select the groups with 0 when you read the result.",
            pointer=pointer,
        )
    if not join.keys:
        return Issue(
            code="stream_join_no_equality",
            detail=f"The join of two streams with {alias} has no equality. {_WAY_OUT} join them by a key.",
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
            detail=f"{left_over} of the join of two streams with {rows.join.right.alias} uses columns of both streams, "
            "or of the side that may have no match, so it cannot be checked on one side before the join. "
            f"{_WAY_OUT} remove the condition.",
            pointer=rows.pointer,
        )
    odd = next((key for key in join.keys if key[0].type != key[1].type or not is_known(key[0].type)), None)
    if odd is not None:
        return Issue(
            code="join_key_types",
            detail=f"Two streams are joined by {odd[0]} = {odd[1]}, whose types are not known to be equal. "
            "CAST both sides to the same type.",
            pointer=rows.pointer,
        )
    return None


def _left_over(rows: JoinedRows) -> Iterator[str]:
    """Yields the conditions that cannot be checked on one side of the join."""
    fields = tuple(field for source in sources_of(rows.query) for field, _ in source.columns)
    residual = rows.join.residual
    within = () if residual is None else _terms(tree_of(residual, columns_by_name(fields)))
    for terms, moves in ((rows.conditions, CONDITION_MOVES), (within, RESIDUAL_MOVES)):
        for tree in terms:
            side = None if tree is None else rows.side_of(tree)
            if side is None or side not in moves.get(rows.join.kind, frozenset()):
                condition = None if tree is None else scalar_from(tree)
                yield "A condition" if condition is None else f"The condition {condition}"


def _group_issue(query: BoundQuery, at: str, rows: JoinedRows) -> Issue | None:
    names = _columns_of_keys(rows)
    trees = [tree_of(key.expression, rows.columns) for key in query.keys]
    groups = [tree.name if isinstance(tree, Column) else None for tree in trees]
    way_out = f"Group by the complete join key. {_WAY_OUT} join them in one job and aggregate in another one."
    if query.grouping_sets:
        detail = f"Two streams are joined and grouped by several grouping sets, instead of by the join key. {way_out}"
        return Issue(code="join_group_not_key", detail=detail, pointer=f"{at}/group_by")
    for index, group in enumerate(groups):
        if not any(group in one_of for one_of in names):
            key = query.keys[index].expression
            detail = f"Two streams are joined and grouped by {key}, which is not the join key. {way_out}"
            return Issue(code="join_group_not_key", detail=detail, pointer=f"{at}/group_by/{index}")
    if any(not one_of & set(groups) for one_of in names):
        equalities = " AND ".join(f"{left} = {right}" for left, right in rows.join.keys)
        detail = f"Two streams are joined by {equalities}, but not grouped by the complete join key. {way_out}"
        return Issue(code="join_group_not_key", detail=detail, pointer=at)
    return None


def _columns_of_keys(rows: JoinedRows) -> list[set[str | None]]:
    """Returns, by equality, the columns that are the group's key, without those of a side that may have no match."""
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
    call: BoundCall, trees: list[Expression], condition: Expression | None, rows: JoinedRows
) -> str | None:
    side = rows.side_of(*trees)
    if side is not None and not all(_computable(tree, side, rows) for tree in trees):
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
    weighed = any(one is not side for one in Side if one is Side.LEFT or rows.join.kind not in ONE_SIDED)
    is_average = call.function is AggregateFunction.AVG
    return refusal_of_parts(call.arguments[0].type, is_average=is_average, weighed=weighed)


def _computable(tree: Expression, side: Side, rows: JoinedRows) -> bool:
    return cannot_fail(tree) and (not rows.null_extended(side) or null_of_nulls(tree))


def _is_product(call: BoundCall, trees: list[Expression], rows: JoinedRows) -> bool:
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
        side is not None and _computable(factor, side, rows)
        for side, factor in zip(sides, (tree.left, tree.right), strict=True)
    )


@dataclass(frozen=True)
class JoinOfStreams:
    """The join number `place` of `query`, with streams on both sides; `pointer` is its JSON pointer."""

    query: BoundQuery
    place: int
    pointer: str

    @property
    def join(self) -> BoundJoin:
        """The join."""
        return self.query.joins[self.place]

    @property
    def alias(self) -> str:
        """The alias of its right side."""
        return self.join.right.alias

    @property
    def sides(self) -> tuple[BoundSource, ...]:
        """All sources that it joins."""
        return (*sources_of(self.query)[: self.place + 1], self.join.right)


def issues_of_unbounded_join(of: JoinOfStreams, event_times: EventTimes) -> Iterator[Issue]:
    """Yields why a join of two streams that does not bound the time between its rows is not supported."""
    of_kind = issue_of_kind(of.join, of.pointer)
    if of_kind is not None:
        yield of_kind
        return
    without = tables_without_event_time(of.sides, event_times)
    example = example_of_bounds(of.sides, event_times)
    others = "Or aggregate with the join key in GROUP BY, or give one of the two tables the role 'static'."
    if without:
        detail = (
            f"The query selects rows of the join of two streams with {of.alias}, and without watermarks every row "
            f"would be kept for ever. Declare 'event_time' on {' and '.join(without)}, and bound the time between "
            f"joined rows in ON, for example with {example}. {others}"
        )
        yield Issue(code="stream_join_needs_watermark", detail=detail, pointer=of.pointer)
        return
    detail = (
        f"The query selects rows of the join of two streams with {of.alias}, but does not bound the time between "
        "joined rows, so every row would be kept for ever. Add a lower and an upper bound to ON, using the event times "
        f"(of type TIMESTAMP) and intervals of days or shorter units, for example {example}. {others}"
    )
    yield Issue(code="stream_join_not_bounded", detail=detail, pointer=of.pointer)


def issues_of_empty_bound(of: JoinOfStreams) -> Iterator[Issue]:
    """Yields the issue of a join whose time bounds contradict each other, so that no rows match."""
    within = of.join.within
    if within is None or within.at_least_us <= within.at_most_us:
        return
    left, right = (time.column or time.sql for time in (within.left, within.right))
    least, most = (_shifted_by(right, microseconds) for microseconds in (within.at_least_us, within.at_most_us))
    detail = (
        f"No rows can match in the join with {of.alias}: {left} would have to be at least {least} and at most {most}, "
        f"which is earlier. Swap the two bounds, with the earlier one first: {left} BETWEEN {most} AND {least}."
    )
    yield Issue(code="stream_join_always_empty", detail=detail, pointer=of.pointer)


def _shifted_by(name: str, microseconds: int) -> str:
    if not microseconds:
        return name
    seconds = abs(microseconds) / 1_000_000
    return f"{name} {'+' if microseconds > 0 else '-'} INTERVAL '{seconds:.6f}".rstrip("0").rstrip(".") + "' SECOND"


def issues_of_bounded_join(of: JoinOfStreams, event_times: EventTimes, *, updates: bool) -> Iterator[Issue]:
    """Yields why a join of two streams with time bounds is not supported.

    `updates`: its rows are aggregated, and groups are emitted as they change.
    """
    if any(has_state(side, event_times) for side in of.sides):
        detail = (
            f"The join of two streams with {of.alias} reads a stream that is grouped or made DISTINCT before the join, "
            "which is not supported. Aggregate after the join, or in a separate job."
        )
        yield Issue(code="stream_join_not_first", detail=detail, pointer=of.pointer)
    if updates and of.join.kind is not JoinKind.INNER:
        kind = of.join.kind.value.upper().replace("_", " ")
        detail = (
            f"The {kind} JOIN of two streams with {of.alias} emits unmatched rows when the watermark has passed, which "
            "Spark only supports with the output 'append'. Use an INNER JOIN; or group by a window (TUMBLE, HOP) with "
            "the output 'append'; or group by the join key only, without time bounds in ON."
        )
        yield Issue(code="outer_stream_join_updated", detail=detail, pointer=of.pointer)
