"""Distinct integers of a stream as bitmaps of 32,768 neighbours: a row of the state for each group and block of values.

A mini-batch looks up one row for each block that it meets, in place of one for each value, and the other calls of the
query are kept beside the bits, so that rows are read once. A group has as many rows as its values have blocks: they are
its parts, and whoever keeps or reads the result adds them up (`service.spec.final_level`). A block takes 4 KB however
few values are in it, so that this is for values that are close together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.spec.final_level import FinalColumn, FinalLevel, Merge, MergedColumn
from service.spec.query import AggregateFunction
from service.spec.scalar import Scalar, column
from service.spec.types import BIGINT, BINARY, Field, TypeName
from workers.engine.plan.algebra import is_distinct, split_call
from workers.engine.plan.bitmaps import BLOCK, as_integer, bitmap_of, place_in_block
from workers.engine.plan.deduplication import names
from workers.engine.plan.distinct import distinct_sets
from workers.engine.plan.explain import call_text
from workers.engine.plan.nodes import Aggregate, Call, Filter, Named, PlanFunction, Project
from workers.engine.plan.scalars import compose, fresh_name
from workers.engine.plan.schema import names_of, output_of
from workers.engine.plan.stream_rows import guarded

_MERGES = {AggregateFunction.SUM: Merge.SUM, AggregateFunction.MIN: Merge.MIN, AggregateFunction.MAX: Merge.MAX}
_PLAIN = frozenset({AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.MIN, AggregateFunction.MAX})
_MERGED_SUMS = frozenset({TypeName.BIGINT, TypeName.DOUBLE})


@dataclass(frozen=True)
class BitmapState:
    """`node` emits parts of groups: the keys, then the columns of `final`."""

    node: Project
    final: FinalLevel


def stream_bitmap_obstacle(select: Project, having: Filter | None, node: Aggregate) -> str | None:
    """Why the distinct values of `node` cannot be kept as bitmaps, as a sentence. `select` and `having` stand above."""
    sets = distinct_sets(node)
    if len(sets) != 1 or len(sets[0]) != 1:
        return f"There are {len(sets)} sets of distinct values: a bitmap has one, of a single value."
    if as_integer(sets[0][0]) is None:
        return f"{sets[0][0]} is of {sets[0][0].type}: bits are integers, dates or short decimals."
    if having is not None:
        return "HAVING needs groups that are put together."
    if node.grouping_sets:
        return "Grouping sets would need bitmaps for each of them."
    known = names_of(node)
    odd = next((item for item in select.items if item.expression.column not in known), None)
    if odd is not None:
        return f"{odd.expression} is computed of groups that are put together."
    return next(filter(None, map(_call_obstacle, node.calls)), None)


def _call_obstacle(call: Call) -> str | None:
    if is_distinct(call):
        return None if call.function is AggregateFunction.COUNT else f"{call_text(call)} needs the values themselves."
    if call.function in _PLAIN and call.order_by is None:
        summed = call.function is not AggregateFunction.SUM or call.output.type.name in _MERGED_SUMS
        return None if summed else f"{call_text(call)} is of {call.output.type}, whose sums are not added up outside."
    of = call.arguments[0].type if call.arguments else None
    if call.function is AggregateFunction.AVG and of is not None and (of.is_integral or of.is_fractional):
        return None
    return f"{call_text(call)} has no parts that are added up outside of Spark."


def bitmap_state(select: Project, node: Aggregate) -> BitmapState:
    """`node` with its distinct values as bitmaps, and how groups are put together from what it emits.

    Raises ValueError for an aggregate with a `stream_bitmap_obstacle`.
    """
    obstacle = stream_bitmap_obstacle(select, None, node)
    integer = None if obstacle else as_integer(distinct_sets(node)[0][0])
    if integer is None:
        raise ValueError(obstacle)
    taken = names_of(node) | names_of(node.input) | {item.name for item in select.items}
    made = names("$p", taken)
    block = Named(bitmap_of(integer, BLOCK), fresh_name("$block", taken))
    calls: list[Call] = []
    parts: list[Named] = []
    merged: list[MergedColumn] = []
    results: dict[str, _Result] = {}
    for call in node.calls:
        part = _distinct_part(call, integer, made) if is_distinct(call) else _plain_part(call, made)
        calls += part.calls
        parts += part.emitted
        merged += part.merged
        results[call.output.name] = part.result
    grouped = Aggregate(node.input, (*node.keys, block), tuple(calls))
    keys = output_of(node)[: len(node.keys)]
    kept = tuple(Named(column(key.name, key.type), key.name) for key in keys)
    told = Named(column(block.name, BIGINT), block.name)
    emitted = Project(grouped, (*kept, told, *parts))
    types = {field.name: field.type for field in output_of(node)}
    output = []
    for item in select.items:
        source = item.expression.column or ""
        result = results.get(source, _Result(source))
        field = Field(item.name, types[source])
        output.append(FinalColumn(field, result.source, result.divisor, zero=result.zero))
    final = FinalLevel(tuple(key.name for key in keys), (block.name,), tuple(merged), tuple(output))
    return BitmapState(emitted, final)


@dataclass(frozen=True)
class _Result:
    source: str
    divisor: str | None = None
    zero: bool = False


@dataclass(frozen=True)
class _Part:
    """A call in the parts of a group: what the state has, what is emitted of it, and how that is put together."""

    calls: tuple[Call, ...]
    emitted: tuple[Named, ...]
    merged: tuple[MergedColumn, ...]
    result: _Result


def _distinct_part(call: Call, integer: Scalar, made: Iterator[str]) -> _Part:
    # Without a value there is no bit.
    place = guarded(place_in_block(integer), call.filter)
    bits = Call(PlanFunction.BITMAP_CONSTRUCT_AGG, (place,), Field(next(made), BINARY))
    count = Named(compose("bitmap_count({0})", (column(bits.output.name, BINARY),), BIGINT), next(made))
    merged = MergedColumn(count.name, Merge.SUM)
    return _Part((bits,), (count,), (merged,), _Result(count.name, zero=True))


def _plain_part(call: Call, made: Iterator[str]) -> _Part:
    split = split_call(call, made, made)
    merged = tuple(
        MergedColumn(part.output.name, _MERGES[AggregateFunction(final.function)])
        for part, final in zip(split.partial, split.final, strict=True)
    )
    emitted = tuple(Named(column(part.output.name, part.output.type), part.output.name) for part in split.partial)
    if call.function is AggregateFunction.AVG:
        total, count = split.partial
        return _Part(split.partial, emitted, merged, _Result(total.output.name, divisor=count.output.name))
    (only,) = split.partial
    zero = call.function is AggregateFunction.COUNT
    return _Part(split.partial, emitted, merged, _Result(only.output.name, zero=zero))
