"""LAG and LEAD in ranges of the order column: the rows of other ranges that the first or last rows of a range read.

A call reads the row that is n rows before or after. In all but n rows of a range, that row is in the same range. The
others find it in the neighbours: the last rows of all ranges before, or the first rows of all ranges after, as many as
the largest n. A range with fewer rows adds those of the range after it. They are gathered per range as an array:

    LAG     the array ends with the row just before the range; row r of the range, from 1, reads element r - n - 1
    LEAD    the same in the opposite order: r counts from the end of the range

Rows with equal order keys have no order in Spark. Here they are ordered by the values that the calls read, so that the
rows of a range and its neighbours are of one order, which is one of those that Spark may choose.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.nodes import Expression, Frame, FrameBound, GetField, Negation, Number, OrderKey, Over
from service.sql.expressions.scalar import Scalar, render
from service.sql.types.data_types import BIGINT, BOOLEAN, INT, DataType
from workers.engine.plan.expressions import compose
from workers.engine.plan.nodes import UNKNOWN, Filter, Join, JoinStrategy, Named, Node, Project, WindowFunctions
from workers.engine.rules.windows.new_columns import NewNames, named

MOST_ROWS = 100
"""The largest distance of LAG and LEAD in ranges: so many rows of each range are broadcast."""

BROADCAST = JoinStrategy(JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT, JoinSkew.NONE)
"""How rows are joined with a row for each range."""

OFFSETS = frozenset({"lag", "lead"})
_ALL_ROWS = Frame("ROWS", FrameBound("PRECEDING"), FrameBound("FOLLOWING"))
_NUMBER = Over("row_number", ())


@dataclass(frozen=True)
class OffsetCall:
    """A LAG, or, if not `is_before`, a LEAD, of `value`, `rows` rows away, at least one."""

    is_before: bool
    rows: int
    value: Expression


def offset_call(over: Over, type_: DataType) -> OffsetCall | str:
    """Returns LAG or LEAD with a result of the type `type_`, or a sentence that says why it has no parts."""
    name, number = over.function.upper(), _number_of(over)
    if over.ignores_nulls:
        return f"{name} with IGNORE NULLS may read a row of any range."
    if number is None or not 1 <= abs(number) <= MOST_ROWS:
        return f"{name} is computed in ranges for a distance of 1 to {MOST_ROWS} rows."
    if not type_.is_atomic:
        return f"Values of {name} that have no order are not computed in ranges."
    return OffsetCall((over.function == "lag") is (number > 0), abs(number), over.arguments[0])


def _number_of(over: Over) -> int | None:
    written = over.arguments[1] if len(over.arguments) > 1 else Number("1")
    sign = -1 if isinstance(written, Negation) else 1
    number = written.operand if isinstance(written, Negation) else written
    return sign * int(number.text) if isinstance(number, Number) and number.is_integer else None


def order_of(order_by: tuple[OrderKey, ...], calls: Sequence[OffsetCall]) -> tuple[OrderKey, ...]:
    """Returns the keys of a window followed by the values that `calls` read."""
    keys: dict[str, OrderKey] = {}
    # Of several keys with the same expression, the first one counts.
    for key in (*order_by, *(OrderKey(call.value) for call in calls)):
        keys.setdefault(render(key.expression), key)
    return tuple(keys.values())


@dataclass(frozen=True)
class Ranges:
    """The rows of `source` in a range of a split partition have its number in `part`; it is NULL for all others. Each
    partition has `stride` numbers. `order` is the order of the rows of a partition, by `order_of`.
    """

    source: Node
    part: Scalar
    stride: int
    order: tuple[OrderKey, ...]


@dataclass(frozen=True)
class Side:
    """The calls that read rows before their own, or after it, with the columns by which a row finds a neighbour: its
    `number` in its range, for rows after it the `count` of the range, and the array of the `neighbours`.
    """

    calls: tuple[OffsetCall, ...]
    number: Scalar
    count: Scalar | None
    neighbours: Scalar

    @property
    def is_before(self) -> bool:
        """Whether the calls read rows before their own."""
        return self.calls[0].is_before

    @property
    def rows(self) -> int:
        """The largest distance of the calls."""
        return max(call.rows for call in self.calls)


def sides_of(calls: Sequence[OffsetCall], names: NewNames) -> tuple[Side, ...]:
    """Returns the sides that `calls` read, one or two."""
    number = names.new("number", INT)
    before = tuple(call for call in calls if call.is_before)
    after = tuple(call for call in calls if not call.is_before)
    found = [Side(before, number, None, names.new("before", UNKNOWN))] if before else []
    found += [Side(after, number, names.new("count", BIGINT), names.new("after", UNKNOWN))] if after else []
    return tuple(found)


def place_items(sides: Sequence[Side], in_range: Over) -> tuple[Named, ...]:
    """Returns the columns of each row's place in its range. The window of `in_range` is the range, in order."""
    number = replace(in_range, function="row_number", arguments=(), filter=None, frame=None)
    # With a frame and in the same order, Spark computes both calls in one operator.
    count = replace(number, function=AggregateFunction.COUNT.value, frame=_ALL_ROWS)
    counts = (named(Scalar(count, BIGINT), side.count) for side in sides if side.count is not None)
    return (named(Scalar(number, INT), sides[0].number), *counts)


