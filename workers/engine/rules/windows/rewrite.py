"""Rewrites of calls with OVER that compute hot partitions in parts. `costs.py` decides which calls get which.

`in_ranges` splits hot partitions of running calls by ranges of the order column, and adds the carry of each range.
`joined_back` computes aggregates over whole partitions with GROUP BY and joins them with the rows. Both read the input
a second time for the aggregates, which are small: a row per range, or per partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.nodes import Expression, Frame, FrameBound, Number, OrderKey, Over
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.aggregates import result_type
from service.sql.types.data_types import BOOLEAN, INT, DataType, Field
from workers.engine.plan.expressions import compose
from workers.engine.plan.nodes import (
    UNKNOWN,
    Aggregate,
    Call,
    Exchange,
    Filter,
    Join,
    Named,
    Node,
    Phases,
    Project,
    Union,
    WindowFunctions,
    names_of,
    output_of,
)
from workers.engine.rules.joins.skew_rewrite import is_one_of, unchanged_columns
from workers.engine.rules.windows.neighbours import (
    BROADCAST,
    OffsetCall,
    Ranges,
    Side,
    order_of,
    place_items,
    sides_of,
    value_of,
    with_neighbours,
)
from workers.engine.rules.windows.new_columns import NewNames, field_of, named, with_item
from workers.engine.rules.windows.running import START, CallGroup, Part, RunningCall, over_of
from workers.engine.statistics.model import OrderedKey

_NO_RANGE = compose("CAST(NULL AS INT)", (), INT)
_BEFORE = FrameBound("PRECEDING", Number("1"))


@dataclass(frozen=True)
class InRanges:
    """Hot partitions of `group` are split at the boundaries of `keys`. The rows are sent to `tasks` tasks."""

    group: CallGroup
    keys: tuple[OrderedKey, ...]
    tasks: int


@dataclass(frozen=True)
class JoinedBack:
    """Aggregates of `group` are joined back: for the partitions in `hot`, a literal per key; for all if it is empty."""

    group: CallGroup
    hot: tuple[tuple[Scalar, ...], ...] = ()


WindowPlan = InRanges | JoinedBack
"""What is done with one group of calls."""


def split_windows(node: WindowFunctions, plans: tuple[WindowPlan, ...], others: tuple[Named, ...]) -> Node:
    """Returns the calls of `node`, with the groups of `plans` computed in parts, and `others`, the rest, by Spark.

    A plan with hot keys that are joined back reads its rows twice, so at most one may have them; it runs first.
    """
    rows, taken = node.input, NewNames(names_of(node))
    for plan in sorted(plans, key=lambda one: not (isinstance(one, JoinedBack) and one.hot)):
        if isinstance(plan, InRanges):
            rows = in_ranges(rows, node.input, plan, taken)
        elif plan.hot:
            rows = _hot_joined_back(rows, plan, taken)
        else:
            rows = joined_back(rows, node.input, plan.group, taken)
    if others:
        rows = WindowFunctions(rows, others)
    if isinstance(rows, Project) and output_of(rows) == output_of(node):
        return replace(rows, replaces=node)
    return Project(rows, unchanged_columns(output_of(node)), replaces=node)


# Running calls


def in_ranges(rows: Node, source: Node, plan: InRanges, names: NewNames) -> Node:
    """Returns `rows` followed by the calls of the plan's group. `source` has the same rows with fewer columns."""
    group = plan.group
    stride = max(len(key.boundaries) for key in plan.keys) + 3
    part, number = names.new("part", INT), names.new("range", INT)
    ranged = named(_part_of(group, plan.keys, stride, source), part)
    own = [
        [names.new("own", type_) for type_ in _own_types(call, running)]
        for call, running in zip(group.calls, group.running, strict=True)
    ]
    carries = [[names.new("carry", each.type) for each in _parts(one)] for one in group.running]
    offsets = [one for one in group.running if isinstance(one, OffsetCall)]
    sides = sides_of(offsets, names) if offsets else ()
    ranges = Ranges(with_item(source, ranged), part, stride, order_of(group.order_by, offsets))
    made: Node = Exchange(with_item(rows, ranged), (*group.partition_by, part), plan.tasks)
    for items in (_offset_items(group, ranges, own, sides), _running_items(group, part, own)):
        # In this order: a window in the order of the first one does not sort again.
        made = WindowFunctions(made, items) if items else made
    if any(map(len, carries)):
        totals = _carries(group, ranges, number, carries, names)
        made = Join(made, totals, JoinKind.LEFT, ((part, number),), strategy=BROADCAST)
    for side in sides:
        made = with_neighbours(made, side, ranges, names)
    results = (
        _result(call, one, (*ours, *theirs), sides)
        for call, one, ours, theirs in zip(group.calls, group.running, own, carries, strict=True)
    )
    return Project(made, (*unchanged_columns(output_of(rows)), *results))


