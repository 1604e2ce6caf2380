"""Which expressions are intervals. They have no type of ours: no table has a column of one, and a result has their
texts. The differences of dates and times are intervals too, which only their types show (`inference`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from service.sql.expressions.nodes import Arithmetic, Call, Case, Expression, Interval, Negation
from service.sql.types.data_types import DATE, INT, TINYINT, DataType, decimal


class IntervalKind(Enum):
    """The interval types of Spark: years and months; days and shorter units; all units, which cannot be compared."""

    MONTHS = "YEAR TO MONTH"
    TIME = "DAY TO SECOND"
    CALENDAR = "INTERVAL"


MAKERS = {
    "make_interval": IntervalKind.CALENDAR,
    "try_make_interval": IntervalKind.CALENDAR,
    "make_dt_interval": IntervalKind.TIME,
    "make_ym_interval": IntervalKind.MONTHS,
}
"""The functions that return intervals."""
WAY_OUT = "Add it to a date or timestamp, or CAST it to STRING."
IN_UNITS = "For a number of days or seconds, write datediff(a, b) or timestampdiff(SECOND, b, a)."
NUMBERS_OR_INTERVALS = frozenset({"abs", "sign", "signum", "positive", "negative", "width_bucket", "sequence"})
"""Functions of numbers that also take intervals."""
VALUES_FROM = {"coalesce": 0, "nvl": 0, "ifnull": 0, "if": 1, "nvl2": 1}
"""Functions that return one of their arguments, with the place of the first of these."""
_MONTHS = frozenset({"YEAR", "MONTH", "YEAR TO MONTH"})
_PARTS = {
    "YEAR": INT,
    "MONTH": TINYINT,
    "DAY": INT,
    "HOUR": TINYINT,
    "MINUTE": TINYINT,
    "SECOND": decimal(8, 6),
}


def kind_of(node: Expression) -> IntervalKind | None:
    """Returns the type of an interval; None for an expression that is none, or is not known to be one."""
    match node:
        case Interval(unit=unit):
            return IntervalKind.MONTHS if unit in _MONTHS else IntervalKind.TIME
        case Call(name=name, arguments=arguments):
            if name in VALUES_FROM:
                return _kind_of_any(arguments[VALUES_FROM[name] :])
            return MAKERS.get(name)
        case Negation(operand=operand):
            return kind_of(operand)
        case Case(branches=branches, default=default):
            return _kind_of_any((*(value for _, value in branches), *([] if default is None else [default])))
        case Arithmetic(operator=operator, left=left, right=right):
            kinds = kind_of(left), kind_of(right)
            if operator in "+-":
                return kinds[0] if kinds[0] is kinds[1] else None
            return (kinds[0] or kinds[1]) if None in kinds and operator in "*/" else None
    return None


def _kind_of_any(values: Sequence[Expression]) -> IntervalKind | None:
    """Returns the type of the first of `values` that is known to be an interval; others may be NULL."""
    return next((kind for value in values if (kind := kind_of(value)) is not None), None)


def moved(type_: DataType, interval: Expression, kind: IntervalKind) -> DataType | None:
    """Returns the type of a date or time of the type `type_` plus or minus an interval; None if it is not known."""
    if type_ != DATE or kind is IntervalKind.MONTHS:
        return type_
    if isinstance(interval, Interval):
        return DATE if interval.unit == "DAY" and "." not in interval.value else None
    return DATE if kind is IntervalKind.CALENDAR else None


def part_of(part: str, kind: IntervalKind) -> DataType | None:
    """Returns the type of EXTRACT(part FROM an interval)."""
    return _PARTS.get(part) if kind is not IntervalKind.CALENDAR else None
