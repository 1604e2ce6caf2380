"""Plans a query over streams: what its state contains and what it emits.

A streaming query can aggregate once. In update mode it emits the groups that a mini-batch changed; groups of windows of
event time can also be appended once, when they are closed. `stream_plan` splits a query into what is above its
aggregate (SELECT, HAVING), the aggregate, and the rows below; then it changes the aggregate to one of the shapes that
one state can hold (`Shape`).
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
from service.sql.types.aggregates import COUNTS_NULLS, KEEPS_VALUES, FinalLevel
from service.sql.types.data_types import BIGINT, Field
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
    MultisetOperation,
    Named,
    Node,
    Project,
    Recursion,
    Scan,
    Sort,
    Union,
    WindowFunctions,
    Windows,
    inputs_of,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.plan.validation import check
from workers.engine.streaming.changes.plan import FORM, plan_changes
from workers.engine.streaming.changes.steps import ChangePlan, ChangesPlanError
from workers.engine.streaming.stream_aggregates import (
    Contribution,
    bitmap_state,
    normalised,
    stream_bitmap_obstacle,
    united_aggregate,
)
from workers.engine.streaming.stream_joins import (
    aggregate_in_one_state,
    join_text,
    joined_rows_refusal,
    one_state_refusal,
)

_JOINED_REASON = (
    "Both streams are united and aggregated by the join key together: no row of either stream is kept for the join."
)

_ORDERED = "ORDER BY and LIMIT need the complete result, and a stream has no end"

Made = TypeVar("Made")


class Shape(StrEnum):
    """What the state of a streaming query contains. Layouts of states are stored with these values."""

    ROWS = "rows"
    """Nothing: every row is emitted as it is."""
    DISTINCT_ROWS = "distinct_rows"
    """Every distinct row, which is emitted once."""
    PLAIN = "plain"
    """A row for each group."""
    DISTINCT = "distinct"
    """The distinct values of each group, and a row for each group with their aggregates."""
    UNITED = "united"
    """The same, with several sets of values or with other aggregates in the same row."""
    BITMAP = "bitmap"
    """A row for each block of 32,768 neighbouring distinct values of each group, with all aggregates of the group."""
    JOINED = "joined"
    """A row for each key of two joined streams, and the distinct values of each stream."""
    JOINED_ROWS = "joined_rows"
    """The rows of two joined streams, as long as they may have matches."""
    CHANGES = "changes"
    """The rows of each operator that changes need (`workers.engine.streaming.changes`)."""


_DISTINCT_REASONS = {
    Shape.DISTINCT: "Spark does not support DISTINCT on a stream: a state that is partitioned by group and value "
    "deduplicates the values of each group, and a second state counts them by group.",
    Shape.UNITED: "Spark does not support DISTINCT on a stream: a state that is partitioned by group and value "
    "deduplicates the values of each group; they are united with the rows of the other aggregates, and both are "
    "aggregated by group together.",
}


_ROWS_REASONS = {
    Shape.ROWS: "The query has no aggregate: every row is emitted once, and there is no state.",
    Shape.DISTINCT_ROWS: "Every distinct row is kept, so that it is emitted once.",
}


@dataclass(frozen=True)
class Bitmaps:
    """Whether distinct integers are to be kept as bitmaps if that is possible, and why, as a sentence."""

    wanted: bool
    reason: str


NO_BITMAPS = Bitmaps(False, "")


class StreamPlanError(Exception):
    """A stream cannot run the query. Submission refuses such queries, so only jobs of earlier versions have them."""

    code = "not_for_streams"


@dataclass(frozen=True)
class StreamPlan:
    """`node` runs over each mini-batch. It emits `output`, which readers see, then the columns that identify groups and
    that SELECT does not have. Rows with equal `keys` replace each other; None if rows are only added.

    With `changes`, these emit the rows, and `node` is the query.
    """

    shape: Shape
    before: Node
    node: Node
    reason: str
    output: tuple[Field, ...]
    keys: tuple[str, ...] | None
    final: FinalLevel | None = None
    changes: ChangePlan | None = None

    @property
    def weight(self) -> str | None:
        """The column with the number of equal rows; None if there is one of each."""
        return None if self.changes is None else self.changes.weight

    @property
    def columns(self) -> tuple[Field, ...]:
        """The columns that it emits."""
        return output_of(self.node if self.changes is None else self.changes.node)


def stream_plan(
    built: Node, streams: frozenset[str], bitmaps: Bitmaps = NO_BITMAPS, output: OutputMode | None = None
) -> StreamPlan:
    """Returns the plan of a built query. `streams` are the aliases of streams. Without an `output`, windows are
    appended once they are closed, and other groups are updated. Raises StreamPlanError.
    """
    if not is_streaming(built, streams):
        raise StreamPlanError("the query reads no stream")
    if any(isinstance(node, Recursion) for node in walk_up(built)):
        raise StreamPlanError("each step of a recursive query needs all rows of the one before")
    select, having, aggregate = split_query(built)
    if aggregate is not None and windows_of(aggregate) is None and output is OutputMode.APPEND:
        raise StreamPlanError("output 'append' needs a window of event time, since other groups never stop changing")
    if aggregate is None:
        windowed = windowed_aggregate(built)
        if windowed is not None and output is OutputMode.UPDATE:
            raise StreamPlanError("a stream cannot read the rows of a window that is not closed: they may still change")
        if windowed is not None:
            return _closed_windows_plan(built, windowed, streams)
        return _rows_plan(built, streams)
    if windows_of(aggregate) is not None and output is not OutputMode.UPDATE:
        return _closed_windows_plan(built, aggregate, streams)
    if having is not None:
        computed = {call.output.name for call in aggregate.calls}
        groups = tuple(field for field in output_of(having) if field.name not in computed)
        turning = turning_part(having.condition, groups, aggregate.calls)
        if turning is not None:
            raise StreamPlanError(f"HAVING {turning} may become false again, and emitted rows are not removed")
    aggregate = replace(aggregate, input=_with_deduplication(aggregate.input, streams))
    aggregate, key_fields = _with_grouping_id(aggregate)
    obstacle = bitmap_obstacle(built, streams)
    if bitmaps.wanted and obstacle is None:
        return _bitmap_plan(built, select, aggregate, bitmaps.reason)
    shape, grouped, reason = _shaped(aggregate, streams, updates=True)
    bounds = _window_bounds(select, having)
    if bounds is not None:
        grouped = replace(bounds, input=grouped)
        key_fields = (_window_key(bounds, select), *key_fields[1:])
    if shape in _DISTINCT_REASONS:
        reason = f"{reason} {f'Bitmaps are not possible: {obstacle}' if obstacle else bitmaps.reason}".rstrip()
    above: Node = grouped if having is None else Filter(grouped, having.condition)
    shown = {item.expression.column: item.name for item in reversed(select.items)}
    hidden = {
        key.name: Named(column(key.name, key.type), fresh_name(f"$key{place}", names_of(select)))
        for place, key in enumerate(key_fields)
        if key.name not in shown
    }
    node = Project(above, (*select.items, *hidden.values()))
    keys = tuple(shown.get(key.name) or hidden[key.name].name for key in key_fields)
    check(node, "the stream planner")
    return StreamPlan(shape, built, node, reason, output_of(built), keys)


def changes_plan(
    built: Node,
    streams: frozenset[str],
    why: str,
    removing: frozenset[str] = frozenset(),
    form: int = FORM,
    *,
    is_log: bool = False,
) -> StreamPlan:
    """Returns the plan of a built query by changes; `why` is the reason why no other plan is used. Streams with the
    aliases `removing` have rows that are removed; `form` is that of an existing state; `is_log` is as in
    `plan_changes`. Raises StreamPlanError.
    """
    try:
        changes = plan_changes(built, streams, removing, form, is_log=is_log)
    except ChangesPlanError as error:
        raise StreamPlanError(str(error)) from None
    steps = " ".join(changes.texts)
    reason = f"The result is computed by changes, since {why}. {steps}".rstrip()
    return StreamPlan(
        Shape.CHANGES, built, without_watermarks(built), reason, changes.output, changes.keys, changes=changes
    )


def split_query(built: Node) -> tuple[Project, Filter | None, Aggregate | None]:
    """Returns SELECT, HAVING and the aggregate of a built query. Raises StreamPlanError for ORDER BY and LIMIT above
    them.
    """
    if not isinstance(built, Project):
        raise StreamPlanError("the top node of a query must be its SELECT")
    having: Filter | None = None
    below = built.input
    if isinstance(below, Filter) and isinstance(_without_bounds(below.input), Aggregate):
        having, below = below, below.input
    below = _without_bounds(below)
    if isinstance(below, Sort | Limit | WindowFunctions):
        raise StreamPlanError(_ORDERED)
    if isinstance(below, Aggregate) and groups_rows(below):
        return built, having, below
    return built, None, None


def groups_rows(node: Aggregate) -> bool:
    """Whether it aggregates; one with group keys and no call only removes duplicate rows."""
    return bool(node.calls) or not node.keys or bool(node.grouping_sets)


def is_streaming(node: Node, streams: frozenset[str]) -> bool:
    """Whether rows of `node` come from a stream."""
    return any(isinstance(part, Scan) and part.alias in streams for part in walk_up(node))


def bitmap_obstacle(built: Node, streams: frozenset[str]) -> str | None:
    """Returns a sentence that says why the distinct values of a query cannot be kept as bitmaps; None if they can."""
    select, having, aggregate = split_query(built)
    if aggregate is None or _joins_of_streams(aggregate, streams):
        return "Only an aggregate over one stream can use bitmaps."
    if windows_of(aggregate) is not None:
        return "The state of a window is removed when the window is closed."
    return stream_bitmap_obstacle(select, having, aggregate)


# Windows of event time


def windows_of(node: Aggregate) -> Windows | None:
    """Returns the windows that `node` groups by; None if it groups by none."""
    below = node.input
    grouped = isinstance(below, Windows) and any(key.expression.column == below.name for key in node.keys)
    return below if isinstance(below, Windows) and grouped else None


def windowed_aggregate(node: Node) -> Aggregate | None:
    """Returns an aggregate by windows in `node`, if there is one."""
    found = (part for part in walk_up(node) if isinstance(part, Aggregate) and windows_of(part) is not None)
    return next(found, None)


def _without_bounds(node: Node) -> Node:
    """Returns the aggregate by windows below `node` if `node` replaces windows by their start and end; else `node`."""
    over = node.input if isinstance(node, Project) else None
    return over if isinstance(over, Aggregate) and windows_of(over) is not None else node


def _window_bounds(select: Project, having: Filter | None) -> Project | None:
    """Returns the projection below SELECT and HAVING that replaces windows by their start and end, if there is one."""
    below = select.input if having is None else having.input
    return below if isinstance(below, Project) and _without_bounds(below) is not below else None


def _window_key(bounds: Project, select: Project) -> Field:
    """Returns the column that identifies windows: their start or their end, preferably one that SELECT has."""
    start, end = output_of(bounds)[:2]
    shown = {item.expression.column for item in select.items}
    return end if end.name in shown and start.name not in shown else start


# The plans of each kind of query


def _bitmap_plan(built: Node, select: Project, aggregate: Aggregate, reason: str) -> StreamPlan:
    state = bitmap_state(select, aggregate)
    check(state.node, "the stream planner")
    output = tuple(column_.field for column_ in state.final.output)
    return StreamPlan(Shape.BITMAP, built, state.node, reason, output, state.final.keys, state.final)


def _closed_windows_plan(built: Node, aggregate: Aggregate, streams: frozenset[str]) -> StreamPlan:
    """Returns a plan that emits windows once they are closed; any operation may be above them."""

    def shaped(node: Node) -> Node:
        if not is_streaming(node, streams):
            return node
        if isinstance(node, Aggregate) and windows_of(node) is not None:
            below = _with_deduplication(node.input, streams)
            return _shaped(replace(node, input=below), streams, updates=False)[1]
        return _deduplicated(with_inputs(node, tuple(map(shaped, inputs_of(node)))), streams)

    node = shaped(built)
    check(node, "the stream planner", output_of(built))
    _check_joined_rows(built, streams, updates=False)
    aggregate = replace(aggregate, input=_with_deduplication(aggregate.input, streams))
    shape, _, reason = _shaped(aggregate, streams, updates=False)
    reason += " A window is emitted once, when it is closed, and its state is removed."
    below = (below for part in walk_up(node) if isinstance(part, Deduplicate) for below in walk_up(part))
    if any(isinstance(part, Aggregate) and is_streaming(part, streams) for part in below):
        reason = f"{reason} {_ROWS_REASONS[Shape.DISTINCT_ROWS]}"
    return StreamPlan(shape, built, node, reason, output_of(built), None)


def _rows_plan(built: Node, streams: frozenset[str]) -> StreamPlan:
    """Returns the plan of a query without an aggregate."""
    joins = _check_joined_rows(built, streams, updates=False)
    rows = _with_deduplication(built, streams)
    check(rows, "the stream planner")
    if any(isinstance(node, Deduplicate) for node in walk_up(rows)):
        shape = Shape.DISTINCT_ROWS
    else:
        shape = Shape.JOINED_ROWS if joins else Shape.ROWS
    reason = " ".join((*map(join_text, joins), *((_ROWS_REASONS[shape],) if shape in _ROWS_REASONS else ())))
    return StreamPlan(shape, built, rows, reason, output_of(built), None)


# Aggregates


def _with_grouping_id(aggregate: Aggregate) -> tuple[Aggregate, tuple[Field, ...]]:
    """Returns the aggregate, and the columns that identify its groups. With grouping sets, one of them is an added
    GROUPING_ID: only that distinguishes a NULL key from a key outside of the grouping set.
    """
    keys = output_of(aggregate)[: len(aggregate.keys)]
    if not aggregate.grouping_sets:
        return aggregate, keys
    name = fresh_name("$grouping", names_of(aggregate))
    grouping_id = Call(AggregateFunction.GROUPING_ID, (), Field(name, BIGINT))
    return replace(aggregate, calls=(*aggregate.calls, grouping_id)), (*keys, grouping_id.output)


def _shaped(node: Aggregate, streams: frozenset[str], *, updates: bool) -> tuple[Shape, Node, str]:
    """Returns the shape of an aggregate, the plan of that shape, and the reason. `updates`: it emits changed groups."""
    growing = next((call for call in node.calls if call.function in KEEPS_VALUES), None)
    if growing is not None and windows_of(node) is None:
        raise StreamPlanError(f"{call_text(growing)} keeps every value of its group")
    if any(call.function in COUNTS_NULLS for call in node.calls):
        raise StreamPlanError("an aggregate counts NULLs")
    joins = _joins_of_streams(node, streams)
    if joins:
        joined = _in_one_state(node, joins)
        if not isinstance(joined, str):
            return Shape.JOINED, joined, _JOINED_REASON
        if joins[0].within is None:
            raise StreamPlanError(joined)
    prefix = "".join(f"{join_text(join)} " for join in _check_joined_rows(node, streams, updates=updates))
    if not any(is_distinct(call) for call in node.calls):
        reason = f"{prefix}Spark keeps a row for each group, and aggregates each mini-batch before it updates them."
        return Shape.PLAIN, node, reason
    if node.grouping_sets:
        raise StreamPlanError("DISTINCT with several grouping sets would need a state for each set")
    values = tuple(argument for call in node.calls if is_distinct(call) for argument in call.arguments)
    _check_comparable((*(key.expression for key in node.keys), *values))
    fields = output_of(node)
    keys = fields[: len(node.keys)]
    rows = Contribution(node.input, tuple(key.expression for key in node.keys), node.calls)
    united = _as_one_state(lambda: united_aggregate(keys, (rows,), names_of(node) | names_of(node.input)))
    shape = Shape.DISTINCT if all(is_distinct(call) for call in node.calls) else Shape.UNITED
    return shape, united, prefix + _DISTINCT_REASONS[shape]


def _as_one_state(unite: Callable[[], Made]) -> Made:
    try:
        return unite()
    except ValueError as error:
        raise StreamPlanError(f"the aggregate cannot be computed in one state: {error}") from None


# Rows below aggregates


def _with_deduplication(node: Node, streams: frozenset[str]) -> Node:
    """Returns `node` with a Deduplicate for every SELECT DISTINCT over a stream. Raises StreamPlanError for other
    nodes that are not supported below an aggregate.
    """
    if not is_streaming(node, streams):
        return node
    below = tuple(_with_deduplication(child, streams) for child in inputs_of(node))
    return _deduplicated(with_inputs(node, below), streams)


def _deduplicated(node: Node, streams: frozenset[str]) -> Node:
    """Does the same for one node, without its inputs."""
    if isinstance(node, Aggregate):
        if groups_rows(node):
            raise StreamPlanError("a stream cannot read the result of an aggregate as rows: they may still change")
        _check_comparable(tuple(key.expression for key in node.keys))
        keys = tuple(replace(key, expression=normalised(key.expression)) for key in node.keys)
        return Deduplicate(Project(node.input, keys))
    if isinstance(node, Sort | Limit | Exchange | WindowFunctions | MultisetOperation):
        raise StreamPlanError(_ORDERED)
    if isinstance(node, Join) and not _keeps_streams(node, streams):
        raise StreamPlanError("the join keeps rows of a static table that have no match in the stream")
    if isinstance(node, Union) and not all(is_streaming(branch, streams) for branch in node.inputs):
        raise StreamPlanError("UNION ALL of a stream and a static table is not supported")
    return node


def _keeps_streams(join: Join, streams: frozenset[str]) -> bool:
    """Whether the sides whose unmatched rows affect the join's result are streams."""
    left, right = (is_streaming(side, streams) for side in (join.left, join.right))
    if join.kind is JoinKind.FULL:
        return left and right
    if join.kind is JoinKind.RIGHT:
        return right
    return left or join.kind in {JoinKind.INNER, JoinKind.CROSS}


