"""Distinct integers as bitmaps: a row for each 64, 256 or 32,768 neighbours of a group, in place of one for each value.

A value v is in bitmap floor(v / W) of width W, by shifts, which every BIGINT has, negative and extreme ones alike.

Bitmaps of 64 and 256 values are one and four *lanes*, BIGINTs: bit v mod 64 of lane floor(v / 64) mod 4. Spark's hash
aggregate updates them in place, in generated code, and one lane takes no more than the value itself. Rows of many
lanes are looked up in a table far larger than the processor's caches, though, which is what they cost.

A *block* has 32,768 values in 4 KB (`bitmap_construct_agg`), however few of them are there, and its table has few
entries. Spark would sort all rows for it, since a binary buffer cannot be updated in place by its hash aggregate; but
beside one call whose buffer is an object it hashes both (`ObjectHashAggregate`). That is what the call of
`collect_list` is for, which collects nothing. Its table is not bounded by memory, only by a number of entries (session
setting `spark.sql.objectHashAggregate.sortBased.fallbackThreshold`), after which Spark sorts.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.spec.options import AggPhase
from service.spec.query import AggregateFunction
from service.spec.scalar import Scalar, column
from service.spec.tree import Cast, Null
from service.spec.types import BIGINT, BINARY, INT, UNKNOWN, Field, TypeName
from workers.engine.plan.algebra import SplitCall, is_distinct, refusal_of, split_call
from workers.engine.plan.deduplication import names
from workers.engine.plan.distinct import distinct_sets
from workers.engine.plan.explain import call_text
from workers.engine.plan.nodes import Aggregate, Call, Named, PlanFunction, Project
from workers.engine.plan.partial_final import final_of, key_columns, partial_of
from workers.engine.plan.scalars import compose, fresh_name
from workers.engine.plan.schema import names_of

LANE, LANES, BLOCK = 64, 256, 32_768
"""Widths: values of a bitmap of one lane, of four, and of a block."""

BLOCK_BYTES = 4096 + 256
"""What a block takes in memory, with its key and its entry."""

BIT_SETTING = frozenset({PlanFunction.BIT_OR, PlanFunction.BITMAP_CONSTRUCT_AGG, PlanFunction.COLLECT_LIST})
"""The calls of bitmaps."""

_LANE_BITS = 64

_MAX_DIGITS = 18
"""Digits of the widest DECIMAL whose unscaled values are BIGINTs."""

_AS_INTEGER = {
    TypeName.TINYINT: "CAST({0} AS BIGINT)",
    TypeName.SMALLINT: "CAST({0} AS BIGINT)",
    TypeName.INT: "CAST({0} AS BIGINT)",
    TypeName.BIGINT: "{0}",
    TypeName.BOOLEAN: "CAST({0} AS BIGINT)",
    TypeName.DATE: "CAST(unix_date({0}) AS BIGINT)",
}


def as_integer(value: Scalar) -> Scalar | None:
    """`value` as a BIGINT that is equal where it is equal, NULL where it is NULL; None for types without such.

    DATE counts days; a DECIMAL of up to 18 digits counts the units of its last one.

    >>> from service.spec.scalar import column
    >>> from service.spec.types import decimal
    >>> str(as_integer(column("o.price", decimal(10, 2))))
    'CAST(o.price * 100BD AS BIGINT)'
    """
    of = value.type
    if of is None:
        return None
    if of.name is TypeName.DECIMAL:
        if of.precision is None or of.scale is None or of.precision > _MAX_DIGITS:
            return None
        return compose(f"CAST(({{0}}) * {10**of.scale}BD AS BIGINT)", (value,), BIGINT)
    template = _AS_INTEGER.get(of.name)
    return None if template is None else compose(template, (value,), BIGINT)


def bitmap_of(integer: Scalar, width: int) -> Scalar:
    """The number of the bitmap of `width` values that has the bit of `integer`, a BIGINT."""
    return compose(f"shiftright({{0}}, {width.bit_length() - 1})", (integer,), BIGINT)


def lanes_of(integer: Scalar, width: int) -> tuple[Scalar, ...]:
    """The lanes of a bitmap of `width` values with the bit of `integer` alone: 0 in all but one."""
    bit, lanes = "shiftleft(1L, CAST(({0}) & 63L AS INT))", width // _LANE_BITS
    if lanes == 1:
        return (compose(bit, (integer,), BIGINT),)
    return tuple(
        compose(f"IF((shiftright({{0}}, 6) & {lanes - 1}L) = {lane}L, {bit}, 0L)", (integer,), BIGINT)
        for lane in range(lanes)
    )


def place_in_block(integer: Scalar) -> Scalar:
    """Which bit of its block `integer` is, a BIGINT from 0."""
    return compose(f"({{0}}) & {BLOCK - 1}L", (integer,), BIGINT)


def bits_in(lanes: tuple[Scalar, ...]) -> Scalar:
    """How many bits of all `lanes` are set."""
    return compose(" + ".join(f"bit_count({{{lane}}})" for lane in range(len(lanes))), lanes, INT)


def bitmap_obstacle(node: Aggregate) -> str | None:
    """Why `node` cannot tell its distinct values apart by bitmaps, as one sentence; None where it can.

    It can where it has one set of one value with a type that `as_integer` knows, COUNT alone over it, and other calls
    that the algebra splits.
    """
    sets = distinct_sets(node)
    if len(sets) != 1:
        return f"There are {len(sets)} sets of distinct values: a bitmap has the values of one."
    if len(sets[0]) != 1:
        return f"{len(sets[0])} values together make a distinct one: a bitmap has single integers."
    value = sets[0][0]
    if as_integer(value) is None:
        of = "a type that Spark alone knows" if value.type is None else str(value.type)
        return f"{value} is of {of}: a bitmap has integers, dates, booleans and DECIMALs of up to {_MAX_DIGITS} digits."
    for call in node.calls:
        if is_distinct(call):
            if call.function is not AggregateFunction.COUNT:
                return f"{call_text(call)} needs the values themselves: a bitmap counts them."
        elif refusal_of(call) is not None:
            return f"{call_text(call)} cannot be split: {refusal_of(call)}."
    return None


def bitmap_aggregate(node: Aggregate, width: int, phase: AggPhase) -> Project:
    """`node` by bitmaps of `width` values: Project over FINAL, which counts bits, over PARTIAL, with a row a bitmap.

    Raises ValueError for an aggregate with a `bitmap_obstacle`.
    """
    obstacle = bitmap_obstacle(node)
    integer = None if obstacle else as_integer(distinct_sets(node)[0][0])
    if integer is None:
        raise ValueError(obstacle)
    taken = names_of(node) | names_of(node.input)
    keys = key_columns(node)
    bitmap = Named(bitmap_of(integer, width), fresh_name("$bitmap", taken))
    partial_names, final_names = names("$p", taken), names("$f", taken)
    bits_of = _block if width == BLOCK else _lanes
    parts = []
    for call in node.calls:
        if is_distinct(call):
            partial, bits = bits_of(call, integer, width, partial_names)
            parts.append(_counted(call, partial, bits, Field(next(final_names), BIGINT)))
        else:
            parts.append(split_call(call, partial_names, final_names))
    whole = Aggregate(node.input, (*node.keys, bitmap), tuple(call for part in parts for call in part.partial))
    below = partial_of(whole, spread=phase is AggPhase.ONE_PHASE)
    final = final_of(below, keys, tuple(call for part in parts for call in part.final), phase)
    return Project(final, (*keys, *(part.result for part in parts)))


def _lanes(call: Call, integer: Scalar, width: int, free: Iterator[str]) -> tuple[tuple[Call, ...], Scalar]:
    """The calls that set the bits of lanes, and how many are set in what they give."""
    calls = tuple(
        Call(PlanFunction.BIT_OR, (lane,), Field(next(free), BIGINT), filter=call.filter)
        for lane in lanes_of(integer, width)
    )
    return calls, bits_in(tuple(column(one.output.name, BIGINT) for one in calls))


def _block(call: Call, integer: Scalar, _width: int, free: Iterator[str]) -> tuple[tuple[Call, ...], Scalar]:
    """As `_lanes`; the list of nothing has to be asked for, or Spark leaves it out, and sorts."""
    place, nothing = place_in_block(integer), Scalar(Cast(Null(), INT, tries=False), INT)
    bits = Call(PlanFunction.BITMAP_CONSTRUCT_AGG, (place,), Field(next(free), BINARY), filter=call.filter)
    hashed = Call(PlanFunction.COLLECT_LIST, (nothing,), Field(next(free), UNKNOWN))
    both = (column(bits.output.name, BINARY), column(hashed.output.name, UNKNOWN))
    return (bits, hashed), compose("bitmap_count({0}) + size({1})", both, BIGINT)


def _counted(call: Call, partial: tuple[Call, ...], bits: Scalar, total: Field) -> SplitCall:
    """COUNT(DISTINCT …): `bits` of each bitmap, added up."""
    final = Call(AggregateFunction.SUM, (bits,), total)
    # Where no row is counted there is no bitmap to add up: a global aggregate of nothing, or a filter that keeps none.
    count = compose("COALESCE({0}, 0L)", (column(total.name, BIGINT),), BIGINT)
    return SplitCall(partial, (final,), Named(count, call.output.name))
