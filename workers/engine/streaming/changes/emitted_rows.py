"""The rows that a plan by changes emits for the changes of its result: the newest row of each key, or each change."""

from __future__ import annotations

from service.contract.job import CHANGE_TYPE
from service.sql.expressions.nodes import Expression, Frame, FrameBound, OrderKey, Over
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, STRING, Field
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.nodes import Filter, Named, Node, Project, WindowFunctions
from workers.engine.streaming.changes.state_files import WEIGHT
from workers.engine.streaming.changes.weights import OF_CHANGE, named, rows_of

_WHOLE = Frame("ROWS", FrameBound("PRECEDING"), FrameBound("FOLLOWING"))


def newest_rows(node: Node, fields: tuple[Field, ...], keys: tuple[str, ...], weight: str) -> Node:
    """Returns one change for each of `keys`: the row that was added if there is one, else the one that was removed.
    The column `weight` is 1 or 0.
    """
    place = fresh_name("$place", frozenset(field.name for field in fields))
    order = (OrderKey(OF_CHANGE.tree, descending=True, nulls_first=False),)
    number = Over("ROW_NUMBER", (), _columns(fields, keys), order)
    ranked = WindowFunctions(node, (Named(Scalar(number, BIGINT), place),))
    newest = Filter(ranked, compose("{0} = 1L", (column(place, BIGINT),), BOOLEAN))
    is_there = compose("CAST({0} > 0L AS BIGINT)", (OF_CHANGE,), BIGINT)
    return Project(newest, (*named(fields), Named(is_there, weight)))


def logged(node: Node, fields: tuple[Field, ...], output: tuple[Field, ...], keys: tuple[str, ...] | None) -> Node:
    """Returns each change as a row with the column `CHANGE_TYPE`. With `keys`, a row that another one replaces has the
    type `update_preimage`, and is before that one; otherwise changes add and remove rows only.
    """
    is_added = compose("{0} > 0L", (OF_CHANGE,), BOOLEAN)
    if keys is None:
        kind = compose("IF({0}, 'insert', 'delete')", (is_added,), STRING)
        number_of_rows = compose("ABS({0})", (OF_CHANGE,), BIGINT)
        items = (*named(output), Named(kind, CHANGE_TYPE), Named(number_of_rows, WEIGHT))
        return rows_of(Project(node, items), (*output, Field(CHANGE_TYPE, STRING)))
    number = fresh_name("$number", frozenset(field.name for field in fields))
    changes_of_key = Over("COUNT", (), _columns(fields, keys), (OrderKey(OF_CHANGE.tree),), _WHOLE)
    numbered = WindowFunctions(node, (Named(Scalar(changes_of_key, BIGINT), number),))
    is_update = compose("{0} > 1L", (column(number, BIGINT),), BOOLEAN)
    kind = compose(
        "CASE WHEN {0} THEN IF({1}, 'update_postimage', 'update_preimage') WHEN {1} THEN 'insert' ELSE 'delete' END",
        (is_update, is_added),
        STRING,
    )
    return Project(numbered, (*named(output), Named(kind, CHANGE_TYPE)))


def _columns(fields: tuple[Field, ...], names: tuple[str, ...]) -> tuple[Expression, ...]:
    types = {field.name: field.type for field in fields}
    return tuple(column(name, types[name]).tree for name in names)
