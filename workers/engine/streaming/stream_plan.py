"""Where a plan groups by windows of event time, and what tells such groups apart where they are shown.

What a streaming query keeps in its state, and what it emits: the plan of a query over streams.

A stream can aggregate once, and what it emits in update mode is the groups that a mini-batch changed. A query is taken
apart into what stands above its aggregate (SELECT, HAVING), the aggregate, and the rows below; the aggregate is then
put in the shape that one state can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from service.contract.enums import OutputMode
from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.analysis import turning_part
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.aggregates import FinalLevel
from service.sql.types.data_types import BIGINT, Field
from workers.engine.errors import EngineError
from workers.engine.plan.aggregates import is_distinct
from workers.engine.plan.builder import without_watermarks
from workers.engine.plan.explain import call_text
from workers.engine.plan.expressions import fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Deduplicate,
    Exchange,
    Filter,
    Join,
    Limit,
    Named,
    Node,
    Project,
    Scan,
    Sort,
    Union,
    Windows,
    inputs_of,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.plan.validation import check
from workers.engine.streaming.stream_aggregates import (
    Contribution,
    bitmap_state,
    normalised,
    stream_bitmap_obstacle,
    united_aggregate,
)
from workers.engine.streaming.stream_joins import (
    bounded_join_obstacle,
    over_both_streams,
    stream_join_obstacle,
    told_of,
)


def windows_of(node: Aggregate) -> Windows | None:
    """The windows that `node` groups by; None where it groups by none."""
    below = node.input
    grouped = isinstance(below, Windows) and any(key.expression.column == below.name for key in node.keys)
    return below if isinstance(below, Windows) and grouped else None


def windowed_in(node: Node) -> Aggregate | None:
    """An aggregate by windows somewhere in `node`; None where there is none."""
    found = (part for part in walk_up(node) if isinstance(part, Aggregate) and windows_of(part) is not None)
    return next(found, None)


def without_ends(node: Node) -> Node:
    """The aggregate by windows whose start and end `node` puts in their place; else `node`."""
    over = node.input if isinstance(node, Project) else None
    return over if isinstance(over, Aggregate) and windows_of(over) is not None else node


def ends_of(select: Project, having: Filter | None) -> Project | None:
    """What puts start and end in the place of windows below SELECT and HAVING; None where there are none."""
    below = select.input if having is None else having.input
    return below if isinstance(below, Project) and without_ends(below) is not below else None


def discriminated_by(ends: Project, select: Project) -> Field:
    """The start or the end of the windows, either of which tells them apart: the one that SELECT shows, if any."""
    start, end = output_of(ends)[:2]
    shown = {item.expression.column for item in select.items}
    return end if end.name in shown and start.name not in shown else start


Made = TypeVar("Made")


class Shape(StrEnum):
    """What the state of a streaming query holds."""

    ROWS = "rows"
    """Nothing: every row comes out as it is."""
    DISTINCT_ROWS = "distinct_rows"
    """Every different row, which comes out once."""
    PLAIN = "plain"
    """A row for each group."""
    DISTINCT = "distinct"
    """The distinct values of each group, and a row for each group of what is counted of them."""
    UNITED = "united"
    """The same, with plain calls beside them, or several sets of values."""
    BITMAP = "bitmap"
    """A row for each block of 32,768 neighbouring distinct values of each group, with all calls of the group in it."""
    JOINED = "joined"
    """A row for each key of two streams that are joined, and the distinct values of each."""
    JOINED_ROWS = "joined_rows"
    """The rows of two streams that are joined, for as long as partners of them may come."""


class StreamPlanError(EngineError):
    """A query that a stream cannot run; submission refuses it, so that it comes here from an older version alone."""

    code = "not_for_streams"


@dataclass(frozen=True)
class StreamPlan:
    """`node` is what runs over each mini-batch; it emits `output`, what readers see, and behind it what tells groups
    apart and is not in SELECT. Rows with equal `keys` replace each other; None where rows are only added.
    """

    shape: Shape
    before: Node
    node: Node
    reason: str
    output: tuple[Field, ...]
    keys: tuple[str, ...] | None
    final: FinalLevel | None = None

    @property
    def columns(self) -> tuple[Field, ...]:
        """What it emits."""
        return output_of(self.node)


@dataclass(frozen=True)
class Bitmaps:
    """Whether distinct integers are to be kept as bitmaps, where that can be, and why, as a sentence."""

    wanted: bool
    reason: str


NO_BITMAPS = Bitmaps(False, "")


def stream_plan(
    built: Node, streams: frozenset[str], bitmaps: Bitmaps = NO_BITMAPS, output: OutputMode | None = None
) -> StreamPlan:
    """The plan of a built query, of which `streams` are the aliases that are streams; without an `output`, windows are
    appended once they are closed, and other groups updated. Raises StreamPlanError.
    """
    if not is_streaming(built, streams):
        raise StreamPlanError("the query reads no stream")
    select, having, aggregate = apart(built)
    if aggregate is not None and windows_of(aggregate) is None and output is OutputMode.APPEND:
        raise StreamPlanError("output 'append' needs a window of event time: other groups never stop changing")
    if aggregate is None:
        windowed = windowed_in(built)
        if windowed is not None and output is OutputMode.UPDATE:
            raise StreamPlanError("a stream cannot read the rows of a window before it closes: they may still change")
        if windowed is not None:
            return _of_closed_windows(built, windowed, streams)
        return _of_rows(built, streams)
    if windows_of(aggregate) is not None and output is not OutputMode.UPDATE:
        return _of_closed_windows(built, aggregate, streams)
    if having is not None:
        computed = {call.output.name for call in aggregate.calls}
        groups = tuple(field for field in output_of(having) if field.name not in computed)
        turning = turning_part(having.condition, groups, aggregate.calls)
        if turning is not None:
            raise StreamPlanError(f"HAVING {turning} may become false again, and emitted rows are not removed")
    below = _with_distinct_rows(aggregate.input, streams)
    keyed = _keyed(replace(aggregate, input=below))
    obstacle = bitmap_obstacle(built, streams)
    if bitmaps.wanted and obstacle is None:
        return _in_bitmaps(built, select, keyed.aggregate, bitmaps.reason)
    shape, grouped, reason = _shaped(keyed.aggregate, streams, updates=True)
    ends = ends_of(select, having)
    if ends is not None:
        grouped = replace(ends, input=grouped)
        keyed = _Keyed(keyed.aggregate, (discriminated_by(ends, select), *keyed.keys[1:]))
    if shape in _DISTINCT_REASONS:
        reason = f"{reason} {'It keeps no bitmaps: ' + obstacle if obstacle else bitmaps.reason}".rstrip()
    above: Node = grouped if having is None else Filter(grouped, having.condition)
    shown = {item.expression.column: item.name for item in reversed(select.items)}
    hidden = tuple(
        Named(column(name, type_.type), fresh_name(f"$key{place}", names_of(select)))
        for place, (name, type_) in enumerate((key.name, key) for key in keyed.keys)
        if name not in shown
    )
    node = Project(above, (*select.items, *hidden))
    stored = {item.expression.column: item.name for item in hidden}
    keys = tuple(shown.get(key.name) or stored[key.name] for key in keyed.keys)
    check(node, "the stream planner")
    return StreamPlan(shape, built, node, reason, output_of(built), keys)


def bitmap_obstacle(built: Node, streams: frozenset[str]) -> str | None:
    """Why the distinct values of a query cannot be kept as bitmaps, as a sentence; None where they can."""
    select, having, aggregate = apart(built)
    if aggregate is None or _joins_of_streams(aggregate, streams):
        return "Only an aggregate over one stream keeps bitmaps."
    if windows_of(aggregate) is not None:
        return "The values of a window are forgotten with it."
    return stream_bitmap_obstacle(select, having, aggregate)


def _in_bitmaps(built: Node, select: Project, aggregate: Aggregate, reason: str) -> StreamPlan:
    state = bitmap_state(select, aggregate)
    check(state.node, "the stream planner")
    output = tuple(column_.field for column_ in state.final.output)
    return StreamPlan(Shape.BITMAP, built, state.node, reason, output, state.final.keys, state.final)


def _of_closed_windows(built: Node, aggregate: Aggregate, streams: frozenset[str]) -> StreamPlan:
    """Rows of windows that nothing changes any more, and whatever stands above them."""

    def shaped(node: Node) -> Node:
        if not is_streaming(node, streams):
            return node
        if isinstance(node, Aggregate) and windows_of(node) is not None:
            below = _with_distinct_rows(node.input, streams)
            return _shaped(replace(node, input=below), streams, updates=False)[1]
        return _distinct_rows(with_inputs(node, tuple(map(shaped, inputs_of(node)))), streams)

    node = shaped(built)
    check(node, "the stream planner", output_of(built))
    _check_joins(built, streams, updates=False)
    aggregate = replace(aggregate, input=_with_distinct_rows(aggregate.input, streams))
    shape, _, reason = _shaped(aggregate, streams, updates=False)
    reason += " A window comes out once, when no more rows are to come for it, and its state is dropped."
    told_apart = (below for part in walk_up(node) if isinstance(part, Deduplicate) for below in walk_up(part))
    if any(isinstance(below, Aggregate) and is_streaming(below, streams) for below in told_apart):
        reason = f"{reason} {_ROWS_REASONS[Shape.DISTINCT_ROWS]}"
    return StreamPlan(shape, built, node, reason, output_of(built), None)


def _of_rows(built: Node, streams: frozenset[str]) -> StreamPlan:
    """Rows that no aggregate reads."""
    joins = _check_joins(built, streams, updates=False)
    rows = _with_distinct_rows(built, streams)
    check(rows, "the stream planner")
    if any(isinstance(node, Deduplicate) for node in walk_up(rows)):
        shape = Shape.DISTINCT_ROWS
    else:
        shape = Shape.JOINED_ROWS if joins else Shape.ROWS
    reason = " ".join((*map(told_of, joins), *((_ROWS_REASONS[shape],) if shape in _ROWS_REASONS else ())))
    return StreamPlan(shape, built, rows, reason, output_of(built), None)


_ROWS_REASONS = {
    Shape.ROWS: "The query has no aggregate: every row comes out once, and no state is kept.",
    Shape.DISTINCT_ROWS: "Every different row is kept, so that it comes out once.",
}


@dataclass(frozen=True)
class _Keyed:
    """An aggregate and the columns that tell its groups apart."""

    aggregate: Aggregate
    keys: tuple[Field, ...]


def _keyed(aggregate: Aggregate) -> _Keyed:
    keys = output_of(aggregate)[: len(aggregate.keys)]
    if not aggregate.grouping_sets:
        return _Keyed(aggregate, keys)
    # A key that is NULL, and one outside of the grouping set, are told apart by it alone.
    name = fresh_name("$grouping", names_of(aggregate))
    told = Call(AggregateFunction.GROUPING_ID, (), Field(name, BIGINT))
    return _Keyed(replace(aggregate, calls=(*aggregate.calls, told)), (*keys, told.output))


def apart(built: Node) -> tuple[Project, Filter | None, Aggregate | None]:
    """SELECT, HAVING and the aggregate of a built query. Raises StreamPlanError for ORDER BY and LIMIT above them."""
    if not isinstance(built, Project):
        raise StreamPlanError("the top node of a query must be its SELECT")
    having: Filter | None = None
    below = built.input
    if isinstance(below, Filter) and isinstance(without_ends(below.input), Aggregate):
        having, below = below, below.input
    below = without_ends(below)
    if isinstance(below, Sort | Limit):
        raise StreamPlanError("ORDER BY and LIMIT need the whole result, and the result of a stream is never complete")
    if isinstance(below, Aggregate) and groups_rows(below):
        return built, having, below
    return built, None, None


def groups_rows(node: Aggregate) -> bool:
    """Whether it aggregates; one that groups without a call makes its rows distinct, and no more."""
    return bool(node.calls) or not node.keys or bool(node.grouping_sets)


def _with_distinct_rows(node: Node, streams: frozenset[str]) -> Node:
    """`node` with every SELECT DISTINCT over a stream told as such; raises for what cannot stand below."""
    if not is_streaming(node, streams):
        return node
    below = tuple(_with_distinct_rows(child, streams) for child in inputs_of(node))
    return _distinct_rows(with_inputs(node, below), streams)


def _distinct_rows(below: Node, streams: frozenset[str]) -> Node:
    """The same for a node whose inputs are done."""
    if isinstance(below, Aggregate):
        if groups_rows(below):
            raise StreamPlanError("a stream cannot read the result of an aggregate as rows: they may still change")
        _check_told_apart(tuple(key.expression for key in below.keys))
        keys = tuple(replace(key, expression=normalised(key.expression)) for key in below.keys)
        return Deduplicate(Project(below.input, keys))
    if isinstance(below, Sort | Limit | Exchange):
        raise StreamPlanError("ORDER BY and LIMIT need the whole result, and the result of a stream is never complete")
    if isinstance(below, Join) and not _keeps_streams(below, streams):
        raise StreamPlanError("the join keeps rows of a static table that have no match in the stream")
    if isinstance(below, Union) and not all(is_streaming(branch, streams) for branch in below.inputs):
        raise StreamPlanError("UNION ALL of a stream and a static table is not supported")
    return below


def is_streaming(node: Node, streams: frozenset[str]) -> bool:
    """Whether rows of `node` come from a stream."""
    return any(isinstance(part, Scan) and part.alias in streams for part in walk_up(node))


def _keeps_streams(join: Join, streams: frozenset[str]) -> bool:
    """Whether the rows that the join emits, or leaves out, for want of a partner are those of a stream."""
    left, right = (is_streaming(side, streams) for side in (join.left, join.right))
    if join.kind is JoinKind.FULL:
        return left and right
    if join.kind is JoinKind.RIGHT:
        return right
    return left or join.kind in {JoinKind.INNER, JoinKind.CROSS}


def _check_told_apart(values: tuple[Scalar, ...]) -> None:
    odd = next((value for value in values if value.type is not None and value.type.nests_fractions), None)
    if odd is not None:
        raise StreamPlanError(f"{odd} contains nested FLOAT or DOUBLE: a stream would distinguish 0.0 and -0.0")


def _shaped(node: Aggregate, streams: frozenset[str], *, updates: bool) -> tuple[Shape, Node, str]:
    growing = next((call for call in node.calls if call.function in _GROWING_VALUES), None)
    if growing is not None and windows_of(node) is None:
        raise StreamPlanError(f"{call_text(growing)} keeps every value of its group")
    joins = _joins_of_streams(node, streams)
    if joins:
        joined = _in_one_state(node, joins)
        if isinstance(joined, str) and joins[0].within is None:
            raise StreamPlanError(joined)
        if not isinstance(joined, str):
            return Shape.JOINED, joined, _JOINED_REASON
    told = "".join(f"{told_of(join)} " for join in _check_joins(node, streams, updates=updates))
    if not any(is_distinct(call) for call in node.calls):
        return (
            Shape.PLAIN,
            node,
            f"{told}Spark keeps a row for each group, and aggregates a mini-batch before it touches them.",
        )
    if node.grouping_sets:
        raise StreamPlanError("DISTINCT with several grouping sets would need a state for each set")
    sets = tuple(argument for call in node.calls if is_distinct(call) for argument in call.arguments)
    _check_told_apart((*(key.expression for key in node.keys), *sets))
    fields = output_of(node)
    keys = fields[: len(node.keys)]
    rows = Contribution(node.input, tuple(key.expression for key in node.keys), node.calls)
    made = _as_one_state(lambda: united_aggregate(keys, (rows,), names_of(node) | names_of(node.input)))
    shape = Shape.DISTINCT if all(is_distinct(call) for call in node.calls) else Shape.UNITED
    return shape, made, told + _DISTINCT_REASONS[shape]


_GROWING_VALUES = frozenset({AggregateFunction.LISTAGG, AggregateFunction.PERCENTILE})
"""Calls whose state is all values of a group."""

_DISTINCT_REASONS = {
    Shape.DISTINCT: "Spark refuses DISTINCT on a stream: the values of each group are told apart in a state that is "
    "spread by group and value, and counted by group behind it.",
    Shape.UNITED: "Spark refuses DISTINCT on a stream: the values of each group are told apart in a state that is "
    "spread by group and value, united with the rows of the plain calls, and both are aggregated by group at once.",
}


_JOINED_REASON = (
    "Both streams are united and aggregated by the join's key at once: no row of either is kept for the other."
)


def _in_one_state(node: Aggregate, joins: tuple[Join, ...]) -> Node | str:
    """The aggregate over `joins` as one over both streams, without a join; as a sentence, why it is none."""
    if len(joins) > 1 or windows_of(node) is not None or _grouped_rows(node) is not joins[0]:
        return "two streams are joined, but not directly below the aggregate"
    # Late rows correct their groups, and none is left out.
    bare = without_watermarks(node)
    if not isinstance(bare, Aggregate):
        raise TypeError(f"{bare} is no aggregate")
    obstacle = stream_join_obstacle(bare)
    if obstacle is not None:
        return f"two streams are joined and then aggregated, which cannot be kept in one state: {obstacle}"
    return _as_one_state(lambda: over_both_streams(bare))


def _check_joins(node: Node, streams: frozenset[str], *, updates: bool) -> tuple[Join, ...]:
    """The joins of streams below, one at most, whose rows Spark is to join; raises where it cannot."""
    joins = _joins_of_streams(node, streams)
    obstacle = (
        bounded_join_obstacle(joins, lambda part: is_streaming(part, streams), updates=updates) if joins else None
    )
    if obstacle is not None:
        raise StreamPlanError(obstacle)
    return joins


def _grouped_rows(node: Aggregate) -> Node:
    """What it groups, filters and projections aside."""
    below = node.input
    while isinstance(below, Filter | Project):
        below = below.input
    return below


def _as_one_state(unite: Callable[[], Made]) -> Made:
    try:
        return unite()
    except ValueError as error:
        raise StreamPlanError(f"the aggregate cannot be kept in one state: {error}") from None


def _joins_of_streams(node: Node, streams: frozenset[str]) -> tuple[Join, ...]:
    return tuple(
        part
        for part in walk_up(node)
        if isinstance(part, Join) and all(is_streaming(side, streams) for side in (part.left, part.right))
    )
