"""Argument and result types of the aggregate functions of Spark 4.3, and how results are merged from partial ones.

By the type of a SUM's argument, `refusal_of_parts` decides whether sums of parts add up to exactly the same sum.

A streaming query cannot aggregate an aggregate, since there are no retractions. If the state of a group is stored in
parts, a mini-batch emits the changed parts, and the sink or the reader of the result merges the newest row of every
part (`FinalLevel`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from service.contract.query import AggregateFunction
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    FRACTIONAL,
    INTEGRAL,
    NUMERIC,
    STRING,
    TEMPORAL,
    TINYINT,
    DataType,
    Field,
    TypeName,
    array,
    as_decimal,
    decimal,
    struct,
)

ORDERED = frozenset({AggregateFunction.FIRST_VALUE, AggregateFunction.LAST_VALUE, AggregateFunction.LISTAGG})
"""Functions that take an order."""

SKETCHES_OF_SKETCHES = frozenset(
    {
        AggregateFunction.HLL_UNION_AGG,
        AggregateFunction.THETA_UNION_AGG,
        AggregateFunction.THETA_INTERSECTION_AGG,
        AggregateFunction.KLL_MERGE_AGG_BIGINT,
        AggregateFunction.KLL_MERGE_AGG_FLOAT,
        AggregateFunction.KLL_MERGE_AGG_DOUBLE,
    }
)
"""Functions that merge sketches, which are BINARY values."""
SKETCHES = SKETCHES_OF_SKETCHES | {
    AggregateFunction.HLL_SKETCH_AGG,
    AggregateFunction.THETA_SKETCH_AGG,
    AggregateFunction.KLL_SKETCH_AGG_BIGINT,
    AggregateFunction.KLL_SKETCH_AGG_FLOAT,
    AggregateFunction.KLL_SKETCH_AGG_DOUBLE,
    AggregateFunction.COUNT_MIN_SKETCH,
}
"""Functions that return a sketch, also without rows."""

ORDER_DEPENDENT = (SKETCHES - {AggregateFunction.COUNT_MIN_SKETCH}) | frozenset(
    {
        AggregateFunction.HISTOGRAM_NUMERIC,
        AggregateFunction.COLLECT_UNION,
        AggregateFunction.APPROX_TOP_K,
        AggregateFunction.FIRST,
        AggregateFunction.LAST,
        AggregateFunction.COLLECT_LIST,
        AggregateFunction.COLLECT_SET,
    }
)
"""Functions whose result depends on the order in which Spark reads the rows, and may differ when a job runs again."""

APPROXIMATE = frozenset(
    {
        AggregateFunction.APPROX_COUNT_DISTINCT,
        AggregateFunction.APPROX_PERCENTILE,
        AggregateFunction.COUNT_MIN_SKETCH,
    }
)
"""Functions whose result is an estimate."""

KEEPS_VALUES = frozenset(
    {
        AggregateFunction.LISTAGG,
        AggregateFunction.PERCENTILE,
        AggregateFunction.PERCENTILE_DISC,
        AggregateFunction.MODE,
        AggregateFunction.COLLECT_LIST,
        AggregateFunction.COLLECT_SET,
        AggregateFunction.COLLECT_UNION,
    }
)
"""Functions whose state contains all values of a group."""

COUNTS_NULLS = frozenset({AggregateFunction.APPROX_TOP_K})
"""Functions that count NULL as a value, so that a stream cannot give them rows of NULLs."""

CONDITIONAL = frozenset({AggregateFunction.COUNT_IF, AggregateFunction.BOOL_AND, AggregateFunction.BOOL_OR})
"""Functions of a condition."""

NEAREST = frozenset({AggregateFunction.MIN_BY, AggregateFunction.MAX_BY})
"""Functions that return the value of the row with the smallest or largest order."""
BITS = frozenset({AggregateFunction.BIT_AND, AggregateFunction.BIT_OR, AggregateFunction.BIT_XOR})
PAIRED = frozenset(
    function for function in AggregateFunction if function.startswith(("REGR_", "COVAR_")) or function == "CORR"
)
"""Statistics of pairs of numbers."""

SPREADS = frozenset(
    {
        AggregateFunction.VAR_POP,
        AggregateFunction.VAR_SAMP,
        AggregateFunction.STDDEV_POP,
        AggregateFunction.STDDEV_SAMP,
    }
)
"""Variances and standard deviations."""

OF_GROUPING_SETS = frozenset({AggregateFunction.GROUPING, AggregateFunction.GROUPING_ID})
"""Functions of the grouping set that a row belongs to."""

IDEMPOTENT = frozenset(
    {
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.APPROX_COUNT_DISTINCT,
        AggregateFunction.BOOL_AND,
        AggregateFunction.BOOL_OR,
        AggregateFunction.BIT_AND,
        AggregateFunction.BIT_OR,
        AggregateFunction.ANY_VALUE,
        AggregateFunction.COLLECT_SET,
    }
)
"""Functions that DISTINCT does not change."""

_SUMMABLE = NUMERIC | {TypeName.STRING, TypeName.NULL, TypeName.TIMESTAMP}


_READ_AS_NUMBERS = NUMERIC | {TypeName.STRING, TypeName.NULL}
_COUNTS = frozenset(
    {
        AggregateFunction.COUNT,
        AggregateFunction.COUNT_IF,
        AggregateFunction.REGR_COUNT,
        AggregateFunction.APPROX_COUNT_DISTINCT,
        AggregateFunction.GROUPING_ID,
    }
)
_SUMS = {
    AggregateFunction.SUM: AggregateFunction.SUM,
    AggregateFunction.TRY_SUM: AggregateFunction.SUM,
    AggregateFunction.AVG: AggregateFunction.AVG,
    AggregateFunction.TRY_AVG: AggregateFunction.AVG,
    AggregateFunction.REGR_AVGX: AggregateFunction.AVG,
    AggregateFunction.REGR_AVGY: AggregateFunction.AVG,
}
_DOUBLES = (
    SPREADS
    | (PAIRED - _SUMS.keys())
    | {
        AggregateFunction.PERCENTILE,
        AggregateFunction.PERCENTILE_DISC,
        AggregateFunction.SKEWNESS,
        AggregateFunction.KURTOSIS,
    }
)
_VECTORS = frozenset({AggregateFunction.VECTOR_AVG, AggregateFunction.VECTOR_SUM})
_WHOLE = frozenset({TypeName.INT, TypeName.BIGINT})
_SKETCHED: dict[AggregateFunction, frozenset[TypeName]] = {
    AggregateFunction.HISTOGRAM_NUMERIC: _SUMMABLE | TEMPORAL,
    AggregateFunction.HLL_SKETCH_AGG: _WHOLE | {TypeName.STRING, TypeName.BINARY, TypeName.NULL},
    AggregateFunction.THETA_SKETCH_AGG: _WHOLE | FRACTIONAL | {TypeName.STRING, TypeName.BINARY, TypeName.NULL},
    AggregateFunction.KLL_SKETCH_AGG_BIGINT: INTEGRAL | {TypeName.NULL},
    AggregateFunction.KLL_SKETCH_AGG_FLOAT: frozenset({TypeName.FLOAT, TypeName.NULL}),
    AggregateFunction.KLL_SKETCH_AGG_DOUBLE: FRACTIONAL | {TypeName.NULL},
    AggregateFunction.COUNT_MIN_SKETCH: INTEGRAL | {TypeName.STRING, TypeName.BINARY},
    AggregateFunction.APPROX_TOP_K: NUMERIC | TEMPORAL | {TypeName.BOOLEAN, TypeName.STRING},
    **dict.fromkeys(SKETCHES_OF_SKETCHES, frozenset({TypeName.BINARY, TypeName.NULL})),
}
"""The types of the first arguments of some functions."""
_OF_NESTED = frozenset({AggregateFunction.COLLECT_LIST, AggregateFunction.FIRST, AggregateFunction.LAST})
"""Functions that take every type."""
_OF_COMPARED = frozenset(
    {
        AggregateFunction.COLLECT_SET,
        AggregateFunction.ANY_VALUE,
        AggregateFunction.MODE,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
    }
)
"""Functions that compare values, so that they take arrays and structures, but no maps."""
PERCENTILES = frozenset(
    {AggregateFunction.PERCENTILE, AggregateFunction.PERCENTILE_DISC, AggregateFunction.APPROX_PERCENTILE}
)
"""Functions whose percentage may be an array of several."""
MAX_SUM_PRECISION = 28
"""Maximum digits of a DECIMAL whose SUM is computed below a join: like Spark's own type, the sum has ten more."""
MAX_PRODUCT_PRECISION = 20
"""Maximum digits of a DECIMAL whose SUM is multiplied by a count: 38 digits then suffice for 10^18 rows."""
MAX_PRODUCT_SCALE = 6
"""Maximum digits after the decimal point of a product that Spark keeps (`DecimalType.MINIMUM_ADJUSTED_SCALE`)."""
MAX_AVERAGE_PRECISION = 12
"""Maximum digits of a DECIMAL whose AVG is split: exact for up to 10^12 joined rows (see `plan/aggregates.py`)."""
MAX_FACTOR_DIGITS = 24
"""Maximum digits of both factors of a DECIMAL product together: 38 digits then suffice for the sum of 10^14 of them,
which are ten million rows of one key on either side. The query's own sum has eleven digits more than a product."""
MAX_FACTOR_SCALE = 6
"""Maximum digits after the decimal point, of both factors together, that Spark always keeps in a product of sums
(`DecimalType.MINIMUM_ADJUSTED_SCALE`)."""


