"""The nodes of scalar expressions: exactly what `service.sql.expressions.reader` accepts, and what rules add.

A tree that has been read has `Name` leaves; `service.sql.expressions.compile_expression` resolves each to a `Column`.
Nodes compare by value; their offset in the text is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_

from service.contract.query import AggregateFunction
from service.sql.types.data_types import DataType


def _position() -> int | None:
    return field(default=None, compare=False)


@dataclass(frozen=True)
class Name:
    """A column as written in the query: `qualifier.name` or `name`; `at` is its offset in the text."""

    qualifier: str | None
    name: str
    at: int | None = _position()


@dataclass(frozen=True)
class Column:
    """A resolved column under its full output name. `type` is None if it is not known before the query runs.

    `longest` is an upper bound of the bytes of a computed column; None for a table's column. `size` is the number of
    nodes of the expression that computes it.
    """

    name: str
    type: DataType | None
    at: int | None = _position()
    longest: int | None = field(default=None, compare=False)
    size: int = field(default=1, compare=False)


@dataclass(frozen=True)
class Null:
    """NULL."""

    at: int | None = _position()


@dataclass(frozen=True)
class Boolean:
    """TRUE or FALSE."""

    value: bool
    at: int | None = _position()


@dataclass(frozen=True)
class Number:
    """An unsigned number as Spark reads it: `12`, `1.50`, `1e3`; `suffix` is Spark's L, S or Y, or nothing. Rules write
    D and BD too.
    """

    text: str
    suffix: str = ""
    at: int | None = _position()

    @property
    def is_integer(self) -> bool:
        """Whether it consists of digits only."""
        return self.text.isascii() and self.text.isdigit()


@dataclass(frozen=True)
class String:
    """A string; `value` has no escapes. `parameter` is the name or index of the parameter that it is the value of."""

    value: str
    at: int | None = _position()
    parameter: str | int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Binary:
    """Bytes, as an even number of hexadecimal digits."""

    digits: str


@dataclass(frozen=True)
class Interval:
    """`INTERVAL '<value>' <unit>`; only allowed as an operand of `+` and `-`. The unit may be `YEAR TO MONTH`."""

    value: str
    unit: str


@dataclass(frozen=True)
class Keyword:
    """A word that is an argument of a call: the unit of `timestampadd` and `timestampdiff`."""

    text: str


@dataclass(frozen=True)
class Negation:
    """Arithmetic minus."""

    operand: Expression


@dataclass(frozen=True)
class BitwiseNot:
    """`~operand`."""

    operand: Expression


@dataclass(frozen=True)
class Not:
    """Logical NOT."""

    operand: Expression


@dataclass(frozen=True)
class Arithmetic:
    """`+ - * / % DIV || & ^ |`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Comparison:
    """`= <> < <= > >= <=>`."""

    operator: str
    left: Expression
    right: Expression


@dataclass(frozen=True)
class Connective:
    """AND or OR over two or more terms; a chain of one operator is a single node."""

    operator: str
    terms: tuple[Expression, ...]


@dataclass(frozen=True)
class Test:
    """`operand IS NULL`, `IS TRUE` or `IS FALSE`; rules write `IS NOT NULL` too."""

    operand: Expression
    what: str


@dataclass(frozen=True)
class InList:
    """`operand IN (items)`."""

    operand: Expression
    items: tuple[Expression, ...]


@dataclass(frozen=True)
class Between:
    """`operand BETWEEN low AND high`."""

    operand: Expression
    low: Expression
    high: Expression


@dataclass(frozen=True)
class Like:
    """LIKE, ILIKE or RLIKE; `escape` is a single character."""

    operator: str
    operand: Expression
    pattern: Expression
    escape: str | None


@dataclass(frozen=True)
class Case:
    """CASE with conditions, or, with an operand, with values to compare it with. `is_unpivot`: it chooses between the
    columns of UNPIVOT, of which Spark converts no string.
    """

    operand: Expression | None
    branches: tuple[tuple[Expression, Expression], ...]
    default: Expression | None
    is_unpivot: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Cast:
    """CAST, or TRY_CAST if `tries`."""

    operand: Expression
    type: DataType
    tries: bool


@dataclass(frozen=True)
class Call:
    """A function of `service.sql.types.functions`, by its canonical lower-case name."""

    name: str
    arguments: tuple[Expression, ...]
    at: int | None = _position()


