"""Aggregates by changes: those whose groups are kept as one row each (`grouped`), and the forms of other aggregates."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import count

from service.contract.query import AggregateFunction
from service.sql.expressions.nodes import Column, Expression, map_children
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, INT, DataType, Field, TypeName, decimal
from workers.engine.plan.aggregates import QUOTIENT, distinct_set_of, is_distinct, refusal_of, row_of, split_call
from workers.engine.plan.explain import call_text
from workers.engine.plan.expressions import compose, fresh_name, is_not_null, literal, typed_null
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
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
from workers.engine.rules.distinct.deduplication import names, value_columns
from workers.engine.streaming.changes.state_files import WEIGHT
from workers.engine.streaming.changes.steps import KEPT, ChangesPlanError, Port, Second, Step, delta, old, removed
from workers.engine.streaming.changes.weights import OF_CHANGE, ONE, consolidated, leaf, named, rows_of, weighted
from workers.engine.streaming.stream_aggregates import Branch, Contribution, guarded, normalised, without_filter


@dataclass(frozen=True)
class _Sums:
    """A call by columns that can be merged: `parts` computes them from rows, `merged` from such columns with the same
    names, and `result` is the call's value.
    """

    parts: tuple[Call, ...]
    merged: tuple[Call, ...]
    result: Named


def grouped(number: int, text: str, node: Aggregate, changes: Node, *, retracts: bool, is_single: bool) -> Step | None:
    """Returns the step of an aggregate whose groups are kept as one row each; None if a call has no sums from which a
    row can be taken back. `changes` are those of the input of `node`; without `retracts` none of them removes a row.
    `is_single`: no weight is greater than 1.
    """
    if any(is_distinct(call) for call in node.calls) or node.grouping_sets:
        return None
    taken = frozenset(field.name for field in (*output_of(node), *output_of(node.input))) | {WEIGHT}
    part_names = names("$p", taken)
    sums = []
    for call in node.calls:
        found = _exact_sums(call, lambda: next(part_names))
        if found is None and not retracts:
            found = _merged_parts(call, lambda: next(part_names))
            if not is_single:
                # These parts are computed from rows, whatever their weights are.
                rows_below = output_of(node.input)
                changes, is_single = weighted(rows_of(changes, rows_below), rows_below, ONE), True
        if found is None:
            return None
        sums.append(found)
    rows = Field(fresh_name("$rows", taken), BIGINT)
    number_of_rows = Call(AggregateFunction.SUM, (OF_CHANGE,), rows)
    parts = (*(part for each in sums for part in each.parts), number_of_rows)
    keys = output_of(node)[: len(node.keys)]
    fields = (*keys, *(part.output for part in parts))
    partial = weighted(Aggregate(changes, node.keys, parts), fields, ONE)
    by = tuple(column(key.name, key.type) for key in keys)
    port = Port(partial, fields, by)
    total = Call(AggregateFunction.SUM, (column(rows.name, BIGINT),), rows)
    calls = (*(call for each in sums for call in each.merged), total)
    merged = Aggregate(Union((old(0, fields), delta(0, fields))), named(keys), calls)
    typed = tuple(
        Named(_as_type(column(call.output.name, call.output.type), part.output.type), part.output.name)
        for call, part in zip(calls, parts, strict=True)
    )
    new = weighted(Project(merged, (*named(keys), *typed)), fields, ONE)
    # A row may be removed before it is added.
    kept = [compose("{0} <> 0L", (column(rows.name, BIGINT),), BOOLEAN)]
    if retracts:
        kept += [
            compose("COALESCE({0} <> 0, FALSE)", (column(part.output.name, part.output.type),), BOOLEAN)
            for part in parts
        ]
    is_kept = compose(" OR ".join(f"{{{place}}}" for place in range(len(kept))), tuple(kept), BOOLEAN)
    changed = consolidated(Union((removed(old(0, fields), fields), new if not keys else Filter(new, is_kept))), fields)
    output = output_of(node)
    is_there = compose("{0} > 0L", (column(rows.name, BIGINT),), BOOLEAN)
    there = leaf(KEPT, fields) if not keys else Filter(leaf(KEPT, fields), is_there)
    result = Project(there, (*named(keys), *(each.result for each in sums), Named(OF_CHANGE, WEIGHT)))
    second = Second(0, fields, by, changed)
    return Step(
        number,
        text,
        "one row for each group",
        output,
        (port,),
        ((0,),),
        frozenset(),
        result,
        second=second,
        always=not keys,
    )


def _as_type(value: Scalar, type_: DataType) -> Scalar:
    return value if value.type == type_ else compose(f"CAST({{0}} AS {type_})", (value,), type_)


_MAX_DIGITS = 17
"""The most digits of a DECIMAL that is multiplied by a weight."""


def _exact_sums(call: Call, name: Callable[[], str]) -> _Sums | None:
    """Returns the call by exact sums of weights, from which rows can be taken back; None for other calls."""
    if call.function is AggregateFunction.COUNT:
        return _count(call, name)
    if call.function not in {AggregateFunction.SUM, AggregateFunction.AVG} or call.distinct:
        return None
    bare = without_filter(call)
    value = bare.arguments[0]
    kind = value.type
    if kind is None or not (kind.is_integral or kind.name is TypeName.DECIMAL):
        return None
    is_average = call.function is AggregateFunction.AVG
    if kind.name is TypeName.DECIMAL:
        # A product with a weight, which is a DECIMAL(20,0), has 21 more digits, and must not lose any.
        if (kind.precision or 0) > _MAX_DIGITS or (is_average and refusal_of(call) is not None):
            return None
        summed = decimal((kind.precision or 0) + 10, kind.scale or 0)
        factor = f"CAST({{0}} * {{1}} AS {summed})"
    elif is_average or kind.name is TypeName.BIGINT:
        # The smallest BIGINT has no opposite.
        summed = decimal(38, 0)
        factor = f"CAST(CAST({{0}} AS DECIMAL(19,0)) * {{1}} AS {summed})"
    else:
        summed = BIGINT
        factor = "CAST({0} AS BIGINT) * {1}"
    product = compose(factor, (value, OF_CHANGE), summed)
    total = Call(AggregateFunction.SUM, (product,), Field(name(), summed))
    present = compose("CASE WHEN {0} IS NOT NULL THEN {1} END", (value, OF_CHANGE), BIGINT)
    number = Call(AggregateFunction.SUM, (present,), Field(name(), BIGINT))
    parts = (total, number)
    both = tuple(column(part.output.name, part.output.type) for part in parts)
    if is_average and kind.is_integral:
        result = compose(QUOTIENT, both, DOUBLE)
    elif is_average:
        row = row_of(call)
        template = "" if row is None else row.result
        template = template.replace("{type}", str(call.output.type)).replace("{part}", str(summed))
        result = compose(template, both, call.output.type)
    else:
        result = _as_type(compose("CASE WHEN {1} > 0L THEN {0} END", both, summed), call.output.type)
    return _Sums(parts, tuple(map(_added_up, parts)), Named(result, call.output.name))


def _count(call: Call, name: Callable[[], str]) -> _Sums | None:
    if call.distinct:
        return None
    conditions = [] if call.filter is None else [call.filter]
    values = is_not_null(call.arguments)
    conditions += [] if values is None else [values]
    weight: Scalar = OF_CHANGE
    for condition in conditions:
        weight = guarded(weight, condition)
    part = Call(AggregateFunction.SUM, (weight,), Field(name(), BIGINT))
    value = compose("COALESCE({0}, 0L)", (column(part.output.name, BIGINT),), BIGINT)
    return _Sums((part,), (_added_up(part),), Named(value, call.output.name))


def _added_up(part: Call) -> Call:
    """Returns the call that adds up the columns of a sum."""
    kind = part.output.type
    if kind.name is TypeName.DECIMAL:
        kind = decimal((kind.precision or 0) + 10, kind.scale or 0)
    return Call(AggregateFunction.SUM, (column(part.output.name, part.output.type),), Field(part.output.name, kind))


_MERGES = frozenset(
    {
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.BIT_AND,
        AggregateFunction.BIT_OR,
        AggregateFunction.BIT_XOR,
    }
)
_BY_ORDER = frozenset({PlanFunction.MIN_BY, PlanFunction.MAX_BY})


def _merged_parts(call: Call, name: Callable[[], str]) -> _Sums | None:
    """Returns the call by the parts of the table of splits (`workers.engine.plan.aggregates`), for groups that only
    grow; None for a call that has none.
    """
    if refusal_of(call) is not None:
        return None
    split = split_call(call, (name() for _ in count()), (name() for _ in count()))
    merged = []
    for place, part in enumerate(split.partial):
        own = column(part.output.name, part.output.type)
        if part.function in _BY_ORDER:
            # The next part is the smallest or largest order.
            order = split.partial[place + 1].output
            merged.append(Call(part.function, (own, column(order.name, order.type)), part.output))
        elif part.function in _MERGES:
            merged.append(Call(part.function, (own,), part.output))
        elif part.function in {AggregateFunction.SUM, AggregateFunction.COUNT}:
            merged.append(_added_up(part))
        else:
            return None
    finals = {final.output.name: _as_type(final.arguments[0], final.output.type) for final in split.final}
    value = replaced_columns(split.result.expression, finals)
    return _Sums(split.partial, tuple(merged), Named(value, call.output.name))


def replaced_columns(value: Scalar, columns: dict[str, Scalar]) -> Scalar:
    """Returns `value` with expressions in place of columns."""

    def replaced(node: Expression) -> Expression:
        return columns[node.name].tree if isinstance(node, Column) else map_children(node, replaced)

    return Scalar(replaced(value.tree), value.type)


# Distinct values with conditions


_MAX_FLAGS = 61
"""The most conditions of a value: each is a bit of a positive BIGINT. Another bit says that there is a row."""
_OVER_VALUES = frozenset({AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.AVG})


@dataclass(frozen=True)
class FlaggedValues:
    """The distinct values of groups, for calls that read the same values under several conditions. `rows` emits the
    group keys, the values, and in `flags` a bit for each condition that is true for the row. `over` returns the branch
    and the calls without DISTINCT over rows that have each value once with each of its bits.
    """

    rows: Project
    fields: tuple[Field, ...]
    flags: str
    over: Callable[[Node], tuple[Branch, list[Call]]]


def _conditions(calls: Iterable[Call]) -> dict[frozenset[str], list[str]]:
    """Returns the texts of the FILTERs under which each set of distinct values is read; the empty text for none."""
    conditions: dict[frozenset[str], list[str]] = {}
    for call in calls:
        texts = conditions.setdefault(distinct_set_of(call), [])
        text = _condition(call)
        if text not in texts:
            texts.append(text)
    return conditions


def _condition(call: Call) -> str:
    return "" if call.filter is None else call.filter.sql


def share_values(calls: Iterable[Call]) -> bool:
    """Whether calls with DISTINCT read the same values under several conditions, so that `flagged_values` reads each
    row less often.
    """
    distinct_calls = [call for call in calls if is_distinct(call)]
    most = max((len(texts) for texts in _conditions(distinct_calls).values()), default=0)
    return 2 <= most <= _MAX_FLAGS and all(call.function in _OVER_VALUES for call in distinct_calls)


def flagged_values(of: Contribution, calls: tuple[Call, ...], taken: frozenset[str]) -> FlaggedValues:
    """Returns the distinct values of `calls`, which have DISTINCT and share values (`share_values`)."""
    conditions = _conditions(calls)
    filters = {_condition(call): call.filter for call in calls}
    sets = {distinct_set_of(call): call.arguments for call in reversed(calls)}
    columns = names("$d", taken)
    keys = tuple(Named(normalised(key), next(columns)) for key in of.keys)
    branch = column(next(columns), INT) if len(sets) > 1 else None
    rows = of.rows if branch is None else Expand(of.rows, len(sets), branch.columns[0])
    slots, made_values = value_columns(
        tuple(tuple(map(normalised, arguments)) for arguments in sets.values()),
        branch,
        taken | {item.name for item in keys},
    )
    values = dict(zip(sets, made_values.values(), strict=True))
    slot_of = {
        (own, argument.sql): slot
        for own, arguments in sets.items()
        for argument, slot in zip(arguments, values[own], strict=True)
    }
    items = [*keys, *slots] if branch is None else [*keys, Named(branch, branch.columns[0]), *slots]
    fields = output_of(Project(rows, tuple(items)))
    flags = next(columns)
    each = [_flags([filters[text] for text in conditions[own]]) for own in sets]
    flag = each[0]
    if branch is not None:
        arms = " ".join(f"WHEN {number} THEN {{{number}}}" for number in range(1, len(each) + 1))
        flag = compose(f"CASE {{0}} {arms} END", (branch, *each), BIGINT)

    def over(of_flags: Node) -> tuple[Branch, list[Call]]:
        made = []
        for call in calls:
            own = distinct_set_of(call)
            is_set = f"({{0}} & {1 << conditions[own].index(_condition(call))}L) <> 0L"
            parts: tuple[Scalar, ...] = (column(flags, BIGINT),)
            if branch is not None:
                is_set = f"{{1}} = {list(sets).index(own) + 1} AND {is_set}"
                parts = (*parts, branch)
            arguments = tuple(slot_of[own, argument.sql] for argument in call.arguments)
            made.append(replace(call, arguments=arguments, distinct=False, filter=compose(is_set, parts, BOOLEAN)))
        kept = (*fields[len(keys) :], Field(flags, BIGINT))
        return Branch(of_flags, tuple(column(key.name, key.expression.type) for key in keys), named(kept)), made

    return FlaggedValues(Project(rows, (*items, Named(flag, flags))), fields, flags, over)


def _flags(conditions: list[Scalar | None]) -> Scalar:
    """Returns the bits of the conditions that are true, and a bit that is always set; None is always true."""
    parts = [
        (f"{1 << place}L" if condition is None else f"IF({{{place}}}, {1 << place}L, 0L)")
        for place, condition in enumerate(conditions)
    ]
    # A group exists although no condition is true for any of its rows.
    parts.append(f"{1 << len(conditions)}L")
    true = compose("TRUE", (), BOOLEAN)
    return compose(" + ".join(parts), tuple(condition or true for condition in conditions), BIGINT)


# Other aggregates


_EXACT = frozenset(
    {
        AggregateFunction.COUNT,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        AggregateFunction.COUNT_IF,
        AggregateFunction.BOOL_AND,
        AggregateFunction.BOOL_OR,
        AggregateFunction.BIT_AND,
        AggregateFunction.BIT_OR,
        AggregateFunction.BIT_XOR,
    }
)


def is_exact(call: Call) -> bool:
    """Whether the call has the same value for the same rows, whatever their order."""
    if call.function in _EXACT:
        return True
    kind = call.arguments[0].type if call.arguments else None
    is_sum = call.function is AggregateFunction.SUM
    return is_sum and kind is not None and (kind.is_integral or kind.name is TypeName.DECIMAL)


def projected(node: Aggregate, taken: frozenset[str]) -> tuple[Project, Aggregate]:
    """Returns the columns that an aggregate uses, each once, and the aggregate over them."""
    items: dict[str, Named] = {}

    def kept(value: Scalar) -> Scalar:
        if not value.columns:
            return value
        if value.sql not in items:
            items[value.sql] = Named(value, fresh_name(f"$a{len(items)}", taken))
        return column(items[value.sql].name, value.type)

    keys = tuple(replace(key, expression=kept(key.expression)) for key in node.keys)
    calls = tuple(
        replace(
            call,
            arguments=tuple(map(kept, call.arguments)),
            filter=None if call.filter is None else kept(call.filter),
            order_by=None if call.order_by is None else kept(call.order_by),
        )
        for call in node.calls
    )
    if not items:
        items[""] = Named(compose("1", (), None), fresh_name("$a0", taken))
    return Project(node.input, tuple(items.values())), replace(node, keys=keys, calls=calls)


def without_grouping_sets(node: Aggregate) -> Node:
    """Returns the union of the aggregates of each grouping set."""
    fields = output_of(node)
    branches = []
    for positions in node.grouping_sets:
        keys = tuple(key for place, key in enumerate(node.keys) if place in positions)
        absent = [place for place in range(len(node.keys)) if place not in positions]
        calls = tuple(call for call in node.calls if call.function not in _GROUPING)
        number = _number(node)
        grouped_ = replace(node, keys=keys, calls=calls if calls and keys else (*calls, number), grouping_sets=())
        known = {field.name for field in output_of(grouped_)}
        values = {call.output.name: _grouping(call, node, absent) for call in node.calls if call.function in _GROUPING}
        items = []
        for field in fields:
            value: Scalar | None = column(field.name, field.type)
            if field.name in values:
                value = values[field.name]
            elif field.name not in known:
                value = typed_null(field.type)
            if value is None:
                raise ChangesPlanError(f"the key {field.name} of grouping sets is of {field.type}")
            items.append(Named(value, field.name))
        # Without rows, a grouping set without keys has no row either, unlike an aggregate without GROUP BY.
        has_rows = compose("{0} > 0L", (column(number.output.name, BIGINT),), BOOLEAN)
        branches.append(Project(grouped_ if keys else Filter(grouped_, has_rows), tuple(items)))
    return branches[0] if len(branches) == 1 else Union(tuple(branches))


_GROUPING = frozenset({AggregateFunction.GROUPING, AggregateFunction.GROUPING_ID})


def _number(node: Aggregate) -> Call:
    return Call(AggregateFunction.COUNT, (), Field(fresh_name("$rows", names_of(node)), BIGINT))


def _grouping(call: Call, node: Aggregate, absent: list[int]) -> Scalar:
    """Returns the value of GROUPING or GROUPING_ID in a grouping set without the keys `absent`."""
    keys = [key.expression.sql for key in node.keys]
    asked = [keys.index(argument.sql) for argument in call.arguments] or list(range(len(keys)))
    number = 0
    for place in asked:
        number = 2 * number + (place in absent)
    value = literal(str(number), call.output.type)
    if value is None:
        raise ChangesPlanError(f"{call_text(call)} has no literal")
    return value