def _parts(running: RunningCall | OffsetCall) -> tuple[Part, ...]:
    return running.parts if isinstance(running, RunningCall) else ()


def _own_types(call: Named, running: RunningCall | OffsetCall) -> tuple[DataType, ...]:
    if isinstance(running, OffsetCall):
        return (call.expression.type or UNKNOWN,)
    return tuple(part.type for part in running.parts)


def _running_items(group: CallGroup, part: Scalar, own: list[list[Scalar]]) -> tuple[Named, ...]:
    return tuple(
        named(Scalar(_in_range(over_of(call), part, each.function, each.arguments), each.type), name)
        for call, running, columns in zip(group.calls, group.running, own, strict=True)
        if isinstance(running, RunningCall)
        for each, name in zip(running.parts, columns, strict=True)
    )


def _offset_items(
    group: CallGroup, ranges: Ranges, own: list[list[Scalar]], sides: tuple[Side, ...]
) -> tuple[Named, ...]:
    found = []
    for call, running, columns in zip(group.calls, group.running, own, strict=True):
        if isinstance(running, OffsetCall):
            over = over_of(call)
            in_range = _in_range(over, ranges.part, over.function, over.arguments)
            in_range = replace(in_range, order_by=ranges.order)
            found.append((named(Scalar(in_range, call.expression.type), columns[0]), in_range))
    return (*(item for item, _ in found), *place_items(sides, found[0][1])) if found else ()


def _result(
    call: Named, running: RunningCall | OffsetCall, columns: tuple[Scalar, ...], sides: tuple[Side, ...]
) -> Named:
    type_ = call.expression.type or UNKNOWN
    if isinstance(running, RunningCall):
        return Named(compose(running.result, columns, call.expression.type), call.name)
    side = next(side for side in sides if side.is_before is running.is_before)
    return Named(value_of(running, columns[0], side, type_), call.name)


def _in_range(over: Over, part: Scalar, function: str, arguments: tuple[Expression, ...]) -> Over:
    return replace(over, function=function, arguments=arguments, partition_by=(*over.partition_by, part.tree), at=None)


def _part_of(group: CallGroup, keys: Iterable[OrderedKey], stride: int, source: Node) -> Scalar:
    """Returns the number of a row's range: ascending in the order of the window, NULL if its partition is not hot.

    Each hot partition has `stride` numbers, the first and the last of them for NULL.
    """
    types = {field.name: field.type for field in output_of(source)}
    order = column(group.order_column, types[group.order_column])
    first = group.order_by[0]
    found = _NO_RANGE
    for place, key in reversed(list(enumerate(keys))):
        base, last = place * stride, (place + 1) * stride - 1
        numbers = range(base + 1, base + 2 + len(key.boundaries))
        ascending = tuple(reversed(numbers)) if first.descending else tuple(numbers)
        own = compose(
            "IF({0} IS NULL, {1}, {2})",
            (order, _number(base if first.nulls_first else last), _search(order, key.boundaries, ascending)),
            INT,
        )
        if not group.partition_by:
            return own
        found = compose("IF({0}, {1}, {2})", (is_one_of(group.partition_by, (key.literals,)), own, found), INT)
    return found


