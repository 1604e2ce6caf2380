"""The rewrite of an aggregate over a join to aggregates of sides below the join, and its formulas.

An aggregated side emits, for each group, the number n of rows that it represents, and the sums, counts and extremes of
its columns. A joined row then represents w = n_left * n_right rows; n is 1 for a side that is not aggregated, for the
right side of a semi or anti join, and for an outer join's row without a partner. With p the partial aggregate of the
call's argument and w the number of the *other* side, summed over the rows of a group:

    COUNT(*)  sum(w)          COUNT(x)  sum(p * w)         SUM(x)  sum(p * w)
    AVG(x)    sum(p * w) of SUM / sum(p * w) of COUNT      MIN(x), MAX(x)  of p, for any w
    SUM(x*y)  sum(p * q), x and y of one side each, with q the partial sum of y (`wide_sums.py`)

`EagerCalls` has the details: arguments that cannot be computed below, FILTER, and the types of sums.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.nodes import Number
from service.sql.expressions.scalar import Scalar, column
from service.sql.joins import Side
from service.sql.types.aggregates import result_type
from service.sql.types.data_types import BIGINT, BOOLEAN, DOUBLE, DataType, Field, TypeName, decimal, decimal_arithmetic
from workers.engine.plan.aggregates import QUOTIENT, is_distinct
from workers.engine.plan.expressions import all_of, compose, fresh_name, is_not_null
from workers.engine.plan.joined_aggregate import JoinedAggregate, is_multiplied, is_over_join
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Filter,
    Join,
    Named,
    Node,
    PlanFunction,
    Project,
    inputs_of,
    names_of,
    output_of,
)
from workers.engine.plan.traversal import identities
from workers.engine.rules.distinct.deduplication import names
from workers.engine.rules.eager.pushdown import (
    EXTREMES,
    NEAREST,
    Placement,
    carried_columns,
    multiplying_sides,
    placement_of,
)
from workers.engine.rules.eager.wide_sums import (
    NOTHING_KNOWN,
    SCALED,
    WHOLE,
    Factor,
    Parts,
    SumBounds,
    as_addend,
    halves_of,
    needs_halves,
    summed_product,
    whole_of,
)

_COUNT, _SUM, _AVG = AggregateFunction.COUNT, AggregateFunction.SUM, AggregateFunction.AVG
_LONG = decimal(20, 0)
"""A type for every BIGINT; Spark casts a BIGINT to it in arithmetic with a DECIMAL."""

_RAISED = "9223372036854775807L + NULLIF(CAST({0} IS NOT NULL AS BIGINT), 0L)"
"""NULL for NULL; ARITHMETIC_OVERFLOW for any other value."""

_BY: dict[AggregateFunction | PlanFunction, tuple[PlanFunction, AggregateFunction]] = {
    AggregateFunction.FIRST_VALUE: (PlanFunction.MIN_BY, AggregateFunction.MIN),
    AggregateFunction.LAST_VALUE: (PlanFunction.MAX_BY, AggregateFunction.MAX),
}

_OF_ONE_ROW = frozenset(
    {
        AggregateFunction.SUM,
        AggregateFunction.MIN,
        AggregateFunction.MAX,
        PlanFunction.MIN_BY,
        PlanFunction.MAX_BY,
    }
)
"""Calls of the final aggregate whose value over one row is their first argument."""

_ONE_PARTNER = frozenset({JoinKind.INNER, JoinKind.LEFT, JoinKind.RIGHT})


@dataclass
class EagerCalls:
    """Creates the calls of the aggregates below the join (`partial`, by side) and above it (`final`).

    An argument that cannot be computed below is its own p, and w is then the product of both sides' numbers. A FILTER
    on another side than the argument's makes that side's n count the rows that pass it. If none passes, the product is
    NULL and not 0, since infinity times 0 is NaN, and a SUM of nothing is NULL.

    Types: a BIGINT's sum below the join is computed in halves of 32 bits (`halves_of`), so that rows which the join
    drops, or which others cancel, cannot overflow it. A side that is itself a join may have so many rows that sums of
    any integers, even halves, overflow: there the sums are DECIMALs of 30 digits, 10^10 times a BIGINT. Products are
    DECIMALs of 38 digits, also those of two numbers of rows: they may exceed a BIGINT although values of both signs, or
    zeros, have a small sum. All of these cost several times as much as BIGINTs, which are used if the range of the
    values is known to suffice (`SumBounds`). The total is cast back. If it does not fit, it raises Spark's
    ARITHMETIC_OVERFLOW, as the original sum does for any order of the rows. A COUNT is always a BIGINT: it is not less
    than any of its parts.
    """

    over: JoinedAggregate
    aggregated: frozenset[Side]
    taken: frozenset[str]
    bounds: SumBounds = NOTHING_KNOWN
    partial: dict[Side, list[Call]] = field(default_factory=lambda: {side: [] for side in Side})
    final: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._names = {side: names(f"${side.value[0].lower()}", self.taken) for side in Side}
        self._final_names = names("$f", self.taken)

    def result_of(self, call: Call) -> Named:
        """Adds the partial and final calls of `call`; returns its value over the final calls, with name and type."""
        placement = placement_of(call, self.over, self.aggregated)
        weighed = bool(multiplying_sides(placement, self.over, self.aggregated))
        if is_distinct(call) or (placement == Placement() and not weighed):
            kept = self._final(replace(call, output=Field("", call.output.type)))
            return Named(kept, call.output.name)
        above = call.filter if placement.filter is None else None
        if call.function in EXTREMES | NEAREST:
            result = self._nearest(call, placement, above)
        elif call.function is _COUNT:
            result = compose("COALESCE({0}, 0L)", (self._counted(call, placement, above),), BIGINT)
        elif call.function is _AVG:
            result = self._average(call, placement, above)
        else:
            result = self._sum(call, placement, above)
        return Named(replace(result, type=call.output.type), call.output.name)

    def _weight(self, placement: Placement, call: Call) -> Scalar | None:
        """Returns how many rows of the other sides a joined row represents; None if it is always one."""
        weight: Scalar | None = None
        for side in multiplying_sides(placement, self.over, self.aggregated):
            filtered = placement.filter is side
            rows = self._partial(side, Call(_COUNT, (), Field("", BIGINT), filter=call.filter if filtered else None))
            if filtered:
                rows = compose("NULLIF({0}, 0L)", (rows,), BIGINT)
            elif self.over.null_extended(side):
                rows = compose("COALESCE({0}, 1L)", (rows,), BIGINT)
            if weight is not None and call.function is not _COUNT:
                weight, rows = _as_long(weight), _as_long(rows)
            weight = rows if weight is None else compose("{0} * {1}", (weight, rows), _product_type(weight, rows))
        return weight

    def _own_filter(self, call: Call, placement: Placement) -> Scalar | None:
        """Returns the FILTER of the call's partial calls."""
        return call.filter if placement.argument is not None and placement.filter is placement.argument else None

    def _nearest(self, call: Call, placement: Placement, above: Scalar | None) -> Scalar:
        passed = None
        if placement.filter is not None and placement.filter is not placement.argument:
            rows = self._partial(placement.filter, Call(_COUNT, (), Field("", BIGINT), filter=call.filter))
            passed = compose("{0} > 0L", (rows,), BOOLEAN)
        made = replace(call, distinct=False, filter=all_of((above, passed)), output=Field("", call.output.type))
        if placement.argument is None:
            return self._final(made)
        below = replace(call, distinct=False, filter=self._own_filter(call, placement), output=made.output)
        if call.order_by is None:
            return self._final(replace(made, arguments=(self._partial(placement.argument, below),)))
        by, bound = _BY[call.function]
        value = replace(below, function=by, arguments=(*call.arguments, call.order_by), order_by=None)
        order = Call(bound, (call.order_by,), Field("", call.order_by.type or call.output.type), filter=below.filter)
        parts = (self._partial(placement.argument, value), self._partial(placement.argument, order))
        return self._final(replace(made, function=by, arguments=parts, order_by=None))

    def _counted(self, call: Call, placement: Placement, above: Scalar | None) -> Scalar:
        weight = self._weight(placement, call)
        if placement.argument is None:
            rows = weight or Scalar(Number("1", "L"), BIGINT)
            # The FILTER is the first term, so the others are not evaluated for rows that it excludes.
            return self._total(rows, all_of((above, is_not_null(call.arguments))), BIGINT)
        own = Call(_COUNT, call.arguments, Field("", BIGINT), filter=self._own_filter(call, placement))
        rows = self._partial(placement.argument, own)
        return self._total(rows if weight is None else compose("{0} * {1}", (rows, weight), BIGINT), above, BIGINT)

    def _sum(self, call: Call, placement: Placement, above: Scalar | None) -> Scalar:
        of = call.arguments[0].type
        if placement.factors is not None and of is not None:
            parts = [self._parts(factor, call, placement, of) for factor in placement.factors]
            return self._sum_of(*summed_product(parts[0], parts[1], of), above, call)
        if self._needs_halves(call, placement):
            return self._sum_of_longs(call, placement, above)
        weight, rows = self._weight(placement, call), self._addend(call, placement)
        type_ = rows.type or _sum_type(of)
        if weight is not None and weight.type == type_ == BIGINT and self.bounds.multiples_fit(call.arguments[0]):
            rows = compose("({0}) * {1}", (rows, weight), BIGINT)
        elif weight is not None:
            rows, type_ = _product(rows, type_, weight)
        return self._sum_of(rows, type_, above, call)

    def _needs_halves(self, call: Call, placement: Placement) -> bool:
        side = placement.argument
        if side is None or self.bounds.sum_fits(call.arguments[0], side):
            return False
        return needs_halves(self._widened(call.arguments[0], side))

    def _widened(self, value: Scalar, side: Side) -> Scalar:
        """Returns `value` in the type to sum below the join: a DECIMAL if sums of integers could overflow there."""
        return (
            as_addend(value)
            if is_multiplied(self.over.input(side)) and not self.bounds.sum_fits(value, side)
            else value
        )

    def _sum_of(self, rows: Scalar, type_: DataType, above: Scalar | None, call: Call) -> Scalar:
        if above is not None and rows.column is None:
            # The summed expression may fail for rows that the FILTER excludes. Generated code computes common
            # subexpressions of the calls' arguments before any FILTER, but not those inside of an IF.
            rows, above = compose("IF({0}, {1}, NULL)", (above, rows), type_), None
        if type_.name is not TypeName.DECIMAL:
            return self._total(rows, above, type_)
        return _fitted(self._total(rows, above, _sum_type(type_)), call.output.type)

    def _sum_of_longs(self, call: Call, placement: Placement, above: Scalar | None) -> Scalar:
        high, low = (self._partial_sum(placement, call, half, BIGINT) for half in halves_of(call.arguments[0]))
        weight = self._weight(placement, call)
        if weight is None:
            totals = (self._total(high, above, BIGINT), self._total(low, above, BIGINT))
            return _fitted(whole_of(*totals, decimal(38, 0)), BIGINT)
        rows, type_ = _product(whole_of(high, low), WHOLE, weight)
        return _fitted(self._total(rows, above, type_), BIGINT)

    def _average(self, call: Call, placement: Placement, above: Scalar | None) -> Scalar:
        of = call.arguments[0].type
        if of is not None and of.name is TypeName.DECIMAL:
            total = self._sum(replace(call, function=_SUM, output=Field("", _sum_type(of))), placement, above)
            template = f"CAST(({{0}}) / NULLIF(CAST({{1}} AS DECIMAL(20,0)), 0) AS {call.output.type})"
        else:
            doubles = (compose("CAST({0} AS DOUBLE)", call.arguments, DOUBLE),)
            as_double = replace(call, function=_SUM, arguments=doubles, output=Field("", DOUBLE))
            total, template = self._sum(as_double, placement, above), QUOTIENT
        rows = self._counted(replace(call, function=_COUNT), placement, above)
        return compose(template, (total, rows), call.output.type)

    def _addend(self, call: Call, placement: Placement) -> Scalar:
        """Returns the value that a joined row adds to a sum, before the multiplication by its weight."""
        of = call.arguments[0].type
        if placement.argument is not None:
            argument = self._widened(call.arguments[0], placement.argument)
            return self._partial_sum(placement, call, argument, _sum_type(argument.type))
        return compose(f"CAST({{0}} AS {_sum_type(of)})", call.arguments, _sum_type(of))

    def _partial_sum(self, placement: Placement, call: Call, argument: Scalar, type_: DataType) -> Scalar:
        side = placement.argument or Side.LEFT
        return self._partial(side, Call(_SUM, (argument,), Field("", type_), filter=self._own_filter(call, placement)))

    def _parts(self, factor: Factor, call: Call, placement: Placement, product: DataType) -> Parts:
        """Returns the parts of a factor of `call`, whose argument has the type `product`."""
        value = factor.value
        if product.is_fractional and value.type != DOUBLE:
            value = compose("CAST({0} AS DOUBLE)", (value,), DOUBLE)
        scaled = compose(SCALED, (value,), DOUBLE) if product.is_fractional else None
        if factor.side not in self.aggregated:
            return Parts(value, value, as_addend(value), scaled)
        filter_ = call.filter if placement.filter is factor.side else None

        def below(function: AggregateFunction, of: Scalar) -> Scalar:
            type_ = _sum_type(of.type) if function is _SUM else of.type or call.output.type
            return self._partial(factor.side, Call(function, (of,), Field("", type_), filter=filter_))

        summed = self._widened(value, factor.side)
        if needs_halves(summed):
            high, low = halves_of(summed)
            total = whole_of(below(_SUM, high), below(_SUM, low))
        else:
            total = as_addend(below(_SUM, summed))
        if product.name is TypeName.DECIMAL:
            return Parts(total, total, total)
        extremes = (below(AggregateFunction.MIN, value), below(AggregateFunction.MAX, value))
        return Parts(*extremes, total, None if scaled is None else below(_SUM, scaled))

    def _partial(self, side: Side, call: Call) -> Scalar:
        """Returns the column of a partial call of `side`; equal calls share a column."""
        for known in self.partial[side]:
            if replace(known, output=call.output) == call:
                return column(known.output.name, known.output.type)
        made = replace(call, output=replace(call.output, name=next(self._names[side])))
        self.partial[side].append(made)
        return column(made.output.name, made.output.type)

    def _total(self, rows: Scalar, above: Scalar | None, type_: DataType) -> Scalar:
        return self._final(Call(_SUM, (rows,), Field("", type_), filter=above))

    def _final(self, call: Call) -> Scalar:
        made = replace(call, output=replace(call.output, name=next(self._final_names)))
        self.final.append(made)
        return column(made.output.name, made.output.type)


