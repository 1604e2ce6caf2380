"""One aggregate over rows of several kinds: what a stream can keep in one state, since it cannot aggregate twice.

A stream may aggregate once, and join no aggregates. So rows that are to be aggregated apart (the distinct values of a
group beside its plain rows, the two sides of a join) are united first, each kind with columns of its own that are NULL
in all others, and aggregated together. NULL counts in no aggregate but COUNT(*), which counts a column of ones instead.
Distinct values are told apart before that (`Deduplicate`), a row for each that is new, in a state of their own that is
spread by group and value: a hot group is no hot task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from service.spec.query import AggregateFunction
from service.spec.scalar import Scalar, column
from service.spec.tree import Cast, Null, Number
from service.spec.types import BIGINT, BOOLEAN, INT, DataType, Field, TypeName
from workers.engine.plan.algebra import is_distinct
from workers.engine.plan.deduplication import names, value_columns
from workers.engine.plan.distinct import distinct_set_of
from workers.engine.plan.nodes import Aggregate, Call, Deduplicate, Expand, Named, Node, Project, Union
from workers.engine.plan.scalars import compose

ONE = Scalar(Number("1"), INT)


@dataclass(frozen=True)
class Contribution:
    """Rows of one kind: `keys` are what the groups are called in them, `calls` go over them alone.

    `present` names a BIGINT column that is greater than 0 in groups that have rows of this kind; None where nobody
    asks.
    """

    rows: Node
    keys: tuple[Scalar, ...]
    calls: tuple[Call, ...]
    present: str | None = None


def united_aggregate(
    keys: tuple[Field, ...], contributions: tuple[Contribution, ...], taken: frozenset[str]
) -> Aggregate:
    """Groups of all `contributions` by their keys, under the names `keys`, with the calls of each over its own rows.

    Emits the keys, then the outputs of all calls and `present` columns, in order. `taken` are names that it must not
    use for its own columns. Raises ValueError for an argument of a type that Spark alone knows.
    """
    columns = names("$u", taken | {key.name for key in keys})
    branches: list[_Branch] = []
    calls: list[Call] = []
    for contribution in contributions:
        made, over = _branches(contribution, columns, taken)
        branches += made
        calls += over
    slots = tuple(Field(item.name, _known(item)) for branch in branches for item in branch.items)
    inputs = tuple(_united(branch, keys, slots) for branch in branches)
    rows = inputs[0] if len(inputs) == 1 else Union(inputs)
    return Aggregate(rows, tuple(Named(column(key.name, key.type), key.name) for key in keys), tuple(calls))


@dataclass(frozen=True)
class _Branch:
    """Rows, what the groups are called in them, and the columns that only they have."""

    rows: Node
    keys: tuple[Scalar, ...]
    items: tuple[Named, ...]


def _branches(
    contribution: Contribution, columns: Iterator[str], taken: frozenset[str]
) -> tuple[list[_Branch], list[Call]]:
    plain = tuple(call for call in contribution.calls if not is_distinct(call))
    distinct = tuple(without_filter(call) for call in contribution.calls if is_distinct(call))
    branches: list[_Branch] = []
    over: dict[str, Call] = {}
    if distinct:
        branch, calls = _distinct_branch(contribution, distinct, columns, taken)
        branches.append(branch)
        over |= {call.output.name: call for call in calls}
    if plain or not distinct:
        items, calls = _plain_items(plain, columns)
        branches.append(_Branch(contribution.rows, contribution.keys, items))
        over |= {call.output.name: call for call in calls}
    made = [over[call.output.name] for call in contribution.calls]
    if contribution.present is not None:
        mark = Named(ONE, next(columns))
        branches[-1] = replace(branches[-1], items=(*branches[-1].items, mark))
        made.append(_count(column(mark.name, INT), contribution.present))
    return branches, made


def _plain_items(calls: tuple[Call, ...], columns: Iterator[str]) -> tuple[tuple[Named, ...], list[Call]]:
    """The columns that `calls` read, each once, and the calls over these."""
    items: dict[str, Named] = {}
    made = []
    for call in calls:
        bare = without_filter(call)
        wanted = bare.arguments or (guarded(ONE, call.filter),)
        if bare.order_by is not None:
            wanted = (*wanted, bare.order_by)
        for scalar in wanted:
            if scalar.sql not in items:
                items[scalar.sql] = Named(scalar, next(columns))
        read = tuple(column(items[scalar.sql].name, scalar.type) for scalar in wanted)
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
) -> tuple[_Branch, list[Call]]:
    """The distinct values of all sets at once, each row of the contribution in a copy for each set where there are
    several: one reading, and one state.
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
    told_apart = Deduplicate(Project(rows, tuple(items)))
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
        # In the order of the call's own arguments, which may be that of another call of the set turned round.
        order = {argument.sql: place for place, argument in enumerate(_first_of(calls, key).arguments)}
        arguments = tuple(read[key][order[argument.sql]] for argument in call.arguments)
        made.append(replace(call, arguments=arguments, distinct=False, filter=copies))
    passed = tuple(Named(column(item.name, item.expression.type), item.name) for item in items[len(own) :])
    keys = tuple(column(item.name, item.expression.type) for item in own)
    return _Branch(told_apart, keys, passed), made


def _first_of(calls: tuple[Call, ...], key: frozenset[str]) -> Call:
    return next(call for call in calls if distinct_set_of(call) == key)


def _united(branch: _Branch, keys: tuple[Field, ...], slots: tuple[Field, ...]) -> Project:
    own = {item.name: item for item in branch.items}
    named = tuple(Named(replace(value, type=key.type), key.name) for value, key in zip(branch.keys, keys, strict=True))
    return Project(branch.rows, (*named, *(own.get(slot.name) or _nothing(slot) for slot in slots)))


def _nothing(slot: Field) -> Named:
    return Named(Scalar(Cast(Null(), slot.type, tries=False), slot.type), slot.name)


def _known(item: Named) -> DataType:
    type_ = item.expression.type
    if type_ is None or (type_.name is TypeName.OTHER and not type_.parts):
        raise ValueError(f"{item.expression} is of a type that Spark alone knows")
    return type_


def _count(of: Scalar, name: str) -> Call:
    return Call(AggregateFunction.COUNT, (of,), Field(name, BIGINT))


def without_filter(call: Call) -> Call:
    """`call` with its FILTER put into its arguments, which are NULL where it does not hold: no aggregate counts NULL.

    The FILTER of COUNT(*), which has no argument, is left out: the caller counts ones in its place.
    """
    if call.filter is None:
        return call
    order_by = None if call.order_by is None else guarded(call.order_by, call.filter)
    arguments = tuple(guarded(argument, call.filter) for argument in call.arguments)
    return replace(call, arguments=arguments, order_by=order_by, filter=None)


def guarded(value: Scalar, condition: Scalar | None) -> Scalar:
    """`value` where `condition` holds, else NULL; evaluated only there."""
    return value if condition is None else compose("CASE WHEN {0} THEN {1} END", (condition, value), value.type)


def normalised(value: Scalar) -> Scalar:
    """`value` such that equal values have equal bits: one zero, one NaN."""
    if value.type is None or not value.type.is_fractional:
        return value
    template = f"IF({{0}} = 0, CAST(0 AS {value.type}), NANVL({{0}}, CAST('NaN' AS {value.type})))"
    return compose(template, (value,), value.type)
