"""Binds event time: the watermarks of group windows, and the bounds of the time between the rows of a stream join.

A stream has no end, so a row could wait for a match for ever. If both streams have event time, and the join's condition
has a lower and an upper bound for the difference of the two times, Spark can drop a row once both watermarks have
passed the last time of a possible match.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from service.contract.problems import SpecError
from service.contract.query import HoppingWindow, JoinKind, TumblingWindow
from service.contract.tables import EventTime
from service.sql.expressions.analysis import Columns, columns_by_name, tree_of
from service.sql.expressions.calls import MAX_WINDOWS_PER_ROW, milliseconds_of
from service.sql.expressions.compile_expression import TableScope, resolve, scalar_of
from service.sql.expressions.nodes import Arithmetic, Between, Column, Comparison, Expression, Interval, conjuncts
from service.sql.expressions.reader import read_expression
from service.sql.expressions.scalar import Scalar, column
from service.sql.joins import NULL_EXTENDED, Side
from service.sql.parser import Text
from service.sql.resolve.bound import (
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundRows,
    BoundSource,
    BoundTable,
    BoundTimes,
    BoundUnion,
    BoundValues,
    BoundWatermark,
    BoundWindow,
    queries_of,
    sources_of,
    tables_of,
)
from service.sql.resolve.stream_join_rules import STREAM_JOINS
from service.sql.types.data_types import TIMESTAMP, TIMESTAMP_NTZ, Field

EventTimes = Mapping[str, EventTime | None]
"""The declared event time of each table that a job reads as a stream, by name; all other tables are static."""

_MILLISECOND = timedelta(milliseconds=1)
_MAKES_LEFT = frozenset(kind for kind, sides in NULL_EXTENDED.items() if Side.LEFT in sides)
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


@dataclass(frozen=True)
class Origin:
    """The column of a table that another column is a copy of; `column` is its name in the files."""

    table: str
    alias: str
    emitted: str
    column: str


class NotAColumnError(Exception):
    """A column that is not a copy of a table's column; `origin` describes what it is."""

    def __init__(self, origin: str) -> None:
        super().__init__(origin)
        self.origin = origin


def bind_window(
    window: TumblingWindow | HoppingWindow,
    scope: TableScope,
    sources: Mapping[str, BoundSource],
    joins: Iterable[BoundJoin],
    event_times: EventTimes | None,
    pointer: str,
    source: Text,
) -> BoundWindow:
    """Returns the bound form of `window`, whose pointer is `pointer`, over `sources` and their `joins`.

    `event_times` is None for a batch job. `source` is the text of the window's column.

    Raises SpecError `window_without_stream` for a batch job, `watermark_required` if the column is not a declared event
    time, `window_over_joined_streams`, `unsupported_construct`, `type_mismatch`, `unknown_column`, `ambiguous_column`.
    """
    if event_times is None:
        detail = (
            "A group window needs a stream, but the job is a batch job. Set 'mode' to 'incremental' or 'continuous', "
            "or group by date_trunc('hour', t)."
        )
        raise SpecError.of("window_without_stream", detail, pointer=pointer)
    _check_joins(sources.values(), joins, event_times, pointer)
    slide = window.slide if isinstance(window, HoppingWindow) else window.size
    _check_lengths(window.size, slide, pointer)
    name = window.column.replace("`", "")
    column = resolve(read_expression(source), scope, source)
    if not isinstance(column, Column):
        hint = "Name the column that is declared as the 'event_time' of its table."
        raise source.unsupported("A window over an expression", hint=hint)
    if column.type not in (TIMESTAMP, TIMESTAMP_NTZ):
        detail = (
            f"A window needs a TIMESTAMP, but {name} is {column.type or 'of an unknown type'}. Name a TIMESTAMP column "
            "that is declared as the 'event_time' of its table."
        )
        raise source.error("type_mismatch", detail, at=column.at)
    try:
        origins = tuple(dict.fromkeys(origins_of(column.name, sources.values())))
    except NotAColumnError as error:
        detail = (
            f"A window needs the event time of a stream, but {name} is {error.origin}. Name a column that is declared "
            "as the 'event_time' of its table."
        )
        raise source.error("watermark_required", detail, at=column.at) from None
    marks = tuple(_watermark(origin, event_times, source, column.at) for origin in origins)
    if column.type == TIMESTAMP_NTZ and [mark.column for mark in marks] != [column.name]:
        detail = (
            f"{name} is a TIMESTAMP_NTZ, and Spark only supports a window over it in the query that reads the table. "
            "Write GROUP BY there, without a derived table in between."
        )
        raise source.error("type_mismatch", detail, at=column.at)
    return BoundWindow(
        column=scalar_of(column, source),
        size_ms=window.size // _MILLISECOND,
        slide_ms=slide // _MILLISECOND,
        start=Field(window.start, column.type),
        end=Field(window.end, column.type),
        watermarks=marks,
    )


