"""Plan nodes over changes. A change is a row with a weight in the column `WEIGHT`: 1 adds the row, -1 removes it. Rows
with weights are a multiset, in which a row occurs as often as the sum of its weights.

The rows of a state are the first input of a union: Spark recognises the common partitioning of the inputs by the names
of the first one, which are those of the state's columns only there.
"""

from __future__ import annotations

from collections.abc import Iterable

from service.contract.query import AggregateFunction, GeneratorFunction
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, Field
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.nodes import Aggregate, Call, Filter, Generate, Named, Node, Project, Scan, Union
from workers.engine.streaming.changes.state_files import WEIGHT

OF_CHANGE = column(WEIGHT, BIGINT)
"""The weight of a change."""

ONE, MINUS_ONE = (compose(text, (), BIGINT) for text in ("1L", "-1L"))


_COPIES = 65_536
"""The copies of a row in a block."""


def leaf(alias: str, fields: Iterable[Field]) -> Scan:
    """Returns the node that reads the changes called `alias`, with the columns `fields` and the weight."""
    return Scan(alias, alias, tuple((field, field.name) for field in (*fields, Field(WEIGHT, BIGINT))))


def named(fields: Iterable[Field]) -> tuple[Named, ...]:
    """Returns the columns as they are."""
    return tuple(Named(column(field.name, field.type), field.name) for field in fields)


def weighted(node: Node, fields: Iterable[Field], weight: Scalar = OF_CHANGE) -> Project:
    """Returns the columns `fields` of `node`, and `weight`."""
    return Project(node, (*named(fields), Named(weight, WEIGHT)))


def consolidated(node: Node, fields: tuple[Field, ...]) -> Filter:
    """Returns the sum of the weights of equal rows, without those whose sum is 0. NULL equals NULL."""
    total = Call(AggregateFunction.SUM, (OF_CHANGE,), Field(WEIGHT, BIGINT))
    return Filter(Aggregate(node, named(fields), (total,)), compose("{0} <> 0L", (OF_CHANGE,), BOOLEAN))


def rows_of(node: Node, fields: tuple[Field, ...]) -> Project:
    """Returns each row of `node` as often as its weight says, without the weight."""
    taken = frozenset(field.name for field in fields)
    block, copy = (Field(fresh_name(name, taken), BIGINT) for name in ("$block", "$copy"))
    present = Filter(node, compose("{0} > 0L", (OF_CHANGE,), BOOLEAN))
    # In blocks, since the numbers of the copies are an array in memory.
    blocks = compose(f"SEQUENCE(0L, ({{0}} - 1L) DIV {_COPIES}L)", (OF_CHANGE,), None)
    in_blocks = Generate(present, GeneratorFunction.EXPLODE, (blocks,), (block,))
    numbers = (OF_CHANGE, column(block.name, BIGINT))
    copies = compose(f"SEQUENCE(1L, LEAST({_COPIES}L, {{0}} - {{1}} * {_COPIES}L))", numbers, None)
    return Project(Generate(in_blocks, GeneratorFunction.EXPLODE, (copies,), (copy,)), named(fields))


def added(*nodes: Node) -> Node:
    """Returns the union of changes with the same columns."""
    return nodes[0] if len(nodes) == 1 else Union(nodes)


def difference(new: Node, old: Node | None, fields: tuple[Field, ...]) -> Node:
    """Returns the changes from the rows `old` to the rows `new`, both without weights; `old` is None for no rows."""
    changes = weighted(new, fields, ONE)
    return consolidated(changes if old is None else Union((weighted(old, fields, MINUS_ONE), changes)), fields)
