"""Plan nodes: frozen values, compared by value, with no Spark in them.

A scan emits its columns as `alias.column`; every other node says below what it emits. Build plans with
`workers.engine.plan.builder`, read their columns with `workers.engine.plan.nodes`, check them with
`workers.engine.plan.validation`.

What a plan node emits.

From which columns of scans, or of the input, a node's columns come.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import cast

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import INT, DataType, Field, TypeName, struct


class AggregateRole(StrEnum):
    """Which part of a split aggregate a node is; what keeps a rule from splitting it again."""

    WHOLE = "WHOLE"
    PARTIAL = "PARTIAL"
    FINAL = "FINAL"


class Phases(StrEnum):
    """In how many phases Spark is to run an aggregate. UNDECIDED leaves it to Spark, which takes two."""

    UNDECIDED = "UNDECIDED"
    ONE_PHASE = "ONE_PHASE"
    TWO_PHASE = "TWO_PHASE"


class PlanFunction(StrEnum):
    """Aggregate functions that only rewrites use, beside those of `AggregateFunction`.

    BIT_OR sets every bit that is set in one of its arguments. BITMAP_CONSTRUCT_AGG makes a bitmap of 32,768 bits of the
    places that it is given, 0 to 32,767. COLLECT_LIST of NULLs is an empty list.
    """

    MIN_BY = "MIN_BY"
    MAX_BY = "MAX_BY"
    BIT_OR = "BIT_OR"
    BITMAP_CONSTRUCT_AGG = "BITMAP_CONSTRUCT_AGG"
    COLLECT_LIST = "COLLECT_LIST"


@dataclass(frozen=True, kw_only=True)
class PlanNode:
    """What all nodes have.

    `id` is the node's number, unique in its plan and the plans that a planning pass makes of it; None before the pass
    numbers it (`workers.engine.plan.traversal`). It takes no part in comparisons. A changed copy keeps it.
    """

    id: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Named:
    """An expression and the output column that it makes."""

    expression: Scalar
    name: str


@dataclass(frozen=True)
class Call:
    """One aggregate call; `arguments` is empty for COUNT(*). `output` names and types the column that it makes.

    FIRST_VALUE(x ORDER BY t) has arguments (x,) and `order_by` t. MIN_BY(x, t) has arguments (x, t). The order of
    LISTAGG may be `descending`.
    """

    function: AggregateFunction | PlanFunction
    arguments: tuple[Scalar, ...]
    output: Field
    distinct: bool = False
    filter: Scalar | None = None
    order_by: Scalar | None = None
    descending: bool = False


@dataclass(frozen=True)
class Scan(PlanNode):
    """Reads a table. Emits the columns the query needs, each as `alias.column`.

    `columns` pairs the emitted field with the column's name in the files.
    """

    table: str
    alias: str
    columns: tuple[tuple[Field, str], ...]


@dataclass(frozen=True)
class Watermark(PlanNode):
    """Takes it that rows of a stream come up to `delay_ms` later, by their TIMESTAMP `column`, than those of the newest
    one; what waited for older ones is closed then, and rows that are later still are left out. Emits its input's
    columns.
    """

    input: Node
    column: Scalar
    delay_ms: int


@dataclass(frozen=True)
class Windows(PlanNode):
    """Emits each row once for each window of time that `column` is in, and in none where that is NULL, with the window
    in a structure `name` of its start and end, behind its input's columns.

    Windows are `size_ms` long, and one begins every `slide_ms`, counted from 1970-01-01 00:00:00 UTC. `column` is one
    of its input's; over a stream, one with a watermark, of which the windows have it from here on.
    """

    input: Node
    column: Scalar
    size_ms: int
    slide_ms: int
    name: str


@dataclass(frozen=True)
class Filter(PlanNode):
    """Keeps rows for which `condition` is true. Emits its input's columns."""

    input: Node
    condition: Scalar


