"""The split of an aggregate into a partial and a final one, and its sets of DISTINCT values.

`ALGEBRA` is a table: for each function, DISTINCT and argument types, it has the calls of the partial aggregate, those
of the final one over their columns, and the expression for the call's value. The parts of a DISTINCT call must have
disjoint values. A call that no row covers is not split. Types are Spark's: SUM widens (integral to BIGINT, fractional
to DOUBLE, DECIMAL(p,s) to DECIMAL(p+10,s)), AVG is a DOUBLE, for DECIMAL(p,s) a DECIMAL(p+4,s+4) rounded half up.
Whether a partial sum overflows or loses digits depends on the order of the rows, as in Spark's own two phases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from service.contract.options import AggPhase
from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.aggregates import BITS, PAIRED, SKETCHES, result_type
from service.sql.types.data_types import DOUBLE, FRACTIONAL, INTEGRAL, DataType, Field, TypeName, decimal
from workers.engine.plan.expressions import compose
from workers.engine.plan.nodes import UNKNOWN, Aggregate, AggregateRole, Call, Exchange, Named, Phases, PlanFunction

_BY_ORDER: dict[AggregateFunction | PlanFunction, AggregateFunction] = {
    PlanFunction.MIN_BY: AggregateFunction.FIRST_VALUE,
    PlanFunction.MAX_BY: AggregateFunction.LAST_VALUE,
}

MAX_AVG_PRECISION = 14
"""Most digits of a DECIMAL whose AVG is split.

The quotient of DECIMAL(p+10,s) by DECIMAL(20,0) has 24-p more digits than the s+4 of the result, to which it is then
rounded. A quotient by a count c differs from a tie by at least 1/(2c), so rounding twice equals rounding once if
c < 10^(24-p): with 14 digits, up to 10^10 rows in one group.
"""

GROUPING_SETS = "Spark copies the rows for each of the grouping sets: its own plan is kept."
"""The reason why rules do not change an aggregate with grouping sets."""


@dataclass(frozen=True)
class Operand:
    """An argument of a part: the source at `position`, cast to `cast` if that is given.

    The sources of a partial call are the call's arguments, `order_by` last; those of a final one are the partial calls'
    columns.
    """

    position: int
    cast: DataType | None = None

    def of(self, sources: tuple[Scalar, ...]) -> Scalar:
        """Returns the operand as an expression."""
        source = sources[self.position]
        return source if self.cast is None else compose(f"CAST({{0}} AS {self.cast})", (source,), self.cast)


@dataclass(frozen=True)
class Part:
    """One call of the partial or of the final aggregate. Without operands it has the call's own arguments."""

    function: AggregateFunction | PlanFunction
    operands: tuple[Operand, ...] = ()
    distinct: bool = False


@dataclass(frozen=True)
class AlgebraRow:
    """One row of the table.

    `argument_types` are the types of the first argument (None: all types, and COUNT(*)). In `result`, `{0}`, `{1}`, …
    are the final calls' columns, `{type}` is the type of the call and `{part}` the type of its first partial call.
    `refusal` is the reason why the call is not split; `max_precision` limits the row to DECIMALs with so many digits.
    """

    function: AggregateFunction
    distinct: bool
    argument_types: frozenset[TypeName] | None
    partial: tuple[Part, ...] = ()
    final: tuple[Part, ...] = ()
    result: str = "{0}"
    max_precision: int | None = None
    refusal: str | None = None


_FIRST, _SECOND = Operand(0), Operand(1)
_FIRST_AS_DOUBLE = Operand(0, DOUBLE)
_FIRST_AS_DECIMAL = Operand(0, decimal(20, 0))

_COUNT, _SUM, _AVG = AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.AVG
_MIN, _MAX = AggregateFunction.MIN, AggregateFunction.MAX

_DECIMAL = frozenset({TypeName.DECIMAL})
_SMALL_INTEGRAL = INTEGRAL - {TypeName.BIGINT}
_BIGINT = frozenset({TypeName.BIGINT})

_SUM_OF_FIRST = Part(_SUM, (_FIRST,))
_SUM_OF_SECOND = Part(_SUM, (_SECOND,))
QUOTIENT = "CAST({0} AS DOUBLE) / NULLIF(CAST({1} AS DOUBLE), 0.0D)"
_DECIMAL_QUOTIENT = "CAST(CAST({0} AS {part}) / NULLIF(CAST({1} AS DECIMAL(20,0)), 0) AS {type})"
_TOO_MANY_DIGITS = f"the quotient of a DECIMAL of more than {MAX_AVG_PRECISION} digits would be rounded twice"


