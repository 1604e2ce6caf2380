"""Sums of BIGINTs in halves of 32 bits: x = high * 2^32 + low, and so is the sum of the x.

Rows that a join leaves out, or that others cancel, could overflow a BIGINT's sum below the join; a half's overflows
after 2^32 rows of a group at the least, which are for tables alone: a join has that many soon.
"""

from __future__ import annotations

from service.spec.scalar import Scalar
from service.spec.types import BIGINT, DataType, TypeName, decimal
from workers.engine.plan.scalars import compose

_HIGH = "shiftright({0}, 32) + (shiftright({0}, 31) & 1L)"
_LOW = "shiftright(shiftleft({0}, 32), 32)"
_WHOLE = "CAST({0} AS DECIMAL(20,0)) * 4294967296 + CAST({1} AS DECIMAL(20,0))"

WHOLE = decimal(32, 0)
"""The type of what two sums of halves are put together to."""


def halves_of(value: Scalar) -> tuple[Scalar, Scalar]:
    """The high and the low half of a BIGINT; both are BIGINTs of 32 bits, and NULL where it is.

    >>> from service.spec.scalar import column
    >>> [str(half) for half in halves_of(column("x", BIGINT))]
    ['shiftright(x, 32) + (shiftright(x, 31) & 1L)', 'shiftright(shiftleft(x, 32), 32)']
    """
    return compose(_HIGH, (value,), BIGINT), compose(_LOW, (value,), BIGINT)


def whole_of(high: Scalar, low: Scalar, type_: DataType = WHOLE) -> Scalar:
    """The sum of the values whose halves' sums these are."""
    return compose(_WHOLE, (high, low), type_)


def needs_halves(value: Scalar) -> bool:
    """Whether sums of `value`, over a table's rows, could overflow: those of a BIGINT."""
    return value.type is not None and value.type.name is TypeName.BIGINT
