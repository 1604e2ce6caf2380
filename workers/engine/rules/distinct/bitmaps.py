"""Plans that count distinct values with bitmaps instead of one row for each (group, value).

Bitmaps of values (`bitmap_aggregate`): a row for each group and run of W neighbouring integers; value v is in run
floor(v / W), computed by shifts, which are correct for negative and extreme BIGINTs too. Bitmaps of 64 and 256 values
are one and four *lanes*, which are BIGINTs; a bitmap of 32,768 values is a *block* of 4 KB (`_block`).

Bitmaps of groups (`group_bitmap_aggregate`): a row for each value and run of 64 neighbouring groups.
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
"""The number of values in a bitmap of one lane, in one of four lanes, and in a block."""

BLOCK_BYTES = 4096 + 256
"""Bytes of a block in memory, with its key and its hash table entry."""

BIT_SETTING = frozenset({PlanFunction.BIT_OR, PlanFunction.BITMAP_CONSTRUCT_AGG, PlanFunction.COLLECT_LIST})
"""The functions that build bitmaps."""

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

GROUPS = 64
"""The number of neighbouring groups in a bitmap of groups."""

_FROM_INTEGER = {
    TypeName.TINYINT: "CAST({0} AS TINYINT)",
    TypeName.SMALLINT: "CAST({0} AS SMALLINT)",
    TypeName.INT: "CAST({0} AS INT)",
    TypeName.BIGINT: "{0}",
    TypeName.BOOLEAN: "CAST({0} AS BOOLEAN)",
    TypeName.DATE: "date_from_unix_date(CAST({0} AS INT))",
}


def as_integer(value: Scalar) -> Scalar | None:
    """Returns `value` as a BIGINT, so that equal values are equal BIGINTs, and NULL is NULL; None for other types.

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
    """Returns the number of the bitmap of `width` values that contains `integer`, a BIGINT."""
    return compose(f"shiftright({{0}}, {width.bit_length() - 1})", (integer,), BIGINT)


def lanes_of(integer: Scalar, width: int) -> tuple[Scalar, ...]:
    """Returns the lanes of a bitmap of `width` values with only the bit of `integer` set.

    It is bit v mod 64 of lane floor(v / 64) mod 4. Spark's hash aggregate updates lanes in place in generated code, and
    a lane takes no more space than a value. With many bitmaps, the hash table exceeds the processor's caches.
    """
    bit, lanes = "shiftleft(1L, CAST(({0}) & 63L AS INT))", width // _LANE_BITS
    if lanes == 1:
        return (compose(bit, (integer,), BIGINT),)
    return tuple(
        compose(f"IF((shiftright({{0}}, 6) & {lanes - 1}L) = {lane}L, {bit}, 0L)", (integer,), BIGINT)
        for lane in range(lanes)
    )


def place_in_block(integer: Scalar) -> Scalar:
    """Returns the position of the bit of `integer` in its block, a BIGINT from 0."""
    return compose(f"({{0}}) & {BLOCK - 1}L", (integer,), BIGINT)


def bits_in(lanes: tuple[Scalar, ...]) -> Scalar:
    """Returns the number of bits that are set in all `lanes`."""
    return compose(" + ".join(f"bit_count({{{lane}}})" for lane in range(len(lanes))), lanes, INT)


def bitmap_obstacle(node: Aggregate) -> str | None:
    """Returns a sentence that says why bitmaps cannot count the distinct values of `node`; None if they can.

    They can if there is one set of one value with a type that `as_integer` supports, only COUNT uses it, and all other
    calls can be split.
    """
    sets = distinct_sets(node)
    if len(sets) != 1:
        return f"There are {len(sets)} sets of distinct values: a bitmap holds the values of one set."
    if len(sets[0]) != 1:
        return f"{len(sets[0])} expressions together are one distinct value: a bitmap holds single integers."
    value = sets[0][0]
    if as_integer(value) is None:
        of = "a type that only Spark can determine" if value.type is None else f"the type {value.type}"
        return f"{value} has {of}: bitmaps hold integers, dates, booleans and DECIMALs of up to {_MAX_DIGITS} digits."
    for call in node.calls:
        if is_distinct(call):
            if call.function is not AggregateFunction.COUNT:
                return f"{call_text(call)} needs the values themselves: a bitmap can only count them."
        elif refusal_of(call) is not None:
            return f"{call_text(call)} cannot be split: {refusal_of(call)}."
    return None


