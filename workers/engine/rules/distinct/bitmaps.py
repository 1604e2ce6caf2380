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

Distinct values by the groups that have them: a row for each value and run of 64 neighbouring groups, which are the
bits of a BIGINT, in place of one for each (group, value).

Behind an exchange by the values, each is one entry of a hash table for each run that it is in; counting by group is
summing each of the 64 bits over the entries. As with the bitmaps above, a group key g is bit g mod 64 of run
floor(g / 64), by shifts. The group NULL has a run of its own, which is NULL.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.contract.options import AggPhase
from service.contract.query import AggregateFunction
from service.sql.checks.settings import MAX_GROUP_BITMAP_COUNTS
from service.sql.expressions.nodes import Cast, Null
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BINARY, BOOLEAN, INT, UNKNOWN, DataType, Field, TypeName
from workers.engine.plan.aggregates import (
    SplitCall,
    distinct_sets,
    final_of,
    is_distinct,
    key_columns,
    partial_of,
    refusal_of,
    split_call,
)
from workers.engine.plan.explain import call_text
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Call,
    Exchange,
    Expand,
    Filter,
    Named,
    Phases,
    PlanFunction,
    Project,
    names_of,
)
from workers.engine.rules.distinct.deduplication import names

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

    >>> from service.sql.expressions.scalar import column
    >>> from service.sql.types.data_types import decimal
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


GROUPS = 64
"""Neighbouring groups of a bitmap."""

_FROM_INTEGER = {
    TypeName.TINYINT: "CAST({0} AS TINYINT)",
    TypeName.SMALLINT: "CAST({0} AS SMALLINT)",
    TypeName.INT: "CAST({0} AS INT)",
    TypeName.BIGINT: "{0}",
    TypeName.BOOLEAN: "CAST({0} AS BOOLEAN)",
    TypeName.DATE: "date_from_unix_date(CAST({0} AS INT))",
}


def group_bitmap_obstacle(node: Aggregate) -> str | None:
    """Why `node` cannot tell its distinct values apart by bitmaps of groups, as one sentence; None where it can.

    It can where it has one group key, which is an integer, a DATE or a BOOLEAN, one set of distinct values, and a few
    COUNTs of these alone.
    """
    sets = distinct_sets(node)
    if len(sets) != 1:
        return f"There are {len(sets)} sets of distinct values: a bitmap has the groups of one."
    if len(node.keys) != 1:
        return f"There are {len(node.keys)} group keys: a bitmap has the groups of one."
    of = node.keys[0].expression.type
    if of is None or of.name not in _FROM_INTEGER:
        told = "a type that Spark alone knows" if of is None else str(of)
        return f"The group key is of {told}: a bitmap has groups that are integers, dates or booleans."
    for call in node.calls:
        if not is_distinct(call) or call.function is not AggregateFunction.COUNT:
            return f"{call_text(call)} needs the rows of a group together: a bitmap of groups counts their values."
    if len(node.calls) > MAX_GROUP_BITMAP_COUNTS:
        return f"There are {len(node.calls)} counts: bitmaps of groups are for {MAX_GROUP_BITMAP_COUNTS} at most."
    return None


def group_bitmap_aggregate(
    node: Aggregate, partitions: int | None, phase: AggPhase, values_in: Phases = Phases.ONE_PHASE
) -> Project:
    """`node` by bitmaps of groups: an aggregate with a row for each value and run, and over it one that counts each
    bit, of which `phase` tells the phases. The lower one has the phases `values_in`; in one, it is behind an exchange
    by the values to `partitions` (Spark's number by default).

    Raises ValueError for an aggregate with a `group_bitmap_obstacle`.
    """
    obstacle = group_bitmap_obstacle(node)
    integer = None if obstacle else as_integer(node.keys[0].expression)
    if integer is None:
        raise ValueError(obstacle)
    taken = names_of(node) | names_of(node.input)
    (values,) = distinct_sets(node)
    run = Named(compose("shiftright({0}, 6)", (integer,), BIGINT), fresh_name("$run", taken))
    apart = tuple(Named(value, fresh_name(f"$v{number}", taken)) for number, value in enumerate(values))
    bit = compose("shiftleft(1L, CAST(COALESCE(({0}) & 63L, 0L) AS INT))", (integer,), BIGINT)
    partial_names, final_names = names("$p", taken), names("$f", taken)
    # The groups of every row, whatever a FILTER leaves out: a group is there where it has a row.
    present = Call(PlanFunction.BIT_OR, (bit,), Field(next(partial_names), BIGINT))
    counted = tuple(
        present
        if call.filter is None
        else Call(PlanFunction.BIT_OR, (bit,), Field(next(partial_names), BIGINT), filter=call.filter)
        for call in node.calls
    )
    rows = Exchange(node.input, values, partitions) if values_in is Phases.ONE_PHASE else node.input
    calls = tuple(dict.fromkeys((present, *counted)))
    by_value = Aggregate(rows, (*apart, run), calls, AggregateRole.PARTIAL, values_in)
    runs = Named(column(run.name, BIGINT), run.name)
    there = Call(PlanFunction.BIT_OR, (column(present.output.name, BIGINT),), Field(next(final_names), BIGINT))
    bits = tuple(
        tuple(
            Call(AggregateFunction.SUM, (_bit(call, place, apart),), Field(next(final_names), BIGINT))
            for place in range(GROUPS)
        )
        for call in counted
    )
    by_run = final_of(by_value, (runs,), (there, *(one for sums in bits for one in sums)), phase)
    place = column(fresh_name("$place", taken), INT)
    groups = Filter(
        Expand(by_run, GROUPS, place.columns[0]),
        compose("(shiftright({0}, {1} - 1) & 1L) = 1L", (column(there.output.name, BIGINT), place), BOOLEAN),
    )
    group = compose("shiftleft({0}, 6) | CAST({1} - 1 AS BIGINT)", (runs.expression, place), BIGINT)
    key = node.keys[0]
    counts = tuple(Named(_of_place(sums, place), call.output.name) for call, sums in zip(node.calls, bits, strict=True))
    return Project(groups, (Named(_from_integer(group, key.expression.type), key.name), *counts), stands_for=node)


def _bit(call: Call, place: int, values: tuple[Named, ...]) -> Scalar:
    """1 where the value is in the group at `place`; a DISTINCT value with a NULL in it is not counted."""
    groups = column(call.output.name, BIGINT)
    known = " AND ".join(f"{{{number}}} IS NOT NULL" for number in range(1, len(values) + 1))
    operands = (groups, *(column(value.name, value.expression.type) for value in values))
    return compose(f"IF({known}, shiftright({{0}}, {place}) & 1L, 0L)", operands, BIGINT)


def _of_place(sums: tuple[Call, ...], place: Scalar) -> Scalar:
    """The sum of the bit at `place`, from 1; 0 where a FILTER left no row of the run."""
    listed = ", ".join(f"{{{number}}}" for number in range(1, len(sums) + 1))
    operands = (place, *(column(one.output.name, BIGINT) for one in sums))
    return compose(f"COALESCE(element_at(array({listed}), {{0}}), 0L)", operands, BIGINT)


def _from_integer(integer: Scalar, type_: DataType | None) -> Scalar:
    """The group key that `as_integer` made this BIGINT of."""
    template = _FROM_INTEGER[type_.name] if type_ is not None else "{0}"
    return compose(template, (integer,), type_)
