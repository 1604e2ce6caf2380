"""How far apart in time rows of two streams are that a join puts together, read from its condition.

A stream has no end, so that a row may wait for partners for ever. Where both streams have event time, and the condition
tells how far apart the two times of a pair are, at the least and at the most, a row can be forgotten once both streams
are beyond the last moment of a partner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from service.spec.bound import (
    BoundDerived,
    BoundJoin,
    BoundSource,
    BoundTable,
    BoundTimes,
    BoundUnion,
    BoundWatermark,
    sources_of,
    tables_of,
)
from service.spec.event_windows import EventTimes, NotAColumnError, is_streaming, origins_of
from service.spec.join_sides import NULL_EXTENDED, Side
from service.spec.query import JoinKind
from service.spec.scalar import Scalar, column
from service.spec.scalar_trees import Columns, columns_by_name, tree_of
from service.spec.tree import Arithmetic, Between, Column, Comparison, Connective, Expression, Interval
from service.spec.types import TIMESTAMP
from service.spec.windows import milliseconds_of

BOUNDED_KINDS = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.RIGHT, JoinKind.LEFT_SEMI})
"""Joins of two streams whose rows can be had, where the time between their rows has bounds."""

_MAKES_LEFT = frozenset(kind for kind, sides in NULL_EXTENDED.items() if Side.LEFT in sides)
_MILLISECOND = timedelta(milliseconds=1)
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}


def with_time_bounds(
    source: BoundSource, joins: Sequence[BoundJoin], where: Scalar | None, event_times: EventTimes
) -> tuple[BoundJoin, ...]:
    """`joins` of a query that begins with `source`, those of two streams with the time between their rows, where it has
    bounds: in ON, or, for an inner join, in `where`.
    """
    sources, found = [source], list[BoundJoin]()
    for place, join in enumerate(joins):
        streams = is_streaming(join.right, event_times) and any(is_streaming(each, event_times) for each in sources)
        if streams and join.kind in BOUNDED_KINDS and join.keys:
            sides = _Sides(tuple(sources), join.right, event_times)
            trees = _conditions(sources, joins[place:], where)
            found.append(replace(join, within=sides.bound(trees)))
        else:
            found.append(join)
        sources.append(join.right)
    return tuple(found)


def tables_without_event_time(sides: Sequence[BoundSource], event_times: EventTimes) -> tuple[str, ...]:
    """The tables that `sides` read as streams and whose rows are of no known time."""
    names = (name for side in sides for name in _tables(side) if name in event_times and event_times[name] is None)
    return tuple(dict.fromkeys(names))


def example_of_bounds(sides: Sequence[BoundSource], event_times: EventTimes) -> str:
    """What could stand in ON of a join of `sides`, the last of which is its right one, and a stream."""
    first = next(side for side in sides if is_streaming(side, event_times))
    left, right = (_time_of(side, event_times) for side in (first, sides[-1]))
    return f"{left} BETWEEN {right} - INTERVAL '1' HOUR AND {right} + INTERVAL '1' HOUR"


def _time_of(source: BoundSource, event_times: EventTimes) -> str:
    declared = event_times.get(source.table) if isinstance(source, BoundTable) else None
    return f"{source.alias}.{'ts' if declared is None else declared.column}"


def _tables(source: BoundSource) -> tuple[str, ...]:
    if isinstance(source, BoundTable):
        return (source.table,)
    branches = source.query.queries if isinstance(source.query, BoundUnion) else (source.query,)
    return tuple(table.table for branch in branches for table in tables_of(branch))


def _conditions(before: Sequence[BoundSource], joins: Sequence[BoundJoin], where: Scalar | None) -> list[Expression]:
    """What holds for every pair of the first of `joins`; the others come behind it."""
    join, later = joins[0], joins[1:]
    fields = (field for source in (*before, *(each.right for each in joins)) for field, _ in source.columns)
    columns: Columns = columns_by_name(tuple(fields))
    conditions = [] if join.residual is None else [join.residual]
    if where is not None and join.kind is JoinKind.INNER and all(each.kind not in _MAKES_LEFT for each in later):
        # A join that makes rows without its left side has WHERE behind them.
        conditions.append(where)
    found = [tree for each in conditions if (tree := tree_of(each, columns)) is not None]
    for one, other in join.keys:
        left, right = tree_of(one, columns), tree_of(other, columns)
        if left is not None and right is not None:
            found.append(Comparison("=", left, right))
    return [term for tree in found for term in _terms(tree)]


def _terms(tree: Expression) -> Iterator[Expression]:
    if isinstance(tree, Connective) and tree.operator == "AND":
        for term in tree.terms:
            yield from _terms(term)
    elif isinstance(tree, Between):
        yield Comparison(">=", tree.operand, tree.low)
        yield Comparison("<=", tree.operand, tree.high)
    else:
        yield tree


@dataclass(frozen=True)
class _Sides:
    left: tuple[BoundSource, ...]
    right: BoundSource
    event_times: EventTimes

    def bound(self, terms: Sequence[Expression]) -> BoundTimes | None:
        """The time between the rows of a pair for which all of `terms` hold; None where it has no bounds."""
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
        """A column of the left side, one of the right side, and how the first less the second compares to what."""
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
        """Those of the streams whose event time the column is a copy of; empty where it is not."""
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
    """A TIMESTAMP column and the microseconds that are added to it; None for anything else."""
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
    """Whether a stream's rows are kept below `source`: grouped, or made distinct."""
    if not isinstance(source, BoundDerived) or not is_streaming(source, event_times):
        return False
    branches = source.query.queries if isinstance(source.query, BoundUnion) else (source.query,)
    streaming = [branch for branch in branches if any(is_streaming(each, event_times) for each in sources_of(branch))]
    return any(
        branch.is_aggregate or any(has_state(each, event_times) for each in sources_of(branch)) for branch in streaming
    )
