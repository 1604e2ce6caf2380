"""Infers the types of window functions and of aggregates over windows, as in Spark 4.3."""

from __future__ import annotations

from decimal import Decimal

from service.contract.query import AggregateFunction
from service.sql.expressions.aggregate_parameters import has_several_percentages
from service.sql.expressions.nodes import Expression, Frame, Interval, Number, OrderKey, Over
from service.sql.expressions.scalar import render
from service.sql.refusals import INTERVAL_UNITS
from service.sql.types.aggregates import NEAREST, PAIRED, PERCENTILES, deciding, result_type, takes
from service.sql.types.data_types import BIGINT, DATE, DOUBLE, INT, NUMERIC, TEMPORAL, DataType, TypeName, array
from service.sql.types.inference import Typing, castable, number_type

_NUMBERS = {
    "row_number": INT,
    "rank": INT,
    "dense_rank": INT,
    "ntile": INT,
    "percent_rank": DOUBLE,
    "cume_dist": DOUBLE,
}
_BITS = {TypeName.TINYINT: 7, TypeName.SMALLINT: 15, TypeName.INT: 31, TypeName.BIGINT: 63}
"""The bits of integer types without the sign."""
_DAYS = frozenset({"YEAR", "MONTH", "WEEK", "DAY"})


def type_of_window(node: Over, typing: Typing) -> DataType | None:
    """Returns the type of a call with OVER; None if it is not known before the query runs.

    Raises SpecError `type_mismatch`; `unsupported_construct` for a call with OVER inside it.
    """
    types = [typing.type_of(argument) for argument in node.arguments]
    if node.filter is not None:
        typing.require_condition(node.filter, "FILTER")
    for key in (*node.partition_by, *(key.expression for key in node.order_by)):
        typing.groupable(key)
    if node.frame is not None and node.frame.unit == "RANGE":
        _check_range(node.frame, node.order_by, typing)
    if node.function in _NUMBERS:
        return _NUMBERS[node.function]
    if node.function in AggregateFunction.__members__:
        return _aggregate(node, types, typing)
    if len(types) == 3:
        _check_default(node, types[0], types[2], typing)
    return types[0]


def _aggregate(node: Over, types: list[DataType | None], typing: Typing) -> DataType | None:
    function = AggregateFunction(node.function)
    if not types:
        return BIGINT
    for type_, argument in zip(types[: 2 if function in PAIRED else 1], node.arguments, strict=False):
        if type_ is not None and not takes(function, type_):
            text = render(argument).replace("`", "")
            raise typing.mismatch(f"{function} does not take {text}, which is {type_}.", node)
    if function in NEAREST:
        typing.groupable(node.arguments[1])
    type_ = result_type(function, types[deciding(function)])
    is_list = function in PERCENTILES and has_several_percentages(node.arguments[1])
    return array(type_) if is_list and type_ is not None else type_


def _check_default(node: Over, type_: DataType | None, default: DataType | None, typing: Typing) -> None:
    if type_ is not None and default is not None and not _converts(default.name, type_.name):
        detail = f"The default of {node.function} is {default}, but its values are {type_}. CAST one of them."
        raise typing.mismatch(detail, node)


def _converts(default: TypeName, type_: TypeName) -> bool:
    """Whether Spark converts the default of a call to the type of its values."""
    names = {default, type_}
    if TypeName.NULL in names:
        return default is TypeName.NULL
    related = len(names) == 1 or TypeName.STRING in names or names <= NUMERIC or names <= TEMPORAL
    return related and castable(default, type_)


def _check_range(frame: Frame, keys: tuple[OrderKey, ...], typing: Typing) -> None:
    """Raises SpecError `type_mismatch` if an offset cannot be added to the key."""
    for bound in (frame.start, frame.end):
        if bound.offset is None:
            continue
        key = keys[0].expression
        type_ = typing.type_of(key)
        if type_ is not None and not _fits(bound.offset, type_):
            offset = render(bound.offset)
            detail = (
                f"RANGE {offset} {bound.side} does not fit {render(key).replace('`', '')}, which is {type_}. Write a "
                "number that fits the type for numbers, INTERVAL '1' DAY for dates, and an interval for times."
            )
            raise typing.mismatch(detail, key)


def _fits(offset: Expression, type_: DataType) -> bool:
    if isinstance(offset, Interval):
        is_whole = "." not in offset.value
        units = _DAYS if type_ == DATE else INTERVAL_UNITS
        return type_.name in TEMPORAL and offset.unit in units and (is_whole or offset.unit == "SECOND")
    if not isinstance(offset, Number):
        return False
    if type_ == DATE:
        return number_type(offset) == INT
    value = Decimal(offset.text)
    if type_.name is TypeName.DECIMAL:
        return value < Decimal(10) ** ((type_.precision or 0) - (type_.scale or 0))
    return type_.is_fractional or (type_.name in _BITS and value < 1 << _BITS[type_.name])
