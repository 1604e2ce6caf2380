"""Two streams joined and aggregated by the join's key, as one aggregate over both sides' rows: no join, and no state of
one.

Rows of a key on the left meet all rows of it on the right, so that what a group counts, sums and compares follows from
what each side counts, sums and compares by itself (`eager/rewrite.py`). Rows of both sides are united and aggregated
by the key at once (`stream_aggregates.py`); the sides' parts are put together behind that, group by group. A row that
comes late, on either side, changes its group as if it had come first.

A side that has no rows of a key yet: an inner join has no such group, which is left out until there is one; the side
that an outer join keeps stands alone, with NULLs for the other.

Two streams whose joined rows are asked for, joined by Spark: the rows of both sides are its state, and those go that
the watermarks of both have passed (`Join.within`).

Every pair is found once, when the later of its rows comes; a row that finds no partner comes out of an outer join once
none can come any more. So what comes out never changes, and whatever stands above rows of a stream may stand above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.analysis import cannot_fail, null_of_nulls, tree_of
from service.sql.expressions.scalar import Scalar, column
from service.sql.statements.join_hints import Side
from service.sql.types.data_types import BIGINT, BOOLEAN, Field
from workers.engine.plan.aggregates import is_distinct
from workers.engine.plan.explain import call_text, seconds
from workers.engine.plan.expressions import all_of, compose, fresh_name, is_not_null
from workers.engine.plan.joined_aggregate import JoinedAggregate, joined_aggregate
from workers.engine.plan.nodes import Aggregate, Call, Deduplicate, Filter, Join, Named, Node, Project, names_of
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.eager.pushdown import placement_of, refusal_of
from workers.engine.rules.eager.rewrite import EagerCalls, has_value_of_one_row, of_one_row
from workers.engine.streaming.stream_aggregates import Contribution, united_aggregate

_BOTH = frozenset(Side)

_NEEDED = {
    JoinKind.INNER: frozenset(Side),
    JoinKind.LEFT: frozenset({Side.LEFT}),
    JoinKind.RIGHT: frozenset({Side.RIGHT}),
    JoinKind.LEFT_SEMI: frozenset(Side),
}
"""By kind, the sides without rows of which there is no group."""


def stream_join_obstacle(node: Aggregate) -> str | None:
    """Why `node`, an aggregate over a join of two streams, cannot be one aggregate over both, as a sentence."""
    over = joined_aggregate(node)
    if over is None:
        return "An expression between the join and GROUP BY cannot be moved below the join."
    join = over.join
    if join.kind not in _NEEDED:
        return f"A group of a {join.kind.value.upper()} JOIN may vanish, or change its key, as rows come."
    if not join.keys:
        return "The join has no equality between its sides."
    if join.residual is not None or over.conditions:
        told = all_of((join.residual, *over.conditions))
        return f"The condition {told} is over both sides, or over one whose rows may be missing."
    if any(one.type is None or one.type != other.type for one, other in join.keys):
        return "The two sides of an equality are of different types: cast one of them."
    return _group_obstacle(over) or _call_obstacle(over)


def over_both_streams(node: Aggregate) -> Node:
    """`node` as one aggregate over the rows of both sides of its join: the same columns, and rows as they are known.

    Raises ValueError for an aggregate with a `stream_join_obstacle`.
    """
    obstacle = stream_join_obstacle(node)
    over = joined_aggregate(node)
    if obstacle is not None or over is None:
        raise ValueError(obstacle)
    taken = names_of(node) | names_of(over.join.left) | names_of(over.join.right)
    plain = _plain(over)
    eager = EagerCalls(plain, _BOTH, taken)
    results = {call.output.name: eager.result_of(call) for call in plain.calls}
    distinct = {side: tuple(call for call in over.calls if _distinct_side(call, over) is side) for side in Side}
    counted = {side: _count_of_rows(eager.partial[side]) for side in Side}
    present = {side: counted[side] or fresh_name(f"$n{side.value[0].lower()}", taken) for side in Side}
    keys = tuple(
        Field(fresh_name(f"$k{place}", taken), one.type or BIGINT) for place, (one, _) in enumerate(over.join.keys)
    )
    contributions = tuple(
        Contribution(
            _rows(over, side),
            over.key(side),
            (*eager.partial[side], *distinct[side]),
            None if counted[side] else present[side],
        )
        for side in Side
    )
    grouped = united_aggregate(keys, contributions, taken)
    there = {side: compose("{0} > 0L", (column(present[side], BIGINT),), BOOLEAN) for side in Side}
    needed = _NEEDED[over.join.kind]
    condition = all_of(tuple(there[side] for side in Side if side in needed))
    groups: Node = grouped if condition is None else Filter(grouped, condition)
    parts: list[Named] = []
    for side, contribution in zip(Side, contributions, strict=True):
        for call in contribution.calls:
            value = column(call.output.name, call.output.type)
            if side not in needed and not is_distinct(call):
                # As an outer join has them where no partner was found.
                value = compose("IF({0}, {1}, NULL)", (there[side], value), call.output.type)
            parts.append(Named(value, call.output.name))
    names = {key.column: named for side in Side for key, named in zip(over.key(side), keys, strict=True)}
    group = tuple(Named(column(names[key.expression.column].name, key.expression.type), key.name) for key in over.keys)
    joined = Project(groups, (*group, *parts))
    kept = tuple(Named(column(key.name, key.expression.type), key.name) for key in over.keys)
    through = tuple(Named(column(part.name, part.expression.type), part.name) for part in parts)
    above = Project(joined, (*kept, *through, *(of_one_row(call) for call in eager.final)))
    items = tuple(
        results.get(call.output.name) or Named(column(call.output.name, call.output.type), call.output.name)
        for call in over.calls
    )
    return Project(above, (*kept, *items))


def _count_of_rows(calls: Sequence[Call]) -> str | None:
    """The column of those that has the number of all rows."""
    counts = (call for call in calls if call.function is AggregateFunction.COUNT and not call.arguments)
    return next((call.output.name for call in counts if call.filter is None), None)


def _plain(over: JoinedAggregate) -> JoinedAggregate:
    return replace(over, calls=tuple(call for call in over.calls if not is_distinct(call)))


def _rows(over: JoinedAggregate, side: Side) -> Node:
    """The side's rows; those of a NULL key, which meet nothing, only where the join keeps them."""
    keeps = over.join.kind is (JoinKind.LEFT if side is Side.LEFT else JoinKind.RIGHT)
    known = None if keeps else is_not_null(over.key(side))
    return over.input(side) if known is None else Filter(over.input(side), known)


