"""Calls with OVER that can be computed in parts: groups of calls with one window, and the formulas of running calls.

A running call has ORDER BY and reads the rows from the start of the partition to the current row. Its value is computed
per range of the order column, and merged with the carry, the aggregate of all ranges before (a parallel prefix):

    call           in its range    carry          result
    ROW_NUMBER     the same        COUNT(*)       value + carry
    RANK           the same        COUNT(*)       value + carry
    DENSE_RANK     the same        COUNT DISTINCT value + carry; of the keys of ORDER BY
    COUNT          the same        COUNT          value + carry
    SUM            the same        SUM            value + carry; one of them if the other is NULL
    MIN, MAX       the same        MIN, MAX       LEAST, GREATEST, which ignore NULL
    AVG            SUM, COUNT      SUM, COUNT     the quotient of both sums
    LAG, LEAD      the same        rows           value, or a row of another range (`neighbours.py`)

Rows with equal order keys are in one range, so RANK and the peers of a RANGE frame are the same as in the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from service.contract.query import AggregateFunction
from service.sql.expressions.nodes import Column, Expression, FrameBound, OrderKey, Over, columns_of
from service.sql.expressions.scalar import Scalar, render
from service.sql.types.data_types import BIGINT, DataType, TypeName, decimal
from workers.engine.plan.aggregates import MAX_AVG_PRECISION
from workers.engine.plan.expressions import compose
from workers.engine.plan.nodes import UNKNOWN, Named, WindowFunctions, output_of, scanned_columns
from workers.engine.rules.joins.strategy_cost import max_rows
from workers.engine.rules.windows.neighbours import OFFSETS, OffsetCall, offset_call
from workers.engine.statistics.model import Statistics

MAX_SUM_PRECISION = 28
"""Most digits of a DECIMAL whose running SUM is split: its type has ten more, so that no sum of a range overflows."""

START, CURRENT = FrameBound("PRECEDING"), FrameBound("CURRENT ROW")
"""The bounds of a running call."""
_END = FrameBound("FOLLOWING")
_BITS = {TypeName.TINYINT: 7, TypeName.SMALLINT: 15, TypeName.INT: 31, TypeName.BIGINT: 63}
_AS_WIDE, _WIDE_SUM = "CAST({0} AS DECIMAL(19,0))", decimal(29, 0)
_ADDED = "coalesce({0} + {1}, {0}, {1})"
_COUNT, _SUM = AggregateFunction.COUNT, AggregateFunction.SUM
_AGGREGATES = frozenset(function.value for function in AggregateFunction)


@dataclass(frozen=True)
class Part:
    """One column of a running call: `function` over `arguments` in each range, of the type `type`.

    `total` is the aggregate of a range; its values over the ranges before are merged by `merge`. It has the same
    arguments, or is over the distinct values of `distinct`.
    """

    function: str
    arguments: tuple[Expression, ...]
    type: DataType
    total: AggregateFunction
    merge: AggregateFunction
    total_type: DataType
    distinct: tuple[Expression, ...] = ()


@dataclass(frozen=True)
class RunningCall:
    """The parts of a running call, and its value: an expression over the parts' columns, then their carries."""

    parts: tuple[Part, ...]
    result: str


@dataclass(frozen=True)
class CallGroup:
    """Calls of one node with the same PARTITION BY and, if they are running calls, the same ORDER BY.

    `running` has the parts of running calls; it is empty for aggregates over the whole partition, whose order does not
    matter. `refusal` is a sentence that says why the calls are not computed in parts; None if they can be.
    `is_open`: there is none, or only because statistics are missing.
    """

    calls: tuple[Named, ...]
    partition_by: tuple[Scalar, ...]
    order_by: tuple[OrderKey, ...] = ()
    running: tuple[RunningCall | OffsetCall, ...] = ()
    refusal: str | None = None
    is_open: bool = True

    @property
    def order_column(self) -> str:
        """The name of the first column of ORDER BY, for running calls that are not refused."""
        return columns_of(self.order_by[0].expression)[0]


def over_of(call: Named) -> Over:
    """Returns the tree of a call of `WindowFunctions`. Raises TypeError for another expression."""
    tree = call.expression.tree
    if not isinstance(tree, Over):
        raise TypeError(f"{call.name} has no OVER")
    return tree


def call_groups(node: WindowFunctions, statistics: Statistics) -> tuple[CallGroup, ...]:
    """Returns the calls of `node` in groups, in the order of their first calls."""
    found: dict[tuple[tuple[str, ...], tuple[object, ...]], list[Named]] = {}
    for call in node.calls:
        over = over_of(call)
        keys = () if _is_whole(over) else over.order_by
        order = tuple((render(key.expression), key.descending, key.nulls_first) for key in keys)
        found.setdefault((tuple(map(render, over.partition_by)), order), []).append(call)
    return tuple(_group(tuple(calls), node, statistics) for calls in found.values())