@dataclass(frozen=True)
class Extract:
    """`EXTRACT(part FROM operand)`."""

    part: str
    operand: Expression


@dataclass(frozen=True)
class GetField:
    """`operand.name`: a field of a structure, or of each structure of an array, or the value of a map for a key."""

    operand: Expression
    name: str
    at: int | None = _position()


@dataclass(frozen=True)
class Element:
    """`operand[index]`: the element of an array at `index`, from 0, or the value of a map for the key `index`."""

    operand: Expression
    index: Expression
    at: int | None = _position()


@dataclass(frozen=True)
class Variable:
    """A parameter of the innermost `Lambda` around it that has one of this name, in lower case."""

    name: str
    at: int | None = _position()


@dataclass(frozen=True)
class Lambda:
    """`(parameters) -> body`: an argument of a higher-order function. The names are in lower case."""

    parameters: tuple[str, ...]
    body: Expression


@dataclass(frozen=True)
class OrderKey:
    """A key of the ORDER BY of a window; not an expression itself."""

    expression: Expression
    descending: bool = False
    nulls_first: bool = True


@dataclass(frozen=True)
class FrameBound:
    """The start or the end of a frame: `side` is `PRECEDING`, `FOLLOWING` or `CURRENT ROW`. `offset` is None for the
    current row, and for the first or last row of the partition (UNBOUNDED).
    """

    side: str
    offset: Expression | None = None


@dataclass(frozen=True)
class Frame:
    """The rows of the partition that a window function reads; `unit` is `ROWS` or `RANGE`."""

    unit: str
    start: FrameBound
    end: FrameBound


@dataclass(frozen=True)
class Over:
    """`function(arguments) OVER (PARTITION BY … ORDER BY … frame)`: a window function, or an aggregate over a window.

    `function` is a key of `service.sql.expressions.window_functions.WINDOW_FUNCTIONS`, or the value of an
    `AggregateFunction`. COUNT(*) has no arguments. Without a `frame`, Spark chooses it.
    """

    function: str
    arguments: tuple[Expression, ...]
    partition_by: tuple[Expression, ...] = ()
    order_by: tuple[OrderKey, ...] = ()
    frame: Frame | None = None
    filter: Expression | None = None
    ignores_nulls: bool = False
    at: int | None = _position()


@dataclass(frozen=True)
class Aggregate:
    """An aggregate call in a SELECT; not a part of a scalar expression. COUNT(*) has no arguments."""

    function: AggregateFunction
    arguments: tuple[Expression, ...]
    distinct: bool
    filter: Expression | None
    order_by: Expression | None
    at: int | None = _position()
    descending: bool = False


Expression = (
    Name
    | Column
    | Null
    | Boolean
    | Number
    | String
    | Binary
    | Interval
    | Keyword
    | Negation
    | BitwiseNot
    | Not
    | Arithmetic
    | Comparison
    | Connective
    | Test
    | InList
    | Between
    | Like
    | Case
    | Cast
    | Call
    | Extract
    | GetField
    | Element
    | Variable
    | Lambda
    | Over
    | Aggregate
)


_LEAVES = frozenset({Name, Column, Null, Boolean, Number, String, Binary, Interval, Keyword, Variable})
"""The nodes without parts: most nodes of a tree."""


def map_children(node: Expression, change: Callable[[Expression], Expression]) -> Expression:
    """Returns `node` with `change` applied to each of its direct parts, in order of appearance; `node` itself if
    `change` returns each part as it is.
    """
    parts = children(node)
    changed = [change(part) for part in parts]
    return node if all(map(is_, parts, changed)) else _with_children(node, changed)


