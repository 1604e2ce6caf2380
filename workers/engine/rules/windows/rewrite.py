"""Rewrites of calls with OVER that compute hot partitions in parts. `costs.py` decides which calls get which.

`in_ranges` splits hot partitions of running calls by ranges of the order column, and adds the carry of each range.
`joined_back` computes aggregates over whole partitions with GROUP BY and joins them with the rows. Both read the input
a second time for the aggregates, which are small: a row per range, or per partition.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.nodes import Expression, Frame, FrameBound, Number, OrderKey, Over
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.aggregates import result_type
from service.sql.types.data_types import BOOLEAN, INT, DataType, Field, known
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.nodes import (
    UNKNOWN,
    Aggregate,
    Call,
    Exchange,
    Filter,
    Join,
    JoinStrategy,
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
from workers.engine.rules.windows.running import START, CallGroup, over_of
from workers.engine.statistics.model import OrderedKey

BROADCAST = JoinStrategy(JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT, JoinSkew.NONE)
"""How rows are joined with the aggregates, which are few."""

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
    rows, taken = node.input, _Names(names_of(node))
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


class _Names:
    """Names that no column has."""

    def __init__(self, taken: frozenset[str]) -> None:
        self._taken = taken

    def new(self, stem: str, type_: DataType) -> Scalar:
        """Returns a column with a new name."""
        number = 0
        while f"${stem}{number}" in self._taken:
            number += 1
        name = fresh_name(f"${stem}{number}", self._taken)
        self._taken |= {name}
        return column(name, known(type_))


def _named(scalar: Scalar, name: Scalar) -> Named:
    return Named(scalar, name.columns[0])


def _field(name: Scalar) -> Field:
    return Field(name.columns[0], name.type or UNKNOWN)


# Running calls


def in_ranges(rows: Node, source: Node, plan: InRanges, names: _Names) -> Node:
    """Returns `rows` followed by the calls of the plan's group. `source` has the same rows with fewer columns."""
    group = plan.group
    stride = max(len(key.boundaries) for key in plan.keys) + 3
    part, number = names.new("part", INT), names.new("range", INT)
    ranged = _part_of(group, plan.keys, stride, source)
    own = [[names.new("own", each.type) for each in call.parts] for call in group.running]
    carries = [[names.new("carry", each.type) for each in call.parts] for call in group.running]
    local = tuple(
        _named(Scalar(_in_range(over_of(call), part, each.function, each.arguments), each.type), name)
        for call, running, columns in zip(group.calls, group.running, own, strict=True)
        for each, name in zip(running.parts, columns, strict=True)
    )
    sent = Exchange(_with(rows, _named(ranged, part)), (*group.partition_by, part), plan.tasks)
    joined = Join(
        WindowFunctions(sent, local),
        _carries(group, _with(source, _named(ranged, part)), (part, number, stride), carries, names),
        JoinKind.LEFT,
        ((part, number),),
        strategy=BROADCAST,
    )
    results = tuple(
        Named(compose(running.result, (*ours, *theirs), call.expression.type), call.name)
        for call, running, ours, theirs in zip(group.calls, group.running, own, carries, strict=True)
    )
    return Project(joined, (*unchanged_columns(output_of(rows)), *results))


def _with(rows: Node, item: Named) -> Project:
    return Project(rows, (*unchanged_columns(output_of(rows)), item))


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


def _carries(
    group: CallGroup,
    source: Node,
    numbering: tuple[Scalar, Scalar, int],
    carries: list[list[Scalar]],
    names: _Names,
) -> Node:
    """Returns a row for each range of a hot partition: its number, and the carry of each part of the calls."""
    part, number, stride = numbering
    totals: list[Call] = []
    merged: list[Named] = []
    shown: list[Named] = []
    partition = compose(f"{{0}} DIV {stride}", (number,), None).tree
    for call, running, columns in zip(group.calls, group.running, carries, strict=True):
        for each, carry in zip(running.parts, columns, strict=True):
            total, before = names.new("total", each.total_type), names.new("before", UNKNOWN)
            condition = over_of(call).filter
            arguments = tuple(Scalar(argument, None) for argument in each.arguments)
            where = None if condition is None else Scalar(condition, BOOLEAN)
            totals.append(Call(each.total, arguments, _field(total), filter=where))
            frame = Frame("ROWS", START, _BEFORE)
            over = Over(each.merge.value, (total.tree,), (partition,), (OrderKey(number.tree),), frame)
            type_ = result_type(each.merge, each.total_type)
            merged.append(_named(Scalar(over, type_), before))
            shown.append(_named(compose(f"CAST({{0}} AS {each.type})", (before,), each.type), carry))
    for_ranges = Aggregate(
        Filter(source, compose("({0}) IS NOT NULL", (part,), BOOLEAN)),
        (_named(part, number),),
        tuple(totals),
        phases=Phases.TWO_PHASE,
    )
    return Project(WindowFunctions(for_ranges, tuple(merged)), (_named(number, number), *shown))


# Aggregates over whole partitions


def joined_back(rows: Node, source: Node, group: CallGroup, names: _Names) -> Node:
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
        tuple(_named(key, name) for key, name in zip(group.partition_by, keys, strict=True)),
        calls,
        phases=Phases.TWO_PHASE,
    )
    pairs = tuple(zip(group.partition_by, keys, strict=True))
    kind = JoinKind.LEFT if pairs else JoinKind.CROSS
    joined = Join(rows, grouped, kind, pairs, null_safe=bool(pairs), strategy=BROADCAST)
    fields = (*output_of(rows), *(call.output for call in calls))
    return Project(joined, unchanged_columns(fields))


def _hot_joined_back(rows: Node, plan: JoinedBack, names: _Names) -> Node:
    """Returns `rows` followed by the calls: for the hot partitions, joined back, for all others by Spark's window."""
    is_hot = is_one_of(plan.group.partition_by, plan.hot)
    hot = Filter(rows, is_hot)
    others = WindowFunctions(Filter(rows, compose("NOT ({0})", (is_hot,), BOOLEAN)), plan.group.calls)
    return Union((others, joined_back(hot, hot, plan.group, names)))