def with_neighbours(rows: Node, side: Side, ranges: Ranges, names: NewNames) -> Join:
    """Returns `rows`, which have a column `ranges.part`, with the array of the neighbours of each row's range."""
    number, place, first = names.new("range", INT), names.new("place", INT), names.new("first", INT)
    value, found = names.new("value", UNKNOWN), names.new("found", UNKNOWN)
    # Counted from the end of the range that is next to the calls' own range.
    from_end = replace(_NUMBER, partition_by=(ranges.part.tree,), order_by=_order(ranges.order, side.is_before))
    hot = Filter(ranges.source, compose("({0}) IS NOT NULL", (ranges.part,), BOOLEAN))
    counted = WindowFunctions(hot, (named(Scalar(from_end, INT), place),))
    ends = Project(
        Filter(counted, compose(f"{{0}} <= {side.rows}", (place,), BOOLEAN)),
        (named(ranges.part, number), named(place, place), named(_values(side), value)),
    )
    in_order = (OrderKey(number.tree, not side.is_before), OrderKey(place.tree, True))
    frame = Frame("ROWS", FrameBound("PRECEDING", Number(str(side.rows))), FrameBound("PRECEDING", Number("1")))
    partition = compose(f"{{0}} DIV {ranges.stride}", (number,), None).tree
    gathered = WindowFunctions(
        ends,
        (
            named(Scalar(Over("collect_list", (value.tree,), (partition,), in_order, frame), None), found),
            named(Scalar(replace(_NUMBER, partition_by=(number.tree,), order_by=in_order[1:]), INT), first),
        ),
    )
    once = Filter(gathered, compose("{0} = 1", (first,), BOOLEAN))
    shown = Project(once, (named(number, number), named(found, side.neighbours)))
    return Join(rows, shown, JoinKind.LEFT, ((ranges.part, number),), strategy=BROADCAST)


def value_of(call: OffsetCall, own: Scalar, side: Side, type_: DataType) -> Scalar:
    """Returns the value of a call: that of a neighbour, or `own`, which was computed in the range.

    In a row whose neighbour is not in the range, `own` is the default of the call.
    """
    place = side.number
    if side.count is not None:
        place = compose("CAST({0} - {1} + 1 AS INT)", (side.count, side.number), INT)
    index = compose(f"{{0}} - {call.rows + 1}", (place,), INT)
    read = GetField(compose("element_at({0}, {1})", (side.neighbours, index), None).tree, _label(call, side))
    is_found = f"{{0}} <= {call.rows} AND size({{1}}) > {call.rows} - {{0}}"
    condition = compose(is_found, (place, side.neighbours), BOOLEAN)
    return compose("IF({0}, {1}, {2})", (condition, Scalar(read, type_), own), type_)


def _order(keys: tuple[OrderKey, ...], reverse: bool) -> tuple[OrderKey, ...]:
    if not reverse:
        return keys
    return tuple(replace(key, descending=not key.descending, nulls_first=not key.nulls_first) for key in keys)


def _label(call: OffsetCall, side: Side) -> str:
    values = list(dict.fromkeys(render(each.value) for each in side.calls))
    return f"v{values.index(render(call.value))}"


def _values(side: Side) -> Scalar:
    """Returns the structure of the values that the calls read."""
    values = {_label(call, side): Scalar(call.value, None) for call in side.calls}
    fields = ", ".join(f"'{label}', {{{place}}}" for place, label in enumerate(values))
    return compose(f"named_struct({fields})", tuple(values.values()), None)
