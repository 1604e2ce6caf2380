"""Distinct values by the groups that have them: a row for each value and run of 64 neighbouring groups, which are the
bits of a BIGINT, in place of one for each (group, value).

Behind an exchange by the values, each is one entry of a hash table for each run that it is in; counting by group is
summing each of the 64 bits over the entries. As in `plan/bitmaps.py` a group key g is bit g mod 64 of run
floor(g / 64), by shifts. The group NULL has a run of its own, which is NULL.
"""

from __future__ import annotations

from service.spec.distinct_ways import MAX_GROUP_BITMAP_COUNTS
from service.spec.options import AggPhase
from service.spec.query import AggregateFunction
from service.spec.scalar import Scalar, column
from service.spec.types import BIGINT, BOOLEAN, INT, DataType, Field, TypeName
from workers.engine.plan.algebra import is_distinct
from workers.engine.plan.bitmaps import as_integer
from workers.engine.plan.deduplication import names
from workers.engine.plan.distinct import distinct_sets
from workers.engine.plan.explain import call_text
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
)
from workers.engine.plan.partial_final import final_of
from workers.engine.plan.scalars import compose, fresh_name
from workers.engine.plan.schema import names_of

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