def takes(function: AggregateFunction, type_: DataType) -> bool:
    """Whether Spark accepts a first argument of this type."""
    if function is AggregateFunction.COUNT or function in OF_GROUPING_SETS | _OF_NESTED:
        return True
    if function in _SUMS.keys() - PAIRED:
        return type_.name in _SUMMABLE
    if function in _DOUBLES | PAIRED:
        return type_.name in _READ_AS_NUMBERS
    if function in CONDITIONAL:
        return type_.name in {TypeName.BOOLEAN, TypeName.STRING, TypeName.NULL}
    if function in BITS:
        return type_.name in INTEGRAL
    if function in _SKETCHED:
        return type_.name in _SKETCHED[function]
    if function in _VECTORS:
        return type_ == array(FLOAT)
    if function is AggregateFunction.COLLECT_UNION:
        return type_.name is TypeName.ARRAY and type_.is_groupable
    if function is AggregateFunction.APPROX_PERCENTILE:
        return type_.name in _READ_AS_NUMBERS | TEMPORAL
    if function in _OF_COMPARED:
        return type_.is_groupable
    if function in NEAREST:
        return type_.is_known
    return type_.is_known if function is AggregateFunction.COLLECT_LIST else type_.is_atomic


def deciding(function: AggregateFunction) -> int:
    """Returns the position of the argument whose type decides that of the result."""
    return 1 if function is AggregateFunction.REGR_AVGX else 0