def _average(
    types: frozenset[TypeName], operand: Operand, distinct: bool, result: str, max_precision: int | None = None
) -> AlgebraRow:
    return AlgebraRow(
        _AVG,
        distinct,
        types,
        partial=(Part(_SUM, (operand,), distinct), Part(_COUNT, (operand,), distinct)),
        final=(_SUM_OF_FIRST, _SUM_OF_SECOND),
        result=result,
        max_precision=max_precision,
    )


def _extreme(function: AggregateFunction, distinct: bool) -> AlgebraRow:
    """Returns the row for MIN or MAX. The parts have no DISTINCT, since it changes nothing."""
    part = Part(function, (_FIRST,))
    return AlgebraRow(function, distinct, None, partial=(part,), final=(part,))


def _bits(function: AggregateFunction, distinct: bool) -> AlgebraRow:
    """Returns the row for an aggregate of bits. Only BIT_XOR depends on DISTINCT."""
    keeps = distinct and function is AggregateFunction.BIT_XOR
    return AlgebraRow(function, distinct, INTEGRAL, (Part(function, (_FIRST,), keeps),), (Part(function, (_FIRST,)),))


def _nearest(function: AggregateFunction, by: PlanFunction, bound: AggregateFunction) -> AlgebraRow:
    """Returns the row for FIRST_VALUE or LAST_VALUE: the value with the smallest or largest order. Rows with a NULL
    order do not count, as in Spark's MIN_BY.
    """
    return AlgebraRow(
        function,
        False,
        None,
        partial=(Part(by, (_FIRST, _SECOND)), Part(bound, (_SECOND,))),
        final=(Part(by, (_FIRST, _SECOND)),),
    )


_REFUSED = {
    AggregateFunction.VAR_POP: "sums of squares lose the digits of a small variance",
    AggregateFunction.VAR_SAMP: "sums of squares lose the digits of a small variance",
    AggregateFunction.STDDEV_POP: "sums of squares lose the digits of a small deviation",
    AggregateFunction.STDDEV_SAMP: "sums of squares lose the digits of a small deviation",
    AggregateFunction.LISTAGG: "it needs all rows in one order",
    AggregateFunction.APPROX_COUNT_DISTINCT: "its sketch would have to be stored in a column",
    AggregateFunction.PERCENTILE: "it needs all values in order",
    AggregateFunction.PERCENTILE_DISC: "it needs all values in order",
    AggregateFunction.APPROX_PERCENTILE: "its summary would have to be stored in a column",
    AggregateFunction.MODE: "it needs the number of rows of each value",
    AggregateFunction.FIRST: "it depends on the order of the rows",
    AggregateFunction.LAST: "it depends on the order of the rows",
    AggregateFunction.COLLECT_LIST: "its lists would have to be stored in a column",
    AggregateFunction.COLLECT_SET: "its lists would have to be stored in a column",
    AggregateFunction.TRY_SUM: "a part of the sum may overflow where the sum does not",
    AggregateFunction.TRY_AVG: "a part of the sum may overflow where the average does not",
    AggregateFunction.SKEWNESS: "sums of powers lose the digits of a small variance",
    AggregateFunction.KURTOSIS: "sums of powers lose the digits of a small variance",
    **dict.fromkeys(sorted(SKETCHES), "its sketch would have to be stored in a column"),
    AggregateFunction.HISTOGRAM_NUMERIC: "its bins would have to be stored in a column",
    AggregateFunction.APPROX_TOP_K: "its sketch would have to be stored in a column",
    AggregateFunction.COLLECT_UNION: "its lists would have to be stored in a column",
    AggregateFunction.VECTOR_AVG: "its vectors would have to be stored in a column",
    AggregateFunction.VECTOR_SUM: "its vectors would have to be stored in a column",
    **dict.fromkeys(sorted(PAIRED), "sums of products lose the digits of a small variance"),
    AggregateFunction.GROUPING: "it distinguishes grouping sets, not rows",
    AggregateFunction.GROUPING_ID: "it distinguishes grouping sets, not rows",
}