def _product(rows: Scalar, type_: DataType, weight: Scalar) -> tuple[Scalar, DataType]:
    """Returns `rows * weight` without overflow, and its type: DOUBLE, or a DECIMAL."""
    if type_.is_fractional:
        return compose("{0} * CAST({1} AS DOUBLE)", (rows, weight), DOUBLE), DOUBLE
    one, other = _as_long(replace(rows, type=type_)), _as_long(weight)
    made = _product_type(one, other)
    return compose("{0} * {1}", (one, other), made), made


def _as_long(rows: Scalar) -> Scalar:
    """Returns a BIGINT as a DECIMAL; a DECIMAL in parentheses."""
    if rows.type != BIGINT:
        return compose("({0})", (rows,), rows.type)
    return compose(f"CAST({{0}} AS {_LONG})", (rows,), _LONG)


def _product_type(one: Scalar, other: Scalar) -> DataType:
    """Returns the type of the product of two BIGINTs, or of two DECIMALs."""
    if one.type is None or other.type is None or one.type == BIGINT:
        return BIGINT
    digits = [(type_.precision or 0, type_.scale or 0) for type_ in (one.type, other.type)]
    return decimal_arithmetic("*", digits[0], digits[1])


def _fitted(total: Scalar, type_: DataType) -> Scalar:
    """Returns a total cast to the type that it has in the query; if it does not fit, it raises the query's error."""
    raised = f"CAST({_RAISED} AS {type_})" if type_ != BIGINT else _RAISED
    template = f"COALESCE(TRY_CAST({{0}} AS {type_}), {raised})"
    return compose(template, (compose("({0})", (total,), total.type),), type_)