def result_type(function: AggregateFunction, argument: DataType | None) -> DataType | None:
    """Returns the result type for a `deciding` argument that `takes` accepts; None if it is not known before the query
    runs.

    SUM of integers is a BIGINT, of DECIMAL(p,s) a DECIMAL(p+10,s), else a DOUBLE; AVG of DECIMAL(p,s) is a
    DECIMAL(p+4,s+4), else a DOUBLE; counts are BIGINT, variances, percentiles and other statistics DOUBLE; LISTAGG
    returns a STRING, or BINARY for BINARY, a list of values an ARRAY; the others return the argument's type.
    """
    if function in _COUNTS:
        return BIGINT
    if function is AggregateFunction.GROUPING:
        return TINYINT
    if function in _DOUBLES:
        return DOUBLE
    if function in {AggregateFunction.BOOL_AND, AggregateFunction.BOOL_OR}:
        return BOOLEAN
    if function in SKETCHES:
        return BINARY
    if argument is None:
        return None
    if function is AggregateFunction.HISTOGRAM_NUMERIC:
        of = DOUBLE if argument.name is TypeName.STRING else argument
        return array(struct((Field("x", of), Field("y", DOUBLE))))
    if function is AggregateFunction.APPROX_TOP_K:
        return array(struct((Field("item", argument), Field("count", BIGINT))))
    if function is AggregateFunction.LISTAGG:
        return argument if argument.name is TypeName.BINARY else STRING
    if function in {AggregateFunction.COLLECT_LIST, AggregateFunction.COLLECT_SET}:
        return array(argument)
    if function is AggregateFunction.APPROX_PERCENTILE and argument.name is TypeName.STRING:
        return DOUBLE
    if function not in _SUMS:
        return argument
    if argument.name is TypeName.DECIMAL and argument.precision is not None and argument.scale is not None:
        if _SUMS[function] is AggregateFunction.SUM:
            return decimal(argument.precision + 10, argument.scale)
        return decimal(argument.precision + 4, argument.scale + 4)
    return BIGINT if argument.is_integral and _SUMS[function] is AggregateFunction.SUM else DOUBLE