def _search(order: Scalar, boundaries: tuple[Scalar, ...], numbers: tuple[int, ...]) -> Scalar:
    """Returns a binary search: the number at the place of the last boundary that is not above `order`."""
    if not boundaries:
        return _number(numbers[0])
    middle = len(boundaries) // 2
    below = _search(order, boundaries[:middle], numbers[: middle + 1])
    above = _search(order, boundaries[middle + 1 :], numbers[middle + 1 :])
    return compose("IF({0} < {1}, {2}, {3})", (order, boundaries[middle], below, above), INT)


def _number(value: int) -> Scalar:
    return Scalar(Number(str(value)), INT)


def _carries(group: CallGroup, ranges: Ranges, number: Scalar, carries: list[list[Scalar]], names: NewNames) -> Node:
    """Returns a row for each range of a hot partition: its number, and the carry of each part of the calls."""
    totals: list[Call] = []
    merged: list[Named] = []
    shown: list[Named] = []
    partition = compose(f"{{0}} DIV {ranges.stride}", (number,), None).tree
    for call, running, columns in zip(group.calls, group.running, carries, strict=True):
        for each, carry in zip(_parts(running), columns, strict=True):
            total, before = names.new("total", each.total_type), names.new("before", UNKNOWN)
            condition = over_of(call).filter
            arguments = tuple(Scalar(argument, None) for argument in each.distinct or each.arguments)
            where = None if condition is None else Scalar(condition, BOOLEAN)
            totals.append(Call(each.total, arguments, field_of(total), bool(each.distinct), filter=where))
            frame = Frame("ROWS", START, _BEFORE)
            over = Over(each.merge.value, (total.tree,), (partition,), (OrderKey(number.tree),), frame)
            type_ = result_type(each.merge, each.total_type)
            merged.append(named(Scalar(over, type_), before))
            shown.append(named(compose(f"CAST({{0}} AS {each.type})", (before,), each.type), carry))
    for_ranges = Aggregate(
        Filter(ranges.source, compose("({0}) IS NOT NULL", (ranges.part,), BOOLEAN)),
        (named(ranges.part, number),),
        tuple(totals),
        phases=Phases.TWO_PHASE,
    )
    return Project(WindowFunctions(for_ranges, tuple(merged)), (named(number, number), *shown))


# Aggregates over whole partitions


def joined_back(rows: Node, source: Node, group: CallGroup, names: NewNames) -> Node:
    """Returns `rows` followed by the calls of `group`, computed by GROUP BY from `source`, which has the same rows."""
    keys = tuple(names.new("key", key.type or UNKNOWN) for key in group.partition_by)
    calls = tuple(
        Call(
            AggregateFunction(over_of(call).function),
            tuple(Scalar(argument, None) for argument in over_of(call).arguments),
            Field(call.name, call.expression.type or UNKNOWN),
            filter=None if (condition := over_of(call).filter) is None else Scalar(condition, BOOLEAN),
        )
        for call in group.calls
    )
    grouped = Aggregate(
        source,
        tuple(named(key, name) for key, name in zip(group.partition_by, keys, strict=True)),
        calls,
        phases=Phases.TWO_PHASE,
    )
    pairs = tuple(zip(group.partition_by, keys, strict=True))
    kind = JoinKind.LEFT if pairs else JoinKind.CROSS
    joined = Join(rows, grouped, kind, pairs, null_safe=bool(pairs), strategy=BROADCAST)
    fields = (*output_of(rows), *(call.output for call in calls))
    return Project(joined, unchanged_columns(fields))


def _hot_joined_back(rows: Node, plan: JoinedBack, names: NewNames) -> Node:
    """Returns `rows` followed by the calls: for the hot partitions, joined back, for all others by Spark's window."""
    is_hot = is_one_of(plan.group.partition_by, plan.hot)
    hot = Filter(rows, is_hot)
    others = WindowFunctions(Filter(rows, compose("NOT ({0})", (is_hot,), BOOLEAN)), plan.group.calls)
    return Union((others, joined_back(hot, hot, plan.group, names)))
