"""Plans joins of two streams, in one of the two ways of `service/sql/resolve/stream_join_rules.py`.

In one state: an aggregate by the join's key becomes one aggregate over the rows of both sides, without a join. All left
rows of a key match all of its right rows, so the counts, sums and extremes of a group follow from those of each side
(`eager/rewrite.py`). The rows of both sides are united and aggregated by the key (`stream_aggregates.py`); then the
results of the sides are combined, group by group. A late row on either side changes its group as if it had come first.
An inner join omits a group until both sides have rows of its key. An outer join emits it with NULLs for the other side.

As joined rows: Spark joins the rows of both sides. Its state keeps a row until the watermarks of both streams have
passed it (`Join.within`). A pair is emitted once, when its later row arrives. An outer join emits a row without a match
once no match can arrive. Emitted rows never change, so the rows may be used like any other rows of a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.analysis import tree_of
from service.sql.expressions.scalar import Scalar, column
from service.sql.joins import Side
from service.sql.resolve.stream_join_rules import (
    STREAM_JOINS,
    JoinedRows,
    Refusal,
    joined_rows_refusals,
    one_state_refusals,
    terms_of,
)
from service.sql.types.data_types import BIGINT, BOOLEAN, Field
from workers.engine.plan.aggregates import is_distinct
from workers.engine.plan.explain import call_text, seconds
from workers.engine.plan.expressions import all_of, compose, fresh_name, is_not_null
from workers.engine.plan.joined_aggregate import JoinedAggregate, joined_aggregate
from workers.engine.plan.nodes import Aggregate, Call, Deduplicate, Filter, Join, Named, Node, Project, names_of
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.eager.rewrite import EagerCalls, has_value_of_one_row, of_one_row
from workers.engine.streaming.stream_aggregates import Contribution, united_aggregate


def one_state_refusal(node: Aggregate) -> str | None:
    """Returns why `node`, an aggregate over a join of two streams, cannot be computed in one state; None if it can."""
    over = joined_aggregate(node)
    if over is None:
        return "an expression between the join and GROUP BY cannot be moved below the join"
    columns, residual = over.joined_columns, over.join.residual
    rows = JoinedRows(
        over.join.kind,
        over.join.keys,
        frozenset(over.columns[Side.RIGHT]),
        columns,
        [tree_of(condition, columns) for condition in over.conditions],
        () if residual is None else terms_of(tree_of(residual, columns)),
    )
    groups = [key.expression for key in over.keys]
    return _first(one_state_refusals(rows, groups, over.calls, has_grouping_sets=bool(node.grouping_sets)))


def joined_rows_refusal(joins: Sequence[Join], is_streaming: Callable[[Node], bool], *, updates: bool) -> str | None:
    """Returns why Spark cannot join the rows of `joins`, all joins of streams in a query; None if it can. `updates`:
    the rows are aggregated, and groups are emitted as they change.
    """
    if len(joins) > 1:
        return str(Refusal("too_many_streams_joined"))
    join = joins[0]
    below = (part for side in (join.left, join.right) for part in walk_up(side))
    has_state = any(isinstance(part, Aggregate | Deduplicate) and is_streaming(part) for part in below)
    return _first(
        joined_rows_refusals(
            join.kind,
            is_bounded=join.within is not None,
            has_keys=bool(join.keys),
            has_state=has_state,
            updates=updates,
        )
    )


def _first(refusals: Iterable[Refusal]) -> str | None:
    return next(map(str, refusals), None)


def aggregate_in_one_state(node: Aggregate) -> Node:
    """Returns `node`, an aggregate over a join of two streams, as one aggregate over the rows of both sides, with the
    same columns.

    Raises ValueError if there is a `one_state_refusal`.
    """
    refusal = one_state_refusal(node)
    over = joined_aggregate(node)
    if refusal is not None or over is None:
        raise ValueError(refusal)
    taken = names_of(node) | names_of(over.join.left) | names_of(over.join.right)
    plain = replace(over, calls=tuple(call for call in over.calls if not is_distinct(call)))
    eager = EagerCalls(plain, frozenset(Side), taken)
    results = {call.output.name: eager.result_of(call) for call in plain.calls}
    unsupported = next((call for call in eager.final if not has_value_of_one_row(call)), None)
    if unsupported is not None:
        raise ValueError(f"{call_text(unsupported)} needs the joined rows")
    distinct = {side: tuple(call for call in over.calls if _distinct_side(call, over) is side) for side in Side}
    counted = {side: _row_count_column(eager.partial[side]) for side in Side}
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
    has_rows = {side: compose("{0} > 0L", (column(present[side], BIGINT),), BOOLEAN) for side in Side}
    needed = STREAM_JOINS[over.join.kind].needs
    condition = all_of(tuple(has_rows[side] for side in Side if side in needed))
    groups: Node = grouped if condition is None else Filter(grouped, condition)
    parts: list[Named] = []
    for side, contribution in zip(Side, contributions, strict=True):
        for call in contribution.calls:
            value = column(call.output.name, call.output.type)
            if side not in needed and not is_distinct(call):
                # An outer join has NULLs if there is no match.
                value = compose("IF({0}, {1}, NULL)", (has_rows[side], value), call.output.type)
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


def _row_count_column(calls: Sequence[Call]) -> str | None:
    """Returns the column that has the number of all rows, if there is one."""
    counts = (call for call in calls if call.function is AggregateFunction.COUNT and not call.arguments)
    return next((call.output.name for call in counts if call.filter is None), None)


def _rows(over: JoinedAggregate, side: Side) -> Node:
    """Returns the side's rows. Those with a NULL key, which have no match, are included only if the join keeps them."""
    keeps = over.join.kind is (JoinKind.LEFT if side is Side.LEFT else JoinKind.RIGHT)
    has_key = None if keeps else is_not_null(over.key(side))
    return over.input(side) if has_key is None else Filter(over.input(side), has_key)


def _distinct_side(call: Call, over: JoinedAggregate) -> Side | None:
    if not is_distinct(call):
        return None
    used: tuple[Scalar, ...] = call.arguments if call.filter is None else (*call.arguments, call.filter)
    return over.side_of(*used)


def join_text(join: Join) -> str:
    """Returns a sentence about how Spark joins the rows; empty if the join has no time bounds."""
    within = join.within
    if within is None:
        return ""
    return (
        "Spark joins the rows of both streams, since the query uses joined rows: a pair is emitted when its later row "
        f"arrives; {within.left} - {within.right} is from {seconds(within.at_least_us)} to "
        f"{seconds(within.at_most_us)}."
    )