def _sum_type(of: DataType | None) -> DataType:
    return result_type(_SUM, of) or DOUBLE


def aggregate_below(
    node: Aggregate, over: JoinedAggregate, aggregated: frozenset[Side], bounds: SumBounds = NOTHING_KNOWN
) -> Node:
    """Returns `node` with the sides in `aggregated` aggregated below its join: the same columns, types and rows.

    `refusal_of` must have returned None. The right side of a semi or anti join is made distinct. No final aggregate is
    needed if the groups are the join's keys and both sides have one row for each.
    """
    taken = names_of(node) | names_of(over.join.left) | names_of(over.join.right)
    calls = EagerCalls(over, aggregated, taken, bounds)
    results = tuple(calls.result_of(call) for call in over.calls)
    join, keys = over.join, _key_columns(over, aggregated, taken)
    inputs = {side: _input(side, over, aggregated, keys[side], tuple(calls.partial[side])) for side in Side}
    pairs = tuple(
        (_column(left), _column(right)) for left, right in zip(keys[Side.LEFT], keys[Side.RIGHT], strict=True)
    )
    below: Node = replace(join, left=inputs[Side.LEFT], right=inputs[Side.RIGHT], keys=pairs)
    condition = all_of(over.conditions)
    if condition is not None:
        below = Filter(below, condition)
    emitted = tuple(Named(column(key.name, key.expression.type), key.name) for key in over.keys)
    if has_one_row_a_group(over, aggregated) and all(has_value_of_one_row(call) for call in calls.final):
        above: Node = Project(below, (*over.keys, *(of_one_row(call) for call in calls.final)))
    else:
        above = Aggregate(below, over.keys, tuple(calls.final))
    return Project(above, (*emitted, *results))


