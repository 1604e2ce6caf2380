"""What the aggregate functions demand and give, as Spark 4.3 has it."""

from __future__ import annotations

from service.spec.query import AggregateFunction
from service.spec.types import BIGINT, DOUBLE, NUMERIC, DataType, TypeName, decimal

ORDERED = frozenset({AggregateFunction.FIRST_VALUE, AggregateFunction.LAST_VALUE})
"""Functions of one row chosen by an order."""

IDEMPOTENT = frozenset({AggregateFunction.MIN, AggregateFunction.MAX})
"""Functions that DISTINCT does not change."""

_SUMMABLE = NUMERIC | {TypeName.STRING, TypeName.NULL, TypeName.TIMESTAMP}


def takes(function: AggregateFunction, type_: DataType) -> bool:
    """Whether Spark accepts an argument of this type."""
    if function is AggregateFunction.COUNT:
        return True
    if function in {AggregateFunction.SUM, AggregateFunction.AVG}:
        return type_.name in _SUMMABLE
    return type_.name is not TypeName.OTHER


def result_type(function: AggregateFunction, argument: DataType | None) -> DataType | None:
    """The type of the result over an argument that `takes` accepts; None where only Spark knows.

    SUM of integers is a BIGINT, of DECIMAL(p,s) a DECIMAL(p+10,s), else a DOUBLE; AVG of DECIMAL(p,s) is a
    DECIMAL(p+4,s+4), else a DOUBLE; the others keep the type.
    """
    if function is AggregateFunction.COUNT:
        return BIGINT
    if argument is None or function not in {AggregateFunction.SUM, AggregateFunction.AVG}:
        return argument
    if argument.name is TypeName.DECIMAL and argument.precision is not None and argument.scale is not None:
        if function is AggregateFunction.SUM:
            return decimal(argument.precision + 10, argument.scale)
        return decimal(argument.precision + 4, argument.scale + 4)
    return BIGINT if argument.is_integral and function is AggregateFunction.SUM else DOUBLE
