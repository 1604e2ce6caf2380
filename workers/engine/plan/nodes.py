"""Plan nodes: frozen values, compared by value, with no Spark in them.

A scan emits its columns as `alias.column`; every other node says below what it emits. Build plans with
`workers.engine.plan.builder`, read their columns with `workers.engine.plan.schema`, check them with
`workers.engine.plan.invariants`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from service.spec.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.spec.scalar import Scalar
from service.spec.strategies import JoinLocal, JoinShip, JoinSkew
from service.spec.types import Field


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
    numbers it (`workers.engine.plan.numbering`). It takes no part in comparisons. A changed copy keeps it.
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