@dataclass(frozen=True)
class Project(PlanNode):
    """Emits `items` alone, in order. `stands_for` as in `Union`."""

    input: Node
    items: tuple[Named, ...]
    stands_for: Node | None = field(default=None, compare=False)


@dataclass(frozen=True)
class JoinStrategy:
    """How a join is to run; AUTO leaves it to whoever comes next, Spark last.

    `demanded` is what query and settings demand of ship and local strategy, where a rule has chosen one of the two:
    later rules tell by it what they may change. None where no rule has. It has no say in how the join runs.
    """

    ship: JoinShip = JoinShip.AUTO
    local: JoinLocal = JoinLocal.AUTO
    skew: JoinSkew = JoinSkew.AUTO
    demanded: tuple[JoinShip, JoinLocal] | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Within:
    """How far apart rows of two streams are that a join puts together: `left` less `right`, TIMESTAMP columns with a
    watermark on its two sides, is from `at_least_us` to `at_most_us` microseconds, which its condition implies.

    Behind the join the column `event_time`, one of the two, has a watermark; none has where it is None.
    """

    left: Scalar
    right: Scalar
    at_least_us: int
    at_most_us: int
    event_time: str | None = None


@dataclass(frozen=True)
class Join(PlanNode):
    """Emits the left columns, then the right ones (semi and anti: the left ones alone).

    `keys` are equalities left = right in which NULL matches nothing, or, where `null_safe`, NULL alone (`<=>`);
    `residual` may use columns of both sides. A strategy other than AUTO is Spark's hint. Two streams with `within` are
    joined row by row, and rows forgotten that find no partner any more.
    """

    left: Node
    right: Node
    kind: JoinKind
    keys: tuple[tuple[Scalar, Scalar], ...]
    residual: Scalar | None = None
    null_safe: bool = False
    strategy: JoinStrategy = JoinStrategy()
    within: Within | None = None


@dataclass(frozen=True)
class Aggregate(PlanNode):
    """Groups by `keys` (everything into one row where empty) and emits the keys, then the calls' outputs.

    With `grouping_sets`, positions in `keys`, by each of these sets in turn, the keys outside of it being NULL.
    """

    input: Node
    keys: tuple[Named, ...]
    calls: tuple[Call, ...]
    role: AggregateRole = AggregateRole.WHOLE
    phases: Phases = Phases.UNDECIDED
    grouping_sets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Deduplicate(PlanNode):
    """Emits rows that are equal in all columns once; over a stream, once in its life. NULL equals NULL."""

    input: Node


@dataclass(frozen=True)
class Expand(PlanNode):
    """Emits each input row once per branch, with the branch's number (from 1) in an INT column `name` at the end."""

    input: Node
    branches: int
    name: str


@dataclass(frozen=True)
class Exchange(PlanNode):
    """Sends rows to tasks by the hash of `keys`, or to one task after the other where there are none. Emits its
    input's columns.

    `partitions` is a number of tasks that Spark keeps to; without, Spark may put small ones together.
    """

    input: Node
    keys: tuple[Scalar, ...]
    partitions: int | None = None


@dataclass(frozen=True)
class Union(PlanNode):
    """All rows of all `inputs`, at least two, whose columns have the same names and types in the same order.

    `stands_for` is the node in whose place a rule has put this one, with just its rows: the estimates are that node's.
    It has no say in what this one is, and none in how it runs.
    """

    inputs: tuple[Node, ...]
    stands_for: Node | None = field(default=None, compare=False)


@dataclass(frozen=True)
class SortItem:
    """One key of a sort."""

    expression: Scalar
    direction: SortDirection
    nulls: NullsOrder


@dataclass(frozen=True)
class Sort(PlanNode):
    """Sorts everything. Emits its input's columns."""

    input: Node
    keys: tuple[SortItem, ...]


@dataclass(frozen=True)
class Limit(PlanNode):
    """Keeps the first `count` rows. Emits its input's columns."""

    input: Node
    count: int