def _group(calls: tuple[Named, ...], node: WindowFunctions, statistics: Statistics) -> CallGroup:
    first, types = over_of(calls[0]), {field.name: field.type for field in output_of(node.input)}
    partition_by = tuple(Scalar(key, _type_of(key, types)) for key in first.partition_by)
    whole = [call for call in calls if _is_whole(over_of(call))]
    if len(whole) == len(calls):
        refusal = _refusal_of_partition(first)
        return CallGroup(calls, partition_by, refusal=refusal, is_open=refusal is None)
    refusal = _refusal_of_partition(first) or _refusal_of_order(first, types)
    refusal = refusal or next((why for call in calls if (why := _refusal_of_call(over_of(call))) is not None), None)
    if refusal is not None:
        return CallGroup(calls, partition_by, first.order_by, refusal=refusal, is_open=False)
    made = [_parts_of(call, node, statistics) for call in calls]
    refusal = next((each for each in made if isinstance(each, str)), None)
    running = tuple(each for each in made if not isinstance(each, str))
    return CallGroup(calls, partition_by, first.order_by, running, refusal)


def _parts_of(call: Named, node: WindowFunctions, statistics: Statistics) -> RunningCall | OffsetCall | str:
    over = over_of(call)
    if over.function in OFFSETS:
        return offset_call(over, call.expression.type or UNKNOWN)
    return _RUNNING[over.function](_Argument.of(call, node, statistics))


def _is_whole(over: Over) -> bool:
    """Whether the call is an aggregate of the whole partition, in any order."""
    if over.function not in _AGGREGATES or over.ignores_nulls or over.function in {"first_value", "last_value"}:
        return False
    frame = over.frame
    return not over.order_by if frame is None else (frame.start, frame.end) == (START, _END)


def _type_of(tree: Expression, types: Mapping[str, DataType]) -> DataType | None:
    return types.get(tree.name) if isinstance(tree, Column) else None


def _refusal_of_partition(over: Over) -> str | None:
    if all(isinstance(key, Column) for key in over.partition_by):
        return None
    return "A key of PARTITION BY is an expression: it is not known which partitions are hot."


def _refusal_of_order(over: Over, types: Mapping[str, DataType]) -> str | None:
    if not over.order_by:
        return "The frame depends on the order of the rows, and there is no ORDER BY."
    first = over.order_by[0].expression
    if not isinstance(first, Column):
        return "The first key of ORDER BY is an expression, whose values are not known before the run."
    type_ = types.get(first.name, UNKNOWN)
    if type_.is_fractional or not type_.is_atomic:
        return f"The first key of ORDER BY is a {type_}, whose values cannot be written as literals."
    return None


def _refusal_of_call(over: Over) -> str | None:
    name, frame = over.function.upper(), over.frame
    if over.function not in _RUNNING.keys() | OFFSETS:
        return f"{name} cannot be computed from ranges of the partition."
    if frame is not None and (frame.start, frame.end) != (START, CURRENT):
        return f"The frame of {name} is not from the start of the partition to the current row."
    return None


@dataclass(frozen=True)
class _Argument:
    """The argument of a call. `type` is None if it is not a column; `result` is the type of the call.

    `bits`: the sum of the absolute values of all its rows is below 2 to the power of this number; None if not known.
    """

    trees: tuple[Expression, ...]
    type: DataType | None
    result: DataType
    bits: int | None = None
    order_by: tuple[OrderKey, ...] = ()

    @classmethod
    def of(cls, call: Named, node: WindowFunctions, statistics: Statistics) -> _Argument:
        over, types = over_of(call), {field.name: field.type for field in output_of(node.input)}
        type_ = _type_of(over.arguments[0], types) if over.arguments else None
        bits = None
        rows = max_rows(node.input, statistics)
        if type_ is not None and type_.is_integral and rows is not None:
            bits = (_largest(over.arguments[0], type_, node, statistics) * int(rows)).bit_length()
        return cls(over.arguments, type_, call.expression.type or UNKNOWN, bits, over.order_by)


def _largest(tree: Expression, type_: DataType, node: WindowFunctions, statistics: Statistics) -> int:
    """Returns a bound of the absolute values of an integer column."""
    columns = scanned_columns(node.input, columns_of(tree))
    known = statistics.ranges.get(columns[0]) if columns else None
    of_type = 1 << _BITS[type_.name]
    return min(of_type, max(abs(known.low), abs(known.high))) if known is not None and known.is_whole else of_type