def is_streaming(source: BoundSource, event_times: EventTimes) -> bool:
    """Whether rows of `source` come from a stream."""
    if isinstance(source, BoundTable):
        return source.table in event_times
    if isinstance(source, BoundValues | BoundRows):
        return False
    return any(is_streaming(inner, event_times) for query in queries_of(source.query) for inner in sources_of(query))


def _check_joins(
    sources: Iterable[BoundSource], joins: Iterable[BoundJoin], event_times: EventTimes, pointer: str
) -> None:
    sources = tuple(sources)
    nested = [source.query for source in sources if isinstance(source, BoundDerived)]
    inner = (each for query in nested for each in queries_of(query))
    for level, between in ((sources, joins), *((sources_of(each), each.joins) for each in inner)):
        streams = [source.alias for source in level if is_streaming(source, event_times)]
        if len(streams) > 1 + sum(join.within is not None for join in between):
            detail = (
                f"The streams {streams[0]} and {streams[1]} are joined below the window without time bounds, so a row "
                "of one may arrive long after the window of its match was closed. Declare 'event_time' on both tables, "
                "and bound the time between joined rows in ON, for example with a.ts BETWEEN b.ts - INTERVAL '1' HOUR "
                "AND b.ts + INTERVAL '1' HOUR; or give one of the tables the role 'static'."
            )
            raise SpecError.of("window_over_joined_streams", detail, pointer=pointer)


def _check_lengths(size: timedelta, slide: timedelta, pointer: str) -> None:
    if slide > size:
        detail = (
            "The slide is longer than the window, so the rows between two windows would be lost. Use a slide of at "
            "most the window's size; to drop rows, use WHERE."
        )
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    if -(-size // slide) > MAX_WINDOWS_PER_ROW:
        detail = (
            f"Each row would be copied into {-(-size // slide)} windows, but at most {MAX_WINDOWS_PER_ROW} are "
            "supported. Use a longer slide, or use TUMBLE and aggregate its windows when you read the result."
        )
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)


