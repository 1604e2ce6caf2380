"""What the aggregate functions demand and give, as Spark 4.3 has it."""

from __future__ import annotations

from service.spec.query import AggregateFunction
from service.spec.types import BIGINT, DOUBLE, NUMERIC, STRING, TINYINT, DataType, TypeName, decimal

ORDERED = frozenset({AggregateFunction.FIRST_VALUE, AggregateFunction.LAST_VALUE, AggregateFunction.LISTAGG})
"""Functions whose result depends on an order."""

SPREADS = frozenset(
    {
        AggregateFunction.VAR_POP,
        AggregateFunction.VAR_SAMP,
        AggregateFunction.STDDEV_POP,
        AggregateFunction.STDDEV_SAMP,
    }
)
"""Functions of how values spread around their mean."""

OF_GROUPING_SETS = frozenset({AggregateFunction.GROUPING, AggregateFunction.GROUPING_ID})
"""Functions of the grouping set that a row belongs to."""

IDEMPOTENT = frozenset({AggregateFunction.MIN, AggregateFunction.MAX, AggregateFunction.APPROX_COUNT_DISTINCT})
"""Functions that DISTINCT does not change."""

_SUMMABLE = NUMERIC | {TypeName.STRING, TypeName.NULL, TypeName.TIMESTAMP}


_READ_AS_NUMBERS = NUMERIC | {TypeName.STRING, TypeName.NULL}
_COUNTS = frozenset({AggregateFunction.COUNT, AggregateFunction.APPROX_COUNT_DISTINCT, AggregateFunction.GROUPING_ID})


def takes(function: AggregateFunction, type_: DataType) -> bool:
    """Whether Spark accepts a first argument of this type."""
    if function is AggregateFunction.COUNT or function in OF_GROUPING_SETS:
        return True
    if function in {AggregateFunction.SUM, AggregateFunction.AVG}:
        return type_.name in _SUMMABLE
    if function in SPREADS or function is AggregateFunction.PERCENTILE:
        return type_.name in _READ_AS_NUMBERS
    return type_.name is not TypeName.OTHER


def result_type(function: AggregateFunction, argument: DataType | None) -> DataType | None:
    """The type of the result over a first argument that `takes` accepts; None where only Spark knows.

    SUM of integers is a BIGINT, of DECIMAL(p,s) a DECIMAL(p+10,s), else a DOUBLE; AVG of DECIMAL(p,s) is a
    DECIMAL(p+4,s+4), else a DOUBLE; counts are BIGINT, variances and percentiles DOUBLE; LISTAGG gives a STRING, or
    BINARY of that; the others keep the type.
    """
    if function in _COUNTS:
        return BIGINT
    if function is AggregateFunction.GROUPING:
        return TINYINT
    if function in SPREADS or function is AggregateFunction.PERCENTILE:
        return DOUBLE
    if function is AggregateFunction.LISTAGG:
        return argument if argument is None or argument.name is TypeName.BINARY else STRING
    if argument is None or function not in {AggregateFunction.SUM, AggregateFunction.AVG}:
        return argument
    if argument.name is TypeName.DECIMAL and argument.precision is not None and argument.scale is not None:
        if function is AggregateFunction.SUM:
            return decimal(argument.precision + 10, argument.scale)
        return decimal(argument.precision + 4, argument.scale + 4)
    return BIGINT if argument.is_integral and function is AggregateFunction.SUM else DOUBLE