def _counter(function: str) -> Callable[[_Argument], RunningCall]:
    def make(argument: _Argument) -> RunningCall:
        part = Part(function, (), argument.result, _COUNT, _SUM, BIGINT)
        return RunningCall((part,), f"CAST({{0}} + coalesce({{1}}, 0L) AS {argument.result})")

    return make


def _dense_rank(argument: _Argument) -> RunningCall:
    # In a structure, so that NULL counts.
    keys = tuple(Scalar(key.expression, None) for key in argument.order_by)
    places = ", ".join(f"{{{place}}}" for place in range(len(keys)))
    distinct = (compose(f"struct({places})", keys, None).tree,)
    part = Part("dense_rank", (), argument.result, _COUNT, _SUM, BIGINT, distinct)
    return RunningCall((part,), f"CAST({{0}} + coalesce({{1}}, 0L) AS {argument.result})")


def _count(argument: _Argument) -> RunningCall:
    return RunningCall((_part(_COUNT, argument, BIGINT),), "{0} + coalesce({1}, 0L)")


def _sum(argument: _Argument) -> RunningCall | str:
    result = argument.result
    if result.name is TypeName.BIGINT and argument.bits is not None and argument.bits <= _BITS[TypeName.BIGINT]:
        return RunningCall((_part(_SUM, argument, BIGINT),), _ADDED)
    if result.name is TypeName.BIGINT:
        # A range may have a sum that is no BIGINT although all running sums are.
        wide = (compose(_AS_WIDE, (Scalar(argument.trees[0], argument.type),), None).tree,)
        part = Part(_SUM.value, wide, _WIDE_SUM, _SUM, _SUM, _WIDE_SUM)
        return RunningCall((part,), f"CAST({_ADDED} AS BIGINT)")
    if result.name is TypeName.DECIMAL:
        if (result.precision or 0) > MAX_SUM_PRECISION + 10 or (argument.type is None and result.precision == 38):
            return f"The SUM of a DECIMAL of more than {MAX_SUM_PRECISION} digits could overflow in a range."
        if argument.type is not None and (argument.type.precision or 0) > MAX_SUM_PRECISION:
            return f"The SUM of a DECIMAL of more than {MAX_SUM_PRECISION} digits could overflow in a range."
        return RunningCall((_part(_SUM, argument, result),), f"coalesce(CAST({{0}} + {{1}} AS {result}), {{0}}, {{1}})")
    return f"The last digits of a running SUM of type {result} depend on the order of the additions."


def _average(argument: _Argument) -> RunningCall | str:
    type_ = argument.type
    if type_ is not None and type_.is_integral and argument.bits is not None and argument.bits <= 53:
        parts = (_part(_SUM, argument, BIGINT), _part(_COUNT, argument, BIGINT))
        whole = "CAST(coalesce({0} + {2}, {0}, {2}) AS DOUBLE)"
        return RunningCall(parts, f"{whole} / NULLIF(CAST({{1}} + coalesce({{3}}, 0L) AS DOUBLE), 0.0D)")
    if type_ is not None and type_.name is TypeName.DECIMAL and (type_.precision or 0) <= MAX_AVG_PRECISION:
        of = decimal((type_.precision or 0) + 10, type_.scale or 0)
        parts = (_part(_SUM, argument, of), _part(_COUNT, argument, BIGINT))
        whole = f"coalesce(CAST({{0}} + {{2}} AS {of}), {{0}}, {{2}})"
        count = "NULLIF(CAST({1} + coalesce({3}, 0L) AS DECIMAL(20,0)), 0)"
        return RunningCall(parts, f"CAST({whole} / {count} AS {argument.result})")
    return "The last digits of this running AVG may depend on the order of the additions."


def _extreme(function: AggregateFunction, merged: str) -> Callable[[_Argument], RunningCall | str]:
    def make(argument: _Argument) -> RunningCall | str:
        if not argument.result.is_atomic:
            return f"The type of {function.value} is not known before the run."
        part = Part(function.value, argument.trees, argument.result, function, function, argument.result)
        return RunningCall((part,), f"{merged}({{0}}, {{1}})")

    return make


def _part(function: AggregateFunction, argument: _Argument, type_: DataType) -> Part:
    return Part(function.value, argument.trees, type_, function, _SUM, type_)


_RUNNING: Mapping[str, Callable[[_Argument], RunningCall | str]] = {
    "row_number": _counter("row_number"),
    "rank": _counter("rank"),
    "dense_rank": _dense_rank,
    _COUNT.value: _count,
    _SUM.value: _sum,
    AggregateFunction.AVG.value: _average,
    AggregateFunction.MIN.value: _extreme(AggregateFunction.MIN, "least"),
    AggregateFunction.MAX.value: _extreme(AggregateFunction.MAX, "greatest"),
}
"""By the function of a running call."""