def refusal_of_parts(of: DataType | None, *, is_average: bool, weighed: bool) -> str | None:
    """Returns why a SUM or AVG of values of type `of` cannot be computed from sums of parts, as the end of a sentence.

    `weighed`: sums are multiplied by numbers of rows.

    >>> from service.sql.types.data_types import decimal
    >>> refusal_of_parts(decimal(10, 2), is_average=False, weighed=True)
    >>> refusal_of_parts(decimal(30, 2), is_average=False, weighed=False)
    'is over DECIMAL(30,2): parts of the sum could need more than 38 digits where the sum does not'
    """
    if of is None or not of.is_numeric:
        reason = "has an argument whose type is not known before the query runs"
        return f"is over {of}, which cannot be summed in parts" if of else reason
    if of.name is not TypeName.DECIMAL:
        return None
    precision, scale = of.precision or 0, of.scale or 0
    if is_average and precision > MAX_AVERAGE_PRECISION:
        return f"is over {of}: with more than {MAX_AVERAGE_PRECISION} digits its quotient would be rounded twice"
    if precision > (MAX_PRODUCT_PRECISION if weighed else MAX_SUM_PRECISION):
        return f"is over {of}: parts of the sum could need more than 38 digits where the sum does not"
    if weighed and scale > MAX_PRODUCT_SCALE:
        return f"is over {of}: its product with a count would lose digits after the decimal point"
    return None


def product_has_parts(product: DataType | None, one: DataType | None, other: DataType | None) -> bool:
    """Whether the sum of products of values of these types is the product of their sums."""
    if product is None or one is None or other is None or not (one.is_numeric and other.is_numeric):
        return False
    if product.is_integral or product.name is TypeName.DOUBLE:
        return True
    if product.name is not TypeName.DECIMAL:
        return False
    (p1, s1), (p2, s2) = as_decimal(one), as_decimal(other)
    return p1 + p2 <= MAX_FACTOR_DIGITS and s1 + s2 <= MAX_FACTOR_SCALE


class Merge(StrEnum):
    """How the values of a group's parts become the group's value. NULLs are ignored; only NULLs give NULL."""

    SUM = "SUM"
    MIN = "MIN"
    MAX = "MAX"


@dataclass(frozen=True)
class MergedColumn:
    """The column `name` of the parts, merged over a group."""

    name: str
    merge: Merge


@dataclass(frozen=True)
class FinalColumn:
    """A column of the result: a group key or a merged column of that name (`source`), or, with `divisor`, the quotient
    of two merged columns as DOUBLE, NULL if the divisor is 0. `zero`: 0 instead of NULL, for counts.
    """

    field: Field
    source: str
    divisor: str | None = None
    zero: bool = False


@dataclass(frozen=True)
class FinalLevel:
    """Rows of one group have equal `keys`; the columns `parts` identify a part within the group."""

    keys: tuple[str, ...]
    parts: tuple[str, ...]
    merged: tuple[MergedColumn, ...]
    output: tuple[FinalColumn, ...]