def _watermark(origin: Origin, event_times: EventTimes, source: Text, at: int | None) -> BoundWatermark:
    table, column = origin.table, origin.column
    if table not in event_times:
        detail = (
            f"Table '{table}' is static, so a window over its {column} would never be complete. Use the event time of "
            "a stream."
        )
        raise source.error("watermark_required", detail, at=at)
    declared = event_times[table]
    example = f'"event_time": {{"column": "{column}", "delay": "10m"}}'
    if declared is None:
        detail = (
            f"A window needs the maximum delay of the rows of table '{table}'. Declare it on the table, for example "
            f"{example}."
        )
        raise source.error("watermark_required", detail, at=at)
    if declared.column != column and declared.column.casefold() != column.casefold():
        name = declared.column
        detail = f"The event time of table '{table}' is {name}. Use that column in the window, or declare {example}."
        raise source.error("watermark_required", detail, at=at)
    return BoundWatermark(origin.alias, origin.emitted, declared.delay // _MILLISECOND)


def origins_of(name: str, sources: Iterable[BoundSource]) -> Iterator[Origin]:
    """Yields the columns of tables that the column `name` of `sources` is a copy of: several for a UNION.

    Raises NotAColumnError.
    """
    for source in sources:
        inner = next((inner for field, inner in source.columns if field.name == name), None)
        if inner is None:
            continue
        if isinstance(source, BoundValues | BoundRows):
            raise NotAColumnError("a constant")
        if isinstance(source, BoundTable):
            yield Origin(source.table, source.alias, name, inner)
        else:
            yield from _of_derived(source, inner)
        return


def _of_derived(source: BoundDerived, name: str) -> Iterator[Origin]:
    branches = source.query.queries if isinstance(source.query, BoundUnion) else (source.query,)
    for query in branches:
        yield from origins_of(_passed_on(query, name), sources_of(query))


def _passed_on(query: BoundQuery, name: str) -> str:
    """Returns the column of the sources of `query` that its output `name` copies. Raises NotAColumnError."""
    read = next(item.expression for item in query.select if item.name == name)
    if read.column is None:
        raise NotAColumnError(f"computed by {read}")
    if not query.is_aggregate:
        return read.column
    key = next((key for key in query.keys if key.name == read.column), None)
    if key is None or query.calls or query.window is not None:
        raise NotAColumnError("the result of an aggregate")
    if key.expression.column is None:
        raise NotAColumnError(f"computed by {key.expression}")
    return key.expression.column


def with_time_bounds(
    source: BoundSource, joins: Sequence[BoundJoin], where: Scalar | None, event_times: EventTimes
) -> tuple[BoundJoin, ...]:
    """Returns `joins` of a query whose first source is `source`, with the time bounds of joins of two streams, if any:
    from ON, or, for an inner join, also from `where`.
    """
    sources, found = [source], list[BoundJoin]()
    for place, join in enumerate(joins):
        streams = is_streaming(join.right, event_times) and any(is_streaming(each, event_times) for each in sources)
        if streams and join.kind in STREAM_JOINS and join.keys:
            sides = _Sides(tuple(sources), join.right, event_times)
            trees = _conditions(sources, joins[place:], where)
            found.append(replace(join, within=sides.bound(trees)))
        else:
            found.append(join)
        sources.append(join.right)
    return tuple(found)


def tables_without_event_time(sides: Sequence[BoundSource], event_times: EventTimes) -> tuple[str, ...]:
    """Returns the tables that `sides` read as streams and that declare no event time."""
    names = (name for side in sides for name in _tables(side) if name in event_times and event_times[name] is None)
    return tuple(dict.fromkeys(names))


def example_of_bounds(sides: Sequence[BoundSource], event_times: EventTimes) -> str:
    """Returns an example of time bounds for ON of a join of `sides`, the last of which is the right one, a stream."""
    first = next(side for side in sides if is_streaming(side, event_times))
    left, right = (_time_of(side, event_times) for side in (first, sides[-1]))
    return f"{left} BETWEEN {right} - INTERVAL '1' HOUR AND {right} + INTERVAL '1' HOUR"


def _time_of(source: BoundSource, event_times: EventTimes) -> str:
    declared = event_times.get(source.table) if isinstance(source, BoundTable) else None
    return f"{source.alias}.{'ts' if declared is None else declared.column}"


def _tables(source: BoundSource) -> tuple[str, ...]:
    if isinstance(source, BoundValues | BoundRows):
        return ()
    if isinstance(source, BoundTable):
        return (source.table,)
    branches = source.query.queries if isinstance(source.query, BoundUnion) else (source.query,)
    return tuple(table.table for branch in branches for table in tables_of(branch))


def _conditions(before: Sequence[BoundSource], joins: Sequence[BoundJoin], where: Scalar | None) -> list[Expression]:
    """Returns the conditions that hold for every row of the first of `joins`; the others follow it."""
    join, later = joins[0], joins[1:]
    fields = (field for source in (*before, *(each.right for each in joins)) for field, _ in source.columns)
    columns: Columns = columns_by_name(tuple(fields))
    conditions = [] if join.residual is None else [join.residual]
    if where is not None and join.kind is JoinKind.INNER and all(each.kind not in _MAKES_LEFT for each in later):
        # Not if a later join emits rows without its left side: WHERE is checked after it.
        conditions.append(where)
    found = [tree for each in conditions if (tree := tree_of(each, columns)) is not None]
    for one, other in join.keys:
        left, right = tree_of(one, columns), tree_of(other, columns)
        if left is not None and right is not None:
            found.append(Comparison("=", left, right))
    return [bound for tree in found for term in conjuncts(tree) for bound in _bounds(term)]


def _bounds(term: Expression) -> tuple[Expression, ...]:
    """Returns both comparisons of a BETWEEN; of any other term, only the term."""
    if not isinstance(term, Between):
        return (term,)
    return Comparison(">=", term.operand, term.low), Comparison("<=", term.operand, term.high)


@dataclass(frozen=True)
class _Sides:
    left: tuple[BoundSource, ...]
    right: BoundSource
    event_times: EventTimes

    def bound(self, terms: Sequence[Expression]) -> BoundTimes | None:
        """Returns the bounds of the time between joined rows that follow from `terms`; None if there are none."""
        least: dict[tuple[str, str], int] = {}
        most: dict[tuple[str, str], int] = {}
        for term in terms:
            distance = self._distance(term)
            if distance is None:
                continue
            pair, operator, microseconds = distance
            if operator in {">", ">=", "="}:
                least[pair] = max(microseconds, least.get(pair, microseconds))
            if operator in {"<", "<=", "="}:
                most[pair] = min(microseconds, most.get(pair, microseconds))
        for pair in (pair for pair in least if pair in most):
            left, right = self._watermarks(pair[0], self.left), self._watermarks(pair[1], (self.right,))
            if left and right:
                one, other = (column(name, TIMESTAMP) for name in pair)
                return BoundTimes(one, other, least[pair], most[pair], (*left, *right))
        return None

    def _distance(self, term: Expression) -> tuple[tuple[str, str], str, int] | None:
        """Reads a term as (left column, right column), an operator and microseconds: left - right OPERATOR value."""
        if not isinstance(term, Comparison) or term.operator not in _TURNED:
            return None
        one, other = _shifted(term.left), _shifted(term.right)
        if one is None or other is None:
            return None
        microseconds = other[1] - one[1]
        rights = {field.name for field, _ in self.right.columns}
        lefts = {field.name for source in self.left for field, _ in source.columns}
        if one[0] in lefts and other[0] in rights:
            return (one[0], other[0]), term.operator, microseconds
        if one[0] in rights and other[0] in lefts:
            return (other[0], one[0]), _TURNED[term.operator], -microseconds
        return None

    def _watermarks(self, name: str, sources: Sequence[BoundSource]) -> tuple[BoundWatermark, ...]:
        """Returns the watermarks of the streams whose event time the column copies; empty if it is not a copy."""
        try:
            origins = tuple(dict.fromkeys(origins_of(name, sources)))
        except NotAColumnError:
            return ()
        found = []
        for origin in origins:
            declared = self.event_times.get(origin.table)
            if declared is None or declared.column.casefold() != origin.column.casefold():
                return ()
            found.append(BoundWatermark(origin.alias, origin.emitted, declared.delay // _MILLISECOND))
        return tuple(found)


def _shifted(tree: Expression) -> tuple[str, int] | None:
    """Reads a TIMESTAMP column plus or minus intervals, as its name and microseconds; None for other expressions."""
    if isinstance(tree, Column):
        return (tree.name, 0) if tree.type == TIMESTAMP else None
    if not isinstance(tree, Arithmetic) or tree.operator not in {"+", "-"}:
        return None
    interval, other = (tree.left, tree.right) if isinstance(tree.left, Interval) else (tree.right, tree.left)
    shifted = _shifted(other)
    length = milliseconds_of(interval) if isinstance(interval, Interval) else None
    taken_from = interval is tree.left and tree.operator == "-"
    if shifted is None or length is None or taken_from or length * 1000 != int(length * 1000):
        return None
    return shifted[0], shifted[1] + int(length * 1000) * (1 if tree.operator == "+" else -1)


def has_state(source: BoundSource, event_times: EventTimes) -> bool:
    """Whether `source` groups a stream, or makes it distinct, so that it needs state."""
    if not isinstance(source, BoundDerived) or not is_streaming(source, event_times):
        return False
    branches = source.query.queries if isinstance(source.query, BoundUnion) else (source.query,)
    streaming = [branch for branch in branches if any(is_streaming(each, event_times) for each in sources_of(branch))]
    return any(
        branch.is_aggregate or any(has_state(each, event_times) for each in sources_of(branch)) for branch in streaming
    )