ALGEBRA: tuple[AlgebraRow, ...] = (
    # A global aggregate of no rows has no parts: the final SUM is NULL, but COUNT is 0.
    AlgebraRow(_COUNT, False, None, (Part(_COUNT),), (_SUM_OF_FIRST,), "COALESCE({0}, 0L)"),
    AlgebraRow(_COUNT, True, None, (Part(_COUNT, distinct=True),), (_SUM_OF_FIRST,), "COALESCE({0}, 0L)"),
    AlgebraRow(_SUM, False, INTEGRAL | FRACTIONAL, (Part(_SUM, (_FIRST,)),), (_SUM_OF_FIRST,)),
    AlgebraRow(_SUM, True, INTEGRAL | FRACTIONAL, (Part(_SUM, (_FIRST,), True),), (_SUM_OF_FIRST,)),
    # The sum of sums is ten digits wider again, so it is cast back.
    AlgebraRow(_SUM, False, _DECIMAL, (Part(_SUM, (_FIRST,)),), (_SUM_OF_FIRST,), "CAST({0} AS {type})"),
    AlgebraRow(_SUM, True, _DECIMAL, (Part(_SUM, (_FIRST,), True),), (_SUM_OF_FIRST,), "CAST({0} AS {type})"),
    # Spark's AVG sums integers as doubles, so it does not overflow where their SUM would.
    _average(INTEGRAL | FRACTIONAL, _FIRST_AS_DOUBLE, False, QUOTIENT),
    # Values are deduplicated before they become doubles; the sum of distinct BIGINTs needs more than 64 bits.
    _average(_SMALL_INTEGRAL | FRACTIONAL, _FIRST, True, QUOTIENT),
    _average(_BIGINT, _FIRST_AS_DECIMAL, True, QUOTIENT),
    _average(_DECIMAL, _FIRST, False, _DECIMAL_QUOTIENT, MAX_AVG_PRECISION),
    _average(_DECIMAL, _FIRST, True, _DECIMAL_QUOTIENT, MAX_AVG_PRECISION),
    AlgebraRow(_AVG, False, _DECIMAL, refusal=_TOO_MANY_DIGITS),
    AlgebraRow(_AVG, True, _DECIMAL, refusal=_TOO_MANY_DIGITS),
    _extreme(_MIN, False),
    _extreme(_MIN, True),
    _extreme(_MAX, False),
    _extreme(_MAX, True),
    _nearest(AggregateFunction.FIRST_VALUE, PlanFunction.MIN_BY, _MIN),
    _nearest(AggregateFunction.LAST_VALUE, PlanFunction.MAX_BY, _MAX),
    *(_bits(function, one) for function in sorted(BITS) for one in (False, True)),
    *(AlgebraRow(function, one, None, refusal=why) for function, why in _REFUSED.items() for one in (False, True)),
)
"""The first row that covers a call applies to it."""


@dataclass(frozen=True)
class SplitCall:
    """The parts of a call. `result` is an expression over the final calls' outputs with the call's name and type."""

    partial: tuple[Call, ...]
    final: tuple[Call, ...]
    result: Named


def row_of(call: Call) -> AlgebraRow | None:
    """Returns the row that covers `call`, also if it has a refusal; None if there is none."""
    return next((row for row in ALGEBRA if _covers(row, call)), None)


def refusal_of(call: Call) -> str | None:
    """Returns the reason why `call` cannot be split, as the end of a sentence; None if it can be."""
    row = row_of(call)
    if row is not None:
        return row.refusal
    of = call.arguments[0].type if call.arguments else None
    return f"{call.function} of {of} has no partial form" if of else "only Spark can determine the type of its argument"


def is_distinct(call: Call) -> bool:
    """Whether `call` has a DISTINCT that affects its result: not for MIN and MAX."""
    row = row_of(call)
    return call.distinct and (row is None or row.refusal is not None or any(part.distinct for part in row.partial))


def split_call(call: Call, partial_names: Iterator[str], final_names: Iterator[str]) -> SplitCall:
    """Returns the parts of `call`, with column names from the two iterators; the partial calls have its FILTER.

    Raises ValueError for a call that `refusal_of` refuses.
    """
    row = row_of(call)
    if row is None or row.refusal is not None:
        raise ValueError(f"{call.function} cannot be split: {refusal_of(call)}")
    arguments = call.arguments if call.order_by is None else (*call.arguments, call.order_by)
    partial = tuple(_part(part, arguments, next(partial_names), call.filter) for part in row.partial)
    final = tuple(_part(part, _columns(partial), next(final_names), None) for part in row.final)
    template = row.result.replace("{type}", str(call.output.type)).replace("{part}", str(partial[0].output.type))
    return SplitCall(partial, final, Named(compose(template, _columns(final), call.output.type), call.output.name))