def pushed_over_joins(before: Node, after: Node) -> tuple[Aggregate, ...]:
    """Returns the aggregates that `aggregate_below` added to `before` and that are over joins themselves."""
    known = identities(before)
    sides = (side for side in inputs_of(join_within(after)) if isinstance(side, Aggregate) and id(side) not in known)
    return tuple(side for side in sides if is_over_join(side))


def join_within(after: Node) -> Join:
    """Returns the join whose sides `aggregate_below` aggregated, in its result `after`."""
    while not isinstance(after, Join):
        after = inputs_of(after)[0]
    return after


def group_columns(over: JoinedAggregate, side: Side, aggregated: frozenset[Side]) -> tuple[Scalar, ...]:
    """Returns the columns to group `side` by: its join keys, then its carried columns."""
    types = {field.name: field.type for field in output_of(over.input(side))}
    keys = over.key(side)
    known = {key.column for key in keys}
    rest = (name for name in carried_columns(side, over, aggregated) if name not in known)
    return (*keys, *(column(name, types[name]) for name in rest))


def has_one_row_a_group(over: JoinedAggregate, aggregated: frozenset[Side]) -> bool:
    """Whether each joined row is a group of the query: both sides are grouped by the join's keys only, so each key has
    at most one partner, and the query groups by the keys of a side whose rows the join keeps.
    """
    join = over.join
    if aggregated != frozenset(Side) or join.kind not in _ONE_PARTNER:
        return False
    # Different strings may be equal as numbers.
    if any(left.type is None or left.type != right.type for left, right in join.keys):
        return False
    if any(len(group_columns(over, side, aggregated)) > len(over.key(side)) for side in Side):
        return False
    groups = {key.expression.column for key in over.keys}
    left, right = ([key.column for key in over.key(side)] for side in Side)
    if None in groups or not groups <= {*left, *right}:
        return False
    if join.kind is JoinKind.INNER:
        return all(one in groups or other in groups for one, other in zip(left, right, strict=True))
    return set(left if join.kind is JoinKind.LEFT else right) <= groups