def _group_obstacle(over: JoinedAggregate) -> str | None:
    join: Join = over.join
    groups = {key.expression.column for key in over.keys}
    one_of = [{left.column, right.column} - {None} for left, right in join.keys]
    if join.kind is JoinKind.LEFT or join.kind is JoinKind.LEFT_SEMI:
        one_of = [{left.column} - {None} for left, _ in join.keys]
    if join.kind is JoinKind.RIGHT:
        one_of = [{right.column} - {None} for _, right in join.keys]
    other = next((key for key in over.keys if not any(key.expression.column in names for names in one_of)), None)
    if other is not None:
        return f"It groups by {other.expression}, which is not the join's key."
    if any(not names & groups for names in one_of):
        return "It does not group by the whole of the join's key."
    return None


def _call_obstacle(over: JoinedAggregate) -> str | None:
    for call in over.calls:
        if is_distinct(call):
            reason = _distinct_obstacle(call, over)
            if reason is not None:
                return reason
    plain = _plain(over)
    needy = next((call for call in plain.calls if _needs_rows(call, plain)), None)
    if needy is not None:
        return f"{call_text(needy)} needs the joined rows."
    refused = refusal_of(plain, _BOTH)
    if refused is not None:
        return refused
    eager = EagerCalls(plain, _BOTH, frozenset())
    for call in plain.calls:
        eager.result_of(call)
    odd = next((call for call in eager.final if not has_value_of_one_row(call)), None)
    return None if odd is None else f"{call_text(odd)} needs the joined rows."


def _needs_rows(call: Call, over: JoinedAggregate) -> bool:
    """Whether an argument, or the FILTER, has columns of which no side can compute it by itself."""
    placement = placement_of(call, over, _BOTH)
    used = call.arguments if call.order_by is None else (*call.arguments, call.order_by)
    left = any(scalar.columns for scalar in used) and placement.argument is None and placement.factors is None
    return left or (call.filter is not None and bool(call.filter.columns) and placement.filter is None)


def _distinct_obstacle(call: Call, over: JoinedAggregate) -> str | None:
    side = _distinct_side(call, over)
    if side is None:
        return f"{call_text(call)} is over both sides of the join."
    columns = over.columns[side]
    trees = [tree_of(argument, columns) for argument in call.arguments]
    if over.null_extended(side) and not any(tree is not None and null_of_nulls(tree) for tree in trees):
        return f"{call_text(call)} may count rows that found no partner."
    if call.filter is not None:
        trees.append(tree_of(call.filter, columns))
    if not all(tree is not None and cannot_fail(tree) for tree in trees):
        return f"{call_text(call)} may fail on rows that find no partner."
    return None


def _distinct_side(call: Call, over: JoinedAggregate) -> Side | None:
    if not is_distinct(call):
        return None
    used: tuple[Scalar, ...] = call.arguments if call.filter is None else (*call.arguments, call.filter)
    return over.side_of(*used)


def bounded_join_obstacle(
    joins: tuple[Join, ...], is_streaming: Callable[[Node], bool], *, updates: bool
) -> str | None:
    """Why Spark cannot join the rows of `joins`, all joins of streams that a query has, and forget them again; None
    where it can. `updates`: the rows are aggregated, and groups come out as they change.
    """
    join = joins[0]
    if len(joins) > 1:
        return "more than two streams are joined"
    if join.within is None:
        return "the rows of two joined streams would be kept forever: bound the time between them in ON"
    below = (part for side in (join.left, join.right) for part in walk_up(side))
    if any(isinstance(part, Aggregate | Deduplicate) and is_streaming(part) for part in below):
        return "one of two joined streams is grouped or made distinct before the join"
    if updates and join.kind is not JoinKind.INNER:
        return f"a {join.kind.value.upper()} JOIN of two streams needs watermarks and output 'append'"
    return None


def told_of(join: Join) -> str:
    """How the join is run, as a sentence."""
    within = join.within
    if within is None:
        return ""
    return (
        f"Spark joins the rows of both streams, since they are asked for: a pair comes out when its later row comes, "
        f"{within.left} - {within.right} being from {seconds(within.at_least_us)} to {seconds(within.at_most_us)}."
    )
