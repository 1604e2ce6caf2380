"""Changes aggregates so that a stream can compute them in one state, since it can neither aggregate twice nor join
aggregates.

`united_aggregate`: rows that must be aggregated separately (the distinct values and all rows of a group; the two sides
of a join) are united first, then aggregated together. Each kind of rows has its own columns, which are NULL in the
other rows. Aggregates ignore NULL, except COUNT(*), which counts a column of ones instead. Distinct values are
deduplicated before (`Deduplicate`), in a separate state that is partitioned by group and value, so that a hot group
does not make a hot task.

`bitmap_state`: the distinct integers of a group as bitmaps of 32,768 neighbours. The state has a row for each group and
block of values. A mini-batch reads one row for each block, instead of one for each value. The same row contains the
group's other aggregates, so the input is read once. A group consists of the rows of its blocks (its parts); the sink or
the reader of the result adds them up (`service.sql.types.aggregates`). A block takes 4 KB for any number of values, so
bitmaps are for values that are close together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from service.contract.query import AggregateFunction
from service.sql.expressions.aggregate_parameters import is_parameter
from service.sql.expressions.nodes import Cast, Null, Number
from service.sql.expressions.scalar import Scalar, column
from service.sql.resolve.stream_join_rules import is_known
from service.sql.types.aggregates import FinalColumn, FinalLevel, Merge, MergedColumn
from service.sql.types.data_types import BIGINT, BINARY, BOOLEAN, INT, DataType, Field, TypeName
from workers.engine.plan.aggregates import distinct_set_of, distinct_sets, is_distinct, split_call
from workers.engine.plan.explain import call_text
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Deduplicate,
    Expand,
    Filter,
    Named,
    Node,
    PlanFunction,
    Project,
    Union,
    names_of,
    output_of,
)
from workers.engine.rules.distinct.bitmaps import BLOCK, as_integer, bitmap_of, place_in_block
from workers.engine.rules.distinct.deduplication import names, value_columns

_ONE = Scalar(Number("1"), INT)

_MERGES: dict[AggregateFunction | PlanFunction, Merge] = {
    AggregateFunction.SUM: Merge.SUM,
    AggregateFunction.MIN: Merge.MIN,
    AggregateFunction.MAX: Merge.MAX,
}
_PLAIN = frozenset({AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.MIN, AggregateFunction.MAX})
_MERGED_SUMS = frozenset({TypeName.BIGINT, TypeName.DOUBLE})


@dataclass(frozen=True)
class Contribution:
    """Rows of one kind: `keys` are their group keys, `calls` the aggregates over only these rows.

    `present` names a BIGINT column that is greater than 0 in groups that have rows of this kind; None if it is not
    needed.
    """

    rows: Node
    keys: tuple[Scalar, ...]
    calls: tuple[Call, ...]
    present: str | None = None


@dataclass(frozen=True)
class Branch:
    """Rows, their group keys, and the columns that only they have."""

    rows: Node
    keys: tuple[Scalar, ...]
    items: tuple[Named, ...]


DistinctBranch = Callable[[Contribution, tuple[Call, ...]], tuple[Branch, list[Call]] | None]
"""Returns the distinct values of calls in one branch, and the calls without DISTINCT over it; None if it cannot."""


def united_aggregate(
    keys: tuple[Field, ...],
    contributions: tuple[Contribution, ...],
    taken: frozenset[str],
    distinct_branch: DistinctBranch = lambda *_: None,
) -> Aggregate:
    """Returns the groups of all `contributions`, with the calls of each over its own rows; `keys` names the group keys.

    Emits the keys, then the outputs of all calls and `present` columns, in order. `taken` are names that it must not
    use for its own columns. If `distinct_branch` returns None, distinct values are deduplicated for each set of
    arguments and each FILTER. Raises ValueError for an argument whose type only Spark knows.
    """
    columns = names("$u", taken | {key.name for key in keys})
    branches: list[Branch] = []
    calls: list[Call] = []
    for contribution in contributions:
        made, over = _branches(contribution, columns, taken, distinct_branch)
        branches += made
        calls += over
    slots = tuple(Field(item.name, _type_of(item)) for branch in branches for item in branch.items)
    inputs = tuple(_united(branch, keys, slots) for branch in branches)
    rows = inputs[0] if len(inputs) == 1 else Union(inputs)
    return Aggregate(rows, tuple(Named(column(key.name, key.type), key.name) for key in keys), tuple(calls))


def _branches(
    contribution: Contribution, columns: Iterator[str], taken: frozenset[str], distinct_branch: DistinctBranch
) -> tuple[list[Branch], list[Call]]:
    plain = tuple(call for call in contribution.calls if not is_distinct(call))
    distinct = tuple(call for call in contribution.calls if is_distinct(call))
    branches: list[Branch] = []
    over: dict[str, Call] = {}
    if distinct:
        branch, calls = distinct_branch(contribution, distinct) or _distinct_branch(
            contribution, tuple(map(without_filter, distinct)), columns, taken
        )
        branches.append(branch)
        over |= {call.output.name: call for call in calls}
    if plain or not distinct:
        items, calls = _plain_items(plain, columns)
        branches.append(Branch(contribution.rows, contribution.keys, items))
        over |= {call.output.name: call for call in calls}
    made = [over[call.output.name] for call in contribution.calls]
    if contribution.present is not None:
        mark = Named(_ONE, next(columns))
        branches[-1] = replace(branches[-1], items=(*branches[-1].items, mark))
        counted = column(mark.name, INT)
        made.append(Call(AggregateFunction.COUNT, (counted,), Field(contribution.present, BIGINT)))
    return branches, made


def _plain_items(calls: tuple[Call, ...], columns: Iterator[str]) -> tuple[tuple[Named, ...], list[Call]]:
    """Returns the columns that `calls` use, each once, and the calls over these columns."""
    items: dict[str, Named] = {}
    made = []
    for call in calls:
        bare = without_filter(call)
        wanted = bare.arguments or (guarded(_ONE, call.filter),)
        if bare.order_by is not None:
            wanted = (*wanted, bare.order_by)
        for place, scalar in enumerate(wanted):
            if scalar.sql not in items and not _is_literal(call, place):
                items[scalar.sql] = Named(scalar, next(columns))
        read = tuple(
            scalar if _is_literal(call, place) else column(items[scalar.sql].name, scalar.type)
            for place, scalar in enumerate(wanted)
        )
        ordered = bare.order_by is not None
        made.append(
            replace(
                bare,
                arguments=read[:-1] if ordered else read,
                order_by=read[-1] if ordered else None,
                distinct=False,
            )
        )
    return tuple(items.values()), made


def _distinct_branch(
    contribution: Contribution, calls: tuple[Call, ...], columns: Iterator[str], taken: frozenset[str]
) -> tuple[Branch, list[Call]]:
    """Returns the distinct values of all sets in one branch, which is read once and has one state. With several sets,
    each row of the contribution is copied for each set.
    """
    own = tuple(Named(normalised(key), next(columns)) for key in contribution.keys)
    by_set = {distinct_set_of(call): tuple(map(normalised, call.arguments)) for call in calls}
    branch: Scalar | None = None
    rows = contribution.rows
    if len(by_set) > 1:
        branch = column(next(columns), INT)
        rows = Expand(rows, len(by_set), branch.columns[0])
    slots, values = value_columns(tuple(by_set.values()), branch, taken | {branch.columns[0] if branch else ""})
    renamed = {slot.name: next(columns) for slot in slots}
    items = [*own, *(Named(slot.expression, renamed[slot.name]) for slot in slots)]
    if branch is not None:
        items.append(Named(branch, branch.columns[0]))
    deduplicated = Deduplicate(Project(rows, tuple(items)))
    read = {
        key: tuple(
            column(renamed[slot.columns[0]], slot.type) for slot in values[frozenset(one.sql for one in arguments)]
        )
        for key, arguments in by_set.items()
    }
    made = []
    for call in calls:
        key = distinct_set_of(call)
        number = list(by_set).index(key) + 1
        copies = None if branch is None else compose(f"{{0}} = {number}", (branch,), BOOLEAN)
        # Calls of the same set may have its arguments in another order.
        first = next(call for call in calls if distinct_set_of(call) == key)
        order = {argument.sql: place for place, argument in enumerate(first.arguments)}
        arguments = tuple(read[key][order[argument.sql]] for argument in call.arguments)
        made.append(replace(call, arguments=arguments, distinct=False, filter=copies))
    passed = tuple(Named(column(item.name, item.expression.type), item.name) for item in items[len(own) :])
    keys = tuple(column(item.name, item.expression.type) for item in own)
    return Branch(deduplicated, keys, passed), made


def _united(branch: Branch, keys: tuple[Field, ...], slots: tuple[Field, ...]) -> Project:
    own = {item.name: item for item in branch.items}
    named = tuple(Named(replace(value, type=key.type), key.name) for value, key in zip(branch.keys, keys, strict=True))
    return Project(branch.rows, (*named, *(own.get(slot.name) or _null(slot) for slot in slots)))


def _null(slot: Field) -> Named:
    return Named(Scalar(Cast(Null(), slot.type, tries=False), slot.type), slot.name)


def _type_of(item: Named) -> DataType:
    type_ = item.expression.type
    if type_ is None or not is_known(type_):
        raise ValueError(f"{item.expression} has a type that only Spark knows")
    return type_


def without_filter(call: Call) -> Call:
    """Returns `call` without its FILTER, but with arguments that are NULL where the FILTER is not true: aggregates
    ignore NULL.

    The FILTER of COUNT(*), which has no argument, is only removed: the caller counts ones instead.
    """
    if call.filter is None:
        return call
    order_by = None if call.order_by is None else guarded(call.order_by, call.filter)
    arguments = tuple(
        argument if _is_literal(call, place) else guarded(argument, call.filter)
        for place, argument in enumerate(call.arguments)
    )
    return replace(call, arguments=arguments, order_by=order_by, filter=None)


def _is_literal(call: Call, place: int) -> bool:
    """Whether Spark takes only a literal as the argument of `call` at `place`."""
    function = call.function
    return place < len(call.arguments) and isinstance(function, AggregateFunction) and is_parameter(function, place)


def guarded(value: Scalar, condition: Scalar | None) -> Scalar:
    """Returns `value` where `condition` is true, else NULL; `value` is evaluated only where it is true."""
    return value if condition is None else compose("CASE WHEN {0} THEN {1} END", (condition, value), value.type)


def normalised(value: Scalar) -> Scalar:
    """Returns `value` with one zero and one NaN, so that equal values have equal bits."""
    if value.type is None or not value.type.is_fractional:
        return value
    template = f"IF({{0}} = 0, CAST(0 AS {value.type}), NANVL({{0}}, CAST('NaN' AS {value.type})))"
    return compose(template, (value,), value.type)


@dataclass(frozen=True)
class BitmapState:
    """`node` emits parts of groups: the keys, then the columns of `final`."""

    node: Project
    final: FinalLevel


def stream_bitmap_obstacle(select: Project, having: Filter | None, node: Aggregate) -> str | None:
    """Returns a sentence that says why the distinct values of `node` cannot be kept as bitmaps; None if they can.
    `select` and `having` are above `node`.
    """
    sets = distinct_sets(node)
    if len(sets) != 1 or len(sets[0]) != 1:
        return f"There are {len(sets)} sets of distinct values, but a bitmap is for one set of single values."
    if as_integer(sets[0][0]) is None:
        return f"{sets[0][0]} is of {sets[0][0].type}, but bitmaps are for integers, dates and short decimals."
    if having is not None:
        return "HAVING needs complete groups."
    if node.grouping_sets:
        return "Each grouping set would need its own bitmaps."
    known = names_of(node)
    computed = next((item for item in select.items if item.expression.column not in known), None)
    if computed is not None:
        return f"{computed.expression} is computed from complete groups."
    return next(filter(None, map(_call_obstacle, node.calls)), None)


def _call_obstacle(call: Call) -> str | None:
    if is_distinct(call):
        return None if call.function is AggregateFunction.COUNT else f"{call_text(call)} needs the values themselves."
    if call.function in _PLAIN and call.order_by is None:
        summed = call.function is not AggregateFunction.SUM or call.output.type.name in _MERGED_SUMS
        return None if summed else f"{call_text(call)} is of {call.output.type}, whose sums only Spark can add up."
    of = call.arguments[0].type if call.arguments else None
    if call.function is AggregateFunction.AVG and of is not None and (of.is_integral or of.is_fractional):
        return None
    return f"{call_text(call)} has no parts that can be added up outside of Spark."


def bitmap_state(select: Project, node: Aggregate) -> BitmapState:
    """Returns `node` with its distinct values as bitmaps, and how its rows are merged into groups.

    Raises ValueError for an aggregate with a `stream_bitmap_obstacle`.
    """
    obstacle = stream_bitmap_obstacle(select, None, node)
    integer = None if obstacle else as_integer(distinct_sets(node)[0][0])
    if integer is None:
        raise ValueError(obstacle)
    taken = names_of(node) | names_of(node.input) | {item.name for item in select.items}
    part_names = names("$p", taken)
    block = Named(bitmap_of(integer, BLOCK), fresh_name("$block", taken))
    calls: list[Call] = []
    parts: list[Named] = []
    merged: list[MergedColumn] = []
    results: dict[str, _Result] = {}
    for call in node.calls:
        part = _distinct_part(call, integer, part_names) if is_distinct(call) else _plain_part(call, part_names)
        calls += part.calls
        parts += part.emitted
        merged += part.merged
        results[call.output.name] = part.result
    grouped = Aggregate(node.input, (*node.keys, block), tuple(calls))
    keys = output_of(node)[: len(node.keys)]
    kept = tuple(Named(column(key.name, key.type), key.name) for key in keys)
    emitted = Project(grouped, (*kept, Named(column(block.name, BIGINT), block.name), *parts))
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
    """A call in the parts of a group: the calls of the state, the columns that are emitted, and how they are merged."""

    calls: tuple[Call, ...]
    emitted: tuple[Named, ...]
    merged: tuple[MergedColumn, ...]
    result: _Result


def _distinct_part(call: Call, integer: Scalar, part_names: Iterator[str]) -> _Part:
    # NULL sets no bit.
    place = guarded(place_in_block(integer), call.filter)
    bits = Call(PlanFunction.BITMAP_CONSTRUCT_AGG, (place,), Field(next(part_names), BINARY))
    count = Named(compose("bitmap_count({0})", (column(bits.output.name, BINARY),), BIGINT), next(part_names))
    merged = MergedColumn(count.name, Merge.SUM)
    return _Part((bits,), (count,), (merged,), _Result(count.name, zero=True))


def _plain_part(call: Call, part_names: Iterator[str]) -> _Part:
    split = split_call(call, part_names, part_names)
    merged = tuple(
        MergedColumn(part.output.name, _MERGES[final.function])
        for part, final in zip(split.partial, split.final, strict=True)
    )
    emitted = tuple(Named(column(part.output.name, part.output.type), part.output.name) for part in split.partial)
    if call.function is AggregateFunction.AVG:
        total, count = split.partial
        return _Part(split.partial, emitted, merged, _Result(total.output.name, divisor=count.output.name))
    (only,) = split.partial
    zero = call.function is AggregateFunction.COUNT
    return _Part(split.partial, emitted, merged, _Result(only.output.name, zero=zero))