Node = (
    Scan
    | Watermark
    | Windows
    | Filter
    | Project
    | Join
    | Aggregate
    | Deduplicate
    | Expand
    | Exchange
    | Union
    | Sort
    | Limit
)
"""Any plan node."""


def inputs_of(node: Node) -> tuple[Node, ...]:
    """The inputs of a node, left first."""
    if isinstance(node, Scan):
        return ()
    if isinstance(node, Join):
        return (node.left, node.right)
    if isinstance(node, Union):
        return node.inputs
    return (node.input,)


UNKNOWN = DataType(TypeName.OTHER)
"""The type of an expression that only Spark can type."""

_OUTPUT, _NAMES = "_output", "_names"

ONE_SIDED = frozenset({JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI})
"""Joins that emit their left columns alone."""


def output_of(node: Node) -> tuple[Field, ...]:
    """The columns that `node` emits, in order. An expression without a known type has type OTHER.

    They are computed once: a node is immutable and keeps them, outside of its fields.
    """
    kept = vars(node)
    if _OUTPUT not in kept:
        kept[_OUTPUT] = _output_of(node)
    return cast("tuple[Field, ...]", kept[_OUTPUT])


def _output_of(node: Node) -> tuple[Field, ...]:
    match node:
        case Scan():
            return tuple(field for field, _ in node.columns)
        case Project():
            return tuple(_field(item) for item in node.items)
        case Aggregate():
            return (*(_field(key) for key in node.keys), *(call.output for call in node.calls))
        case Join():
            left = output_of(node.left)
            return left if node.kind in ONE_SIDED else (*left, *output_of(node.right))
        case Expand():
            return (*output_of(node.input), Field(node.name, INT))
        case Windows():
            return (*output_of(node.input), Field(node.name, window_type(node.column.type or UNKNOWN)))
        case Union():
            return output_of(node.inputs[0])
        case _:
            return output_of(node.input)


def window_type(instant: DataType) -> DataType:
    """The type of a window over a column of the type `instant`."""
    return struct((Field("start", instant), Field("end", instant)))


def names_of(node: Node) -> frozenset[str]:
    """The names of the columns that `node` emits. They are computed once, as in `output_of`."""
    kept = vars(node)
    if _NAMES not in kept:
        kept[_NAMES] = frozenset(field.name for field in output_of(node))
    return cast("frozenset[str]", kept[_NAMES])


def _field(item: Named) -> Field:
    return Field(item.name, item.expression.type or UNKNOWN)


def scanned_columns(node: Node, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The scans' columns whose values `node` emits as `columns`; None where one is computed, or comes from a union of
    different rows.
    """
    if columns is None:
        return None
    found = [_scanned(node, name) for name in columns]
    known = [name for name in found if name is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else None


def columns_below(items: Iterable[Named], columns: tuple[str, ...]) -> tuple[str, ...] | None:
    """What a projection to `items`, or a grouping by them, emits as `columns`, by its name below; None where one is an
    expression.
    """
    expressions = {item.name: item.expression for item in items}
    return columns_of(expressions[name] for name in columns) if expressions.keys() >= set(columns) else None


def _scanned(node: Node, name: str) -> str | None:
    match node:
        case Scan():
            return name
        case Union() | Project() if node.stands_for is not None:
            return _scanned(node.stands_for, name)
        case Union():
            return None
        case Join():
            return _scanned(node.left if name in names_of(node.left) else node.right, name)
        case Project() | Aggregate():
            items = node.items if isinstance(node, Project) else node.keys
            below = columns_below(items, (name,))
            return _scanned(node.input, below[0]) if below else None
        case Expand() | Windows() if name == node.name:
            return None
        case _:
            return _scanned(node.input, name)


def columns_of(scalars: Iterable[Scalar]) -> tuple[str, ...] | None:
    """The names of `scalars` that are columns, each once, in order; None where one is an expression."""
    names = [scalar.column for scalar in scalars]
    known = [name for name in names if name is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(names) else None