def _check_comparable(values: tuple[Scalar, ...]) -> None:
    nested = next((value for value in values if value.type is not None and value.type.nests_fractions), None)
    if nested is not None:
        raise StreamPlanError(f"{nested} contains nested FLOAT or DOUBLE: a stream would distinguish 0.0 and -0.0")


# Joins of streams


def _joins_of_streams(node: Node, streams: frozenset[str]) -> tuple[Join, ...]:
    return tuple(
        part
        for part in walk_up(node)
        if isinstance(part, Join) and all(is_streaming(side, streams) for side in (part.left, part.right))
    )


def _in_one_state(node: Aggregate, joins: tuple[Join, ...]) -> Node | str:
    """Returns the aggregate over `joins` as one aggregate over both streams, without a join, or why that is not
    possible.
    """
    below = node.input
    while isinstance(below, Filter | Project):
        below = below.input
    if len(joins) > 1 or windows_of(node) is not None or below is not joins[0]:
        return "two streams are joined, but not directly below the aggregate"
    # Without watermarks no late row is dropped: it corrects its group.
    bare = without_watermarks(node)
    if not isinstance(bare, Aggregate):
        raise TypeError(f"{bare} is not an aggregate")
    refusal = one_state_refusal(bare)
    if refusal is not None:
        return f"the aggregate of two joined streams cannot be computed in one state: {refusal}"
    return _as_one_state(lambda: aggregate_in_one_state(bare))


def _check_joined_rows(node: Node, streams: frozenset[str], *, updates: bool) -> tuple[Join, ...]:
    """Returns the joins of streams in `node`, at most one, whose rows Spark must join. Raises StreamPlanError if it
    cannot.
    """
    joins = _joins_of_streams(node, streams)
    refusal = joined_rows_refusal(joins, lambda part: is_streaming(part, streams), updates=updates) if joins else None
    if refusal is not None:
        raise StreamPlanError(refusal)
    return joins
