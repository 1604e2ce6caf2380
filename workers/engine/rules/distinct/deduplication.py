"""Deduplicates DISTINCT arguments with GROUP BY: one row for each value of a group, so calls need no DISTINCT.

Several sets of values are deduplicated together if every row has a copy for each set (`Expand`): each copy has the
values of its own set only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count

from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BOOLEAN, DataType, Field
from workers.engine.plan.aggregates import distinct_set_of, distinct_sets, is_distinct, split_call
from workers.engine.plan.expressions import compose, conjunction, fresh_name
from workers.engine.plan.nodes import Aggregate, AggregateRole, Call, Named, Node

Values = dict[frozenset[str], tuple[Scalar, ...]]
"""The columns with the values of each set, by `distinct_set_of`, in the order of `distinct_sets`."""


@dataclass(frozen=True)
class Deduplication:
    """An aggregate in two steps: `rows` has a row for each value of a group. `aggregates` has, for each call of the
    whole aggregate, the calls over `rows`; `results` has, for each call, its value over their outputs.
    """

    rows: Aggregate
    aggregates: tuple[tuple[Call, ...], ...]
    results: tuple[Named, ...]

    @property
    def calls(self) -> tuple[Call, ...]:
        """All calls over `rows`, in order."""
        return tuple(call for calls in self.aggregates for call in calls)


def deduplicate(
    node: Aggregate, rows: Node, keys: tuple[Named, ...], branch: Scalar | None, taken: frozenset[str]
) -> Deduplication:
    """Returns `rows` grouped by `keys`, `branch` and the distinct values of `node`, with partial calls for its other
    calls.

    `branch` numbers the copies of a row from 1, in the order of the sets; None if there is one set. Raises ValueError
    for a call without DISTINCT that cannot be split.
    """
    slots, values = value_columns(distinct_sets(node), branch, taken)
    numbers = {values_of: number for number, values_of in enumerate(values, start=1)}
    partial_names, final_names = names("$q", taken), names("$r", taken)
    flags: dict[str, Call] = {}
    parts: list[Call] = []
    aggregates: list[tuple[Call, ...]] = []
    results: list[Named] = []
    for call in node.calls:
        own = numbers[distinct_set_of(call)] if is_distinct(call) else 1
        copies = None if branch is None else compose(f"{{0}} = {own}", (branch,), BOOLEAN)
        if not is_distinct(call):
            filtered = call if copies is None else replace(call, filter=conjunction(call.filter, copies))
            split = split_call(filtered, partial_names, final_names)
            parts += split.partial
            aggregates.append(split.final)
            results.append(split.result)
            continue
        kept = copies
        if call.filter is not None:
            flag = flags.setdefault(call.filter.sql, flag_of(call.filter, fresh_name(f"$m{len(flags)}", taken)))
            kept = conjunction(kept, column(flag.output.name, BOOLEAN))
        output = Field(next(final_names), call.output.type)
        aggregates.append((Call(call.function, values[distinct_set_of(call)], output, filter=kept),))
        results.append(Named(column(output.name, output.type), call.output.name))
    copy = () if branch is None or branch.column is None else (Named(branch, branch.column),)
    calls = (*parts, *flags.values())
    grouped = Aggregate(rows, (*keys, *copy, *slots), calls, AggregateRole.PARTIAL)
    return Deduplication(grouped, tuple(aggregates), tuple(results))


def names(prefix: str, taken: frozenset[str]) -> Iterator[str]:
    """Yields `prefix` followed by 0, 1, …, without names in `taken`."""
    return (fresh_name(f"{prefix}{number}", taken) for number in count())


def flag_of(condition: Scalar, name: str) -> Call:
    """Returns a call that says whether the condition is true for any of the rows."""
    return Call(AggregateFunction.MAX, (condition,), Field(name, BOOLEAN))


def value_columns(
    sets: tuple[tuple[Scalar, ...], ...], branch: Scalar | None, taken: frozenset[str]
) -> tuple[tuple[Named, ...], Values]:
    """Returns the columns to group by, and those of each set. Sets share columns of the same type, since a copy of a
    row has the values of one set only.
    """
    arms: dict[tuple[DataType | int, int], list[tuple[int, Scalar]]] = {}
    places: list[tuple[frozenset[str], list[tuple[DataType | int, int]]]] = []
    for number, values in enumerate(sets, start=1):
        used: list[tuple[DataType | int, int]] = []
        for value in values:
            known = value.type is not None and value.type.is_atomic
            kind: DataType | int = value.type if known and value.type is not None else number
            place = (kind, sum(1 for other, _ in used if other == kind))
            arms.setdefault(place, []).append((number, value))
            used.append(place)
        places.append((frozenset(value.sql for value in values), used))
    columns = {
        place: Named(_case(branch, arms[place]), fresh_name(f"$v{index}", taken)) for index, place in enumerate(arms)
    }
    slots = {place: column(named.name, named.expression.type) for place, named in columns.items()}
    return tuple(columns.values()), {values_of: tuple(slots[place] for place in used) for values_of, used in places}


def _case(branch: Scalar | None, arms: list[tuple[int, Scalar]]) -> Scalar:
    if branch is None:
        return arms[0][1]
    cases = " ".join(f"WHEN {number} THEN {{{index}}}" for index, (number, _) in enumerate(arms, start=1))
    return compose(f"CASE {{0}} {cases} END", (branch, *(value for _, value in arms)), arms[0][1].type)