def bitmap_aggregate(node: Aggregate, width: int, phase: AggPhase) -> Project:
    """Returns `node` with bitmaps of `width` values: a Project over FINAL, which counts bits, over PARTIAL, which emits
    one row per bitmap.

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
    """Returns the calls that set the bits of lanes, and an expression for the number of bits that are set."""
    calls = tuple(
        Call(PlanFunction.BIT_OR, (lane,), Field(next(free), BIGINT), filter=call.filter)
        for lane in lanes_of(integer, width)
    )
    return calls, bits_in(tuple(column(one.output.name, BIGINT) for one in calls))


def _block(call: Call, integer: Scalar, _width: int, free: Iterator[str]) -> tuple[tuple[Call, ...], Scalar]:
    """Like `_lanes`, for a block (`bitmap_construct_agg`), which has 4 KB even for a single value.

    With this call alone, Spark would sort all rows, since its hash aggregate cannot update a binary buffer in place.
    Together with a call whose buffer is an object, here an empty `collect_list`, it hashes both
    (`ObjectHashAggregate`). The result must use the list, or Spark removes it. The number of entries limits this hash
    table, not its memory (`spark.sql.objectHashAggregate.sortBased.fallbackThreshold`); above it Spark sorts.
    """
    place, nothing = place_in_block(integer), Scalar(Cast(Null(), INT, tries=False), INT)
    bits = Call(PlanFunction.BITMAP_CONSTRUCT_AGG, (place,), Field(next(free), BINARY), filter=call.filter)
    hashed = Call(PlanFunction.COLLECT_LIST, (nothing,), Field(next(free), UNKNOWN))
    both = (column(bits.output.name, BINARY), column(hashed.output.name, UNKNOWN))
    return (bits, hashed), compose("bitmap_count({0}) + size({1})", both, BIGINT)


def _counted(call: Call, partial: tuple[Call, ...], bits: Scalar, total: Field) -> SplitCall:
    """Returns COUNT(DISTINCT …) as the sum of `bits` over all bitmaps."""
    final = Call(AggregateFunction.SUM, (bits,), total)
    # Without counted rows there is no bitmap and the sum is NULL: a global aggregate, or a filter that keeps no row.
    count = compose("COALESCE({0}, 0L)", (column(total.name, BIGINT),), BIGINT)
    return SplitCall(partial, (final,), Named(count, call.output.name))


def group_bitmap_obstacle(node: Aggregate) -> str | None:
    """Returns a sentence that says why bitmaps of groups cannot count the distinct values of `node`; None if they can.

    They can if there is one group key, which is an integer, a DATE or a BOOLEAN, one set of distinct values, and all
    calls are COUNTs of it, at most `MAX_GROUP_BITMAP_COUNTS`.
    """
    sets = distinct_sets(node)
    if len(sets) != 1:
        return f"There are {len(sets)} sets of distinct values: bitmaps of groups support one set."
    if len(node.keys) != 1:
        return f"There are {len(node.keys)} group keys: bitmaps of groups support one key."
    of = node.keys[0].expression.type
    if of is None or of.name not in _FROM_INTEGER:
        type_text = "a type that only Spark can determine" if of is None else f"the type {of}"
        return f"The group key has {type_text}: bitmaps of groups support integers, dates and booleans."
    for call in node.calls:
        if not is_distinct(call) or call.function is not AggregateFunction.COUNT:
            return f"{call_text(call)} needs all rows of a group together: bitmaps of groups can only count values."
    if len(node.calls) > MAX_GROUP_BITMAP_COUNTS:
        return f"There are {len(node.calls)} counts: bitmaps of groups support {MAX_GROUP_BITMAP_COUNTS} at most."
    return None


def group_bitmap_aggregate(
    node: Aggregate, partitions: int | None, phase: AggPhase, values_in: Phases = Phases.ONE_PHASE
) -> Project:
    """Returns `node` with bitmaps of groups: an aggregate with a row for each value and run, and above it one that sums
    each of the 64 bits over the values.

    A group key g is bit g mod 64 of run floor(g / 64), computed by shifts. The group NULL has its own run, which is
    NULL. `phase` sets the phases of the upper aggregate, `values_in` those of the lower one; in one phase, that is
    above an exchange by the values to `partitions` (by default Spark's number).

    Raises ValueError for an aggregate with a `group_bitmap_obstacle`.
    """
    obstacle = group_bitmap_obstacle(node)
    integer = None if obstacle else as_integer(node.keys[0].expression)
    if integer is None:
        raise ValueError(obstacle)
    taken = names_of(node) | names_of(node.input)
    (values,) = distinct_sets(node)
    run = Named(compose("shiftright({0}, 6)", (integer,), BIGINT), fresh_name("$run", taken))
    value_keys = tuple(Named(value, fresh_name(f"$v{number}", taken)) for number, value in enumerate(values))
    bit = compose("shiftleft(1L, CAST(COALESCE(({0}) & 63L, 0L) AS INT))", (integer,), BIGINT)
    partial_names, final_names = names("$p", taken), names("$f", taken)
    # The groups of all rows, also of those that a FILTER excludes: a group exists if it has a row.
    present = Call(PlanFunction.BIT_OR, (bit,), Field(next(partial_names), BIGINT))
    counted = tuple(
        present
        if call.filter is None
        else Call(PlanFunction.BIT_OR, (bit,), Field(next(partial_names), BIGINT), filter=call.filter)
        for call in node.calls
    )
    rows = Exchange(node.input, values, partitions) if values_in is Phases.ONE_PHASE else node.input
    calls = tuple(dict.fromkeys((present, *counted)))
    by_value = Aggregate(rows, (*value_keys, run), calls, AggregateRole.PARTIAL, values_in)
    runs = Named(column(run.name, BIGINT), run.name)
    there = Call(PlanFunction.BIT_OR, (column(present.output.name, BIGINT),), Field(next(final_names), BIGINT))
    bits = tuple(
        tuple(
            Call(AggregateFunction.SUM, (_bit(call, place, value_keys),), Field(next(final_names), BIGINT))
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
    return Project(groups, (Named(_from_integer(group, key.expression.type), key.name), *counts), replaces=node)


def _bit(call: Call, place: int, values: tuple[Named, ...]) -> Scalar:
    """Returns 1 if the value occurs in the group at `place`, otherwise 0; a value with a NULL in it is not counted."""
    groups = column(call.output.name, BIGINT)
    known = " AND ".join(f"{{{number}}} IS NOT NULL" for number in range(1, len(values) + 1))
    operands = (groups, *(column(value.name, value.expression.type) for value in values))
    return compose(f"IF({known}, shiftright({{0}}, {place}) & 1L, 0L)", operands, BIGINT)


def _of_place(sums: tuple[Call, ...], place: Scalar) -> Scalar:
    """Returns the sum of the bit at `place`, from 1; 0 if a FILTER excluded all rows of the run."""
    listed = ", ".join(f"{{{number}}}" for number in range(1, len(sums) + 1))
    operands = (place, *(column(one.output.name, BIGINT) for one in sums))
    return compose(f"COALESCE(element_at(array({listed}), {{0}}), 0L)", operands, BIGINT)


def _from_integer(integer: Scalar, type_: DataType | None) -> Scalar:
    """Returns the group key from which `as_integer` computed this BIGINT."""
    template = _FROM_INTEGER[type_.name] if type_ is not None else "{0}"
    return compose(template, (integer,), type_)
