"""Creates the issues of joins of two streams that `stream_join_rules.py` does not support.

Finds the join below a query that aggregates, and describes each refusal with an alternative. Spark needs an event time
on both streams to forget joined rows (`service/sql/resolve/event_time.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.contract.problems import Issue
from service.contract.query import JoinKind
from service.sql.expressions.analysis import Columns, columns_by_name, tree_of
from service.sql.expressions.nodes import Expression
from service.sql.resolve.bound import (
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundSource,
    BoundUnion,
    sources_of,
)
from service.sql.resolve.event_time import EventTimes, example_of_bounds, has_state, tables_without_event_time
from service.sql.resolve.stream_join_rules import (
    JoinedRows,
    Refusal,
    joined_rows_refusals,
    one_state_refusals,
    terms_of,
)

_WAY_OUT = "Give one of the two tables the role 'static', or"


@dataclass(frozen=True)
class GroupedJoin:
    """The join whose rows a query groups, after filters and projections; `pointer` is its JSON pointer."""

    join: BoundJoin
    pointer: str
    rows: JoinedRows


def grouped_join(query: BoundQuery, at: str) -> GroupedJoin | None:
    """Returns the join whose rows `query` groups, the last one of its query; None if the rows come from no join. `at`
    is the pointer of `query`.
    """
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
    join = inner.joins[-1]
    joined: Columns = columns_by_name(tuple(field for source in sources_of(inner) for field, _ in source.columns))
    residual = () if join.residual is None else terms_of(tree_of(join.residual, joined))
    columns = joined
    conditions = list(_conditions(inner, columns))
    for source, outer in reversed(around):
        made = {item.name: tree_of(item.expression, columns) for item in inner.select}
        seen = ((field.name, made[name]) for field, name in source.columns)
        columns = {name: tree for name, tree in seen if tree is not None}
        conditions += _conditions(outer, columns)
        inner = outer
    right = frozenset(field.name for field, _ in join.right.columns)
    rows = JoinedRows(join.kind, join.keys, right, columns, conditions, residual)
    return GroupedJoin(join, f"{at}/joins/{join.index}", rows)


def is_ordered(query: BoundQuery) -> bool:
    """Whether the query has an ORDER BY with a column, or a LIMIT."""
    return query.is_cut or any(key.expression.columns for key in query.order_by)


def _conditions(query: BoundQuery, columns: Columns) -> tuple[Expression | None, ...]:
    return () if query.where is None else terms_of(tree_of(query.where, columns))


def issues_in_one_state(query: BoundQuery, at: str, of: GroupedJoin) -> Iterator[Issue]:
    """Yields why `query`, which groups the rows of a join of two streams, cannot be computed in one state."""
    groups = [key.expression for key in query.keys]
    for refusal in one_state_refusals(of.rows, groups, query.calls, has_grouping_sets=bool(query.grouping_sets)):
        if refusal.code == "join_group_not_key":
            yield _group_issue(refusal, query, at, of.join)
        elif refusal.code == "stream_join_needs_rows":
            detail = (
                f"Each side of a join of two streams is aggregated separately, but {refusal}. "
                f"{_WAY_OUT} use aggregates over the columns of one side, or SUM of a product of both sides."
            )
            yield Issue(code=refusal.code, detail=detail, pointer=f"{at}/aggregates/{refusal.index}")
        else:
            yield Issue(code=refusal.code, detail=_join_detail(refusal, of.join.right.alias), pointer=of.pointer)


def _group_issue(refusal: Refusal, query: BoundQuery, at: str, join: BoundJoin) -> Issue:
    equalities = " AND ".join(f"{left} = {right}" for left, right in join.keys)
    detail = (
        f"Two streams are joined by {equalities}, but {refusal}. Group by the complete join key. {_WAY_OUT} join them "
        "in one job and aggregate in another one."
    )
    if refusal.index is not None:
        at = f"{at}/group_by/{refusal.index}"
    elif query.grouping_sets:
        at = f"{at}/group_by"
    return Issue(code=refusal.code, detail=detail, pointer=at)


def _join_detail(refusal: Refusal, alias: str) -> str:
    """Returns the detail of a refusal that does not depend on the query's groups and calls."""
    match refusal.code:
        case "full_outer_stream_join":
            return (
                f"The FULL JOIN of two streams with {alias} is not supported, because its rows change as matches "
                "arrive. Use an INNER, LEFT or RIGHT JOIN."
            )
        case "stream_anti_join":
            return (
                f"The anti join of two streams with {alias} is not supported, because it would have to retract rows "
                f"when a match arrives. Give the table of {alias} the role 'static', or use a LEFT JOIN, count a "
                f"column of {alias}, and select the groups with 0 when you read the result."
            )
        case "stream_join_no_equality":
            return f"The join of two streams with {alias} has no equality. {_WAY_OUT} join them by a key."
        case "join_residual_two_sided":
            return (
                f"{refusal.subject} of the join of two streams with {alias} uses columns of both streams, or of the "
                "side that may have no match, so it cannot be checked on one side before the join. "
                f"{_WAY_OUT} remove the condition."
            )
        case _:
            return (
                f"Two streams are joined by {refusal.subject}, whose types are not known to be equal. "
                "CAST both sides to the same type."
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


def issues_of_joined_rows(of: JoinOfStreams, event_times: EventTimes, *, updates: bool) -> Iterator[Issue]:
    """Yields why Spark cannot join the rows of two streams.

    `updates`: the rows are aggregated, and groups are emitted as they change.
    """
    refusals = joined_rows_refusals(
        of.join.kind,
        is_bounded=of.join.within is not None,
        has_keys=bool(of.join.keys),
        has_state=any(has_state(side, event_times) for side in of.sides),
        updates=updates,
    )
    for refusal in refusals:
        match refusal.code:
            case "stream_join_not_bounded":
                yield _unbounded_issue(of, event_times)
            case "stream_join_not_first":
                detail = (
                    f"The join of two streams with {of.alias} reads a stream that is grouped or made DISTINCT before "
                    "the join, which is not supported. Aggregate after the join, or in a separate job."
                )
                yield Issue(code=refusal.code, detail=detail, pointer=of.pointer)
            case "outer_stream_join_updated":
                kind = of.join.kind.value.upper().replace("_", " ")
                detail = (
                    f"The {kind} JOIN of two streams with {of.alias} emits unmatched rows when the watermark has "
                    "passed, which Spark only supports with the output mode 'append'. Use an INNER JOIN; or group by a "
                    "window (TUMBLE, HOP) with the output mode 'append'; or group by the join key only, without time "
                    "bounds in ON."
                )
                yield Issue(code=refusal.code, detail=detail, pointer=of.pointer)
            case _:
                yield Issue(code=refusal.code, detail=_join_detail(refusal, of.alias), pointer=of.pointer)


def _unbounded_issue(of: JoinOfStreams, event_times: EventTimes) -> Issue:
    without = tables_without_event_time(of.sides, event_times)
    example = example_of_bounds(of.sides, event_times)
    others = "Or aggregate with the join key in GROUP BY, or give one of the two tables the role 'static'."
    if of.join.kind is JoinKind.LEFT_SEMI:
        others = f"A subquery of IN or EXISTS has to be written as such a join. {others}"
    if without:
        detail = (
            f"The query selects rows of the join of two streams with {of.alias}, and without watermarks every row "
            f"would be kept for ever. Declare 'event_time' on {' and '.join(without)}, and bound the time between "
            f"joined rows in ON, for example with {example}. {others}"
        )
        return Issue(code="stream_join_needs_watermark", detail=detail, pointer=of.pointer)
    detail = (
        f"The query selects rows of the join of two streams with {of.alias}, but does not bound the time between "
        "joined rows, so every row would be kept for ever. Add a lower and an upper bound to ON, using the event times "
        f"(of type TIMESTAMP) and intervals of days or shorter units, for example {example}. {others}"
    )
    return Issue(code="stream_join_not_bounded", detail=detail, pointer=of.pointer)


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