def as_splittable(call: Call) -> Call:
    """Returns `call`, of a final aggregate, as a call that `split_call` supports: MIN_BY becomes FIRST_VALUE, MAX_BY
    LAST_VALUE.
    """
    function = _BY_ORDER.get(call.function)
    if function is None:
        return call
    value, order_by = call.arguments
    return replace(call, function=function, arguments=(value,), order_by=order_by)


def _covers(row: AlgebraRow, call: Call) -> bool:
    if (row.function, row.distinct) != (call.function, call.distinct):
        return False
    if row.argument_types is None:
        return True
    of = call.arguments[0].type
    if of is None or of.name not in row.argument_types:
        return False
    return row.max_precision is None or (of.precision is not None and of.precision <= row.max_precision)


def _part(part: Part, sources: tuple[Scalar, ...], name: str, filter_: Scalar | None) -> Call:
    used = tuple(operand.of(sources) for operand in part.operands) or sources
    return Call(part.function, used, Field(name, _type_of(part.function, used)), part.distinct, filter_)


def _type_of(function: AggregateFunction | PlanFunction, arguments: tuple[Scalar, ...]) -> DataType:
    """Returns Spark's type of `function` over `arguments`."""
    of = arguments[0].type if arguments else None
    return (of if isinstance(function, PlanFunction) else result_type(function, of)) or UNKNOWN


def _columns(calls: tuple[Call, ...]) -> tuple[Scalar, ...]:
    return tuple(column(call.output.name, call.output.type) for call in calls)


def is_undecided(node: Aggregate) -> bool:
    """Whether `node` is a whole aggregate whose phases no rule has decided."""
    return node.role is AggregateRole.WHOLE and node.phases is Phases.UNDECIDED


def distinct_sets(node: Aggregate) -> tuple[tuple[Scalar, ...], ...]:
    """Returns the arguments of the calls with a DISTINCT that affects the result, once for each set of them, in order.

    COUNT(DISTINCT a) and SUM(DISTINCT a) FILTER (…) share one set, as COUNT(DISTINCT a, b) and COUNT(DISTINCT b, a) do.
    """
    found: dict[frozenset[str], tuple[Scalar, ...]] = {}
    for call in node.calls:
        if is_distinct(call):
            found.setdefault(distinct_set_of(call), call.arguments)
    return tuple(found.values())


def spark_expands(node: Aggregate) -> bool:
    """Whether Spark copies rows (`Expand`) to deduplicate the DISTINCT values, and shuffles the copies by group and
    value although the rows may be partitioned already: for several sets of values, and for one with a FILTER.
    """
    filtered = any(is_distinct(call) and call.filter is not None for call in node.calls)
    return filtered or len(distinct_sets(node)) > 1


def distinct_set_of(call: Call) -> frozenset[str]:
    """Returns the identity of a distinct call's set: the texts of its arguments."""
    return frozenset(argument.sql for argument in call.arguments)


def bucket_refusal(value: Scalar) -> str | None:
    """Returns a sentence that says why `value` cannot be divided into buckets by its hash; None if equal values have
    equal hashes.
    """
    if value.type is None or not value.type.is_groupable:
        return f"It is not known whether equal values of {value} have equal hashes."
    if value.type.nests_fractions:
        return f"{value} contains fractions: equal ones (-0.0 and 0.0) may have different hashes."
    return None


def key_columns(node: Aggregate) -> tuple[Named, ...]:
    """Returns the group keys of `node`, as the columns that it emits, for an aggregate above it."""
    return tuple(Named(column(key.name, key.expression.type), key.name) for key in node.keys)


def partial_of(aggregate: Aggregate, spread: bool) -> Aggregate:
    """Returns `aggregate` as a partial one: in two phases, or with `spread` in one after an exchange by its keys."""
    if not spread:
        return replace(aggregate, role=AggregateRole.PARTIAL, phases=Phases.TWO_PHASE)
    exchange = Exchange(aggregate.input, tuple(key.expression for key in aggregate.keys))
    return replace(aggregate, input=exchange, role=AggregateRole.PARTIAL, phases=Phases.ONE_PHASE)


def final_of(partial: Aggregate, keys: tuple[Named, ...], calls: tuple[Call, ...], phase: AggPhase) -> Aggregate:
    """Returns the final aggregate over `partial`: in two phases; in one if that is forced and there are keys."""
    if phase is AggPhase.ONE_PHASE and keys:
        exchange = Exchange(partial, tuple(key.expression for key in keys))
        return Aggregate(exchange, keys, calls, AggregateRole.FINAL, Phases.ONE_PHASE)
    return Aggregate(partial, keys, calls, AggregateRole.FINAL, Phases.TWO_PHASE)