def _key_columns(
    over: JoinedAggregate, aggregated: frozenset[Side], taken: frozenset[str]
) -> dict[Side, tuple[Named, ...]]:
    """Returns the join keys of each side; an aggregated side has new names for keys that are expressions."""
    named: dict[Side, tuple[Named, ...]] = {}
    for side in Side:
        prefix = f"$k{side.value[0].lower()}"
        named[side] = tuple(
            Named(key, key.column or (fresh_name(f"{prefix}{number}", taken) if side in aggregated else ""))
            for number, key in enumerate(over.key(side))
        )
    return named


def _column(key: Named) -> Scalar:
    return column(key.name, key.expression.type) if key.name else key.expression


def _input(
    side: Side,
    over: JoinedAggregate,
    aggregated: frozenset[Side],
    keys: tuple[Named, ...],
    calls: tuple[Call, ...],
) -> Node:
    if side not in aggregated:
        return over.input(side)
    rest = group_columns(over, side, aggregated)[len(keys) :]
    unique = {key.name: key for key in (*keys, *(Named(scalar, scalar.column or "") for scalar in rest))}
    return Aggregate(over.input(side), tuple(unique.values()), calls)


def has_value_of_one_row(call: Call) -> bool:
    """Whether the value of a final call over a single joined row is its argument."""
    return call.function in _OF_ONE_ROW and not call.distinct


def of_one_row(call: Call) -> Named:
    """Returns the value of a final call over a single joined row."""
    value = call.arguments[0]
    if call.filter is not None:
        value = compose("IF({0}, {1}, NULL)", (call.filter, value), call.output.type)
    return Named(replace(value, type=call.output.type), call.output.name)