def _with_children(node: Expression, parts: Sequence[Expression]) -> Expression:
    """Returns `node` with other parts, in the order of `children`."""
    match node:
        case Negation() | BitwiseNot() | Not():
            return type(node)(parts[0])
        case Test():
            return Test(parts[0], node.what)
        case Cast():
            return Cast(parts[0], node.type, node.tries)
        case GetField():
            return GetField(parts[0], node.name, node.at)
        case Extract():
            return Extract(node.part, parts[0])
        case Lambda():
            return Lambda(node.parameters, parts[0])
        case Element():
            return Element(parts[0], parts[1], node.at)
        case Arithmetic() | Comparison():
            return type(node)(node.operator, parts[0], parts[1])
        case Like():
            return Like(node.operator, parts[0], parts[1], node.escape)
        case Connective():
            return Connective(node.operator, tuple(parts))
        case InList():
            return InList(parts[0], tuple(parts[1:]))
        case Between():
            return Between(parts[0], parts[1], parts[2])
        case Call():
            return Call(node.name, tuple(parts), node.at)
    left = iter(parts)
    match node:
        case Case():
            return Case(
                next(left) if node.operand is not None else None,
                tuple((next(left), next(left)) for _ in node.branches),
                next(left) if node.default is not None else None,
                node.is_unpivot,
            )
        case Aggregate():
            return replace(
                node,
                arguments=tuple(next(left) for _ in node.arguments),
                filter=next(left) if node.filter is not None else None,
                order_by=next(left) if node.order_by is not None else None,
            )
        case Over():
            return replace(
                node,
                arguments=tuple(next(left) for _ in node.arguments),
                filter=next(left) if node.filter is not None else None,
                partition_by=tuple(next(left) for _ in node.partition_by),
                order_by=tuple(replace(key, expression=next(left)) for key in node.order_by),
            )
        case _:
            return node


def children(node: Expression) -> tuple[Expression, ...]:
    """Returns the direct parts of `node`, in order of appearance."""
    if type(node) in _LEAVES:
        return ()
    match node:
        case Arithmetic() | Comparison():
            return (node.left, node.right)
        case Call():
            return node.arguments
        case Connective():
            return node.terms
        case Negation() | BitwiseNot() | Not() | Test() | Cast() | GetField() | Extract():
            return (node.operand,)
        case Lambda():
            return (node.body,)
        case Element():
            return (node.operand, node.index)
        case Like():
            return (node.operand, node.pattern)
        case InList():
            return (node.operand, *node.items)
        case Between():
            return (node.operand, node.low, node.high)
        case Case(operand, branches, default):
            parts = (operand, *(part for branch in branches for part in branch), default)
            return tuple(part for part in parts if part is not None)
        case Aggregate(_, arguments):
            return tuple(part for part in (*arguments, node.filter, node.order_by) if part is not None)
        case Over(_, arguments, partition_by, order_by):
            parts = (*arguments, node.filter, *partition_by, *(key.expression for key in order_by))
            return tuple(part for part in parts if part is not None)
        case _:
            return ()


def walk(node: Expression) -> Iterator[Expression]:
    """Yields `node` and all nodes below it, parents first, left to right."""
    pending = [node]
    while pending:
        part = pending.pop()
        yield part
        pending += reversed(children(part))


def conjuncts(condition: Expression) -> Iterator[Expression]:
    """Yields the terms of an AND, including nested ones; the whole condition if it is not an AND."""
    if isinstance(condition, Connective) and condition.operator == "AND":
        for term in condition.terms:
            yield from conjuncts(term)
    else:
        yield condition


class NodeCounter:
    """Counts the nodes of trees with shared parts, as if they were expanded; it visits each shared part once."""

    def __init__(self) -> None:
        self._sizes: dict[int, tuple[Expression, int]] = {}

    def count(self, tree: Expression) -> int:
        """Returns the number of nodes of `tree`."""
        known = self._sizes.get(id(tree))
        if known is not None:
            return known[1]
        size = 1 + sum(map(self.count, children(tree)))
        # The reference to the tree prevents the reuse of its id.
        self._sizes[id(tree)] = (tree, size)
        return size


_PLACED = (Name, Column, Variable, Call, Over, Aggregate)


def position_of(node: Expression) -> int | None:
    """Returns the offset in the text of the first name or call of `node`; None if there is none."""
    for part in walk(node):
        if isinstance(part, _PLACED) and part.at is not None:
            return part.at
    return None


def with_variables(node: Expression, values: Mapping[str, Expression]) -> Expression:
    """Returns the body of a lambda with its parameters, by name, replaced by `values`."""
    if isinstance(node, Variable):
        return values.get(node.name, node)
    if isinstance(node, Lambda):
        values = {name: value for name, value in values.items() if name not in node.parameters}
    return map_children(node, lambda child: with_variables(child, values))


def columns_of(node: Expression) -> tuple[str, ...]:
    """Returns the names of the resolved columns in order of first appearance."""
    return tuple(dict.fromkeys(part.name for part in walk(node) if isinstance(part, Column)))
