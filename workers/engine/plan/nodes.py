"""Plan nodes: frozen values, compared by value, without Spark.

A scan emits its columns as `alias.column`; the docstring of every other node says what it emits. `output_of` returns a
node's columns, `scanned_columns` and `columns_below` the columns of scans, or of the input, from which they come.
`workers.engine.plan.builder` builds plans, `workers.engine.plan.validation` checks them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import cast

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import AggregateFunction, GeneratorFunction, JoinKind, SetKind
from service.sql.expressions.scalar import Scalar
from service.sql.joins import ONE_SIDED, Side
from service.sql.resolve import bound
from service.sql.types.data_types import INT, DataType, Field, TypeName, struct

UNKNOWN = DataType(TypeName.OTHER)
"""The type of an expression whose type only Spark can determine."""

_OUTPUT, _NAMES = "_output", "_names"

Named = bound.Named
SortItem = bound.SortItem


class AggregateRole(StrEnum):
    """The part of a split aggregate that a node is; rules do not split a part again."""

    WHOLE = "WHOLE"
    PARTIAL = "PARTIAL"
    FINAL = "FINAL"


class Phases(StrEnum):
    """The number of phases in which Spark runs an aggregate. UNDECIDED leaves it to Spark, which uses two."""

    UNDECIDED = "UNDECIDED"
    ONE_PHASE = "ONE_PHASE"
    TWO_PHASE = "TWO_PHASE"


class PlanFunction(Enum):
    """Aggregate functions that only rewrites use, in addition to `AggregateFunction`. None equals a function of a
    query, also if both have the same name.

    BIT_OR sets every bit that is set in one of its arguments. BITMAP_CONSTRUCT_AGG builds a bitmap of 32,768 bits from
    the positions of bits, 0 to 32,767. COLLECT_LIST of NULLs is an empty list.
    """

    MIN_BY = "MIN_BY"
    MAX_BY = "MAX_BY"
    BIT_OR = "BIT_OR"
    BITMAP_CONSTRUCT_AGG = "BITMAP_CONSTRUCT_AGG"
    COLLECT_LIST = "COLLECT_LIST"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, kw_only=True)
class PlanNode:
    """The base of all nodes.

    `id` is the node's number, unique in its plan and in all plans that a planning pass creates from it; None before the
    pass numbers it (`workers.engine.plan.traversal`). Comparisons ignore it. A changed copy keeps it.
    """

    id: int | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Call:
    """One aggregate call; `arguments` is empty for COUNT(*). `output` is the name and type of its column.

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
class Values(PlanNode):
    """Emits rows of constants, whose values have the types of `columns`."""

    columns: tuple[Field, ...]
    rows: tuple[tuple[Scalar, ...], ...]


@dataclass(frozen=True)
class Watermark(PlanNode):
    """Declares a watermark on a stream: rows arrive at most `delay_ms` late, by the TIMESTAMP `column`, compared with
    the newest row. State that waits for older rows is closed, and rows that are later are dropped. Emits its input's
    columns.
    """

    input: Node
    column: Scalar
    delay_ms: int


@dataclass(frozen=True)
class Windows(PlanNode):
    """Emits each row once for each window of time that contains `column`, but no row where it is NULL. Emits its
    input's columns, followed by `name`, a structure of the window's start and end.

    Windows are `size_ms` long, and one begins every `slide_ms`, counted from 1970-01-01 00:00:00 UTC. `column` is a
    column of the input; over a stream it has a watermark, which the windows then have.
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
    """Emits only `items`, in order. `replaces` as in `Union`."""

    input: Node
    items: tuple[Named, ...]
    replaces: Node | None = field(default=None, compare=False)


@dataclass(frozen=True)
class JoinStrategy:
    """How a join runs. AUTO leaves the choice to later rules, and finally to Spark.

    `forced` is the ship and local strategy that query and settings force, if a rule chose one of the two, so that later
    rules see what they may change; None if no rule did. It does not affect how the join runs.
    """

    ship: JoinShip = JoinShip.AUTO
    local: JoinLocal = JoinLocal.AUTO
    skew: JoinSkew = JoinSkew.AUTO
    forced: tuple[JoinShip, JoinLocal] | None = field(default=None, compare=False)

    @property
    def hint(self) -> tuple[str, Side] | None:
        """The Spark hint that requests the strategy, and the side that it names; None if the choice is Spark's."""
        match self.ship, self.local:
            case JoinShip.BROADCAST_LEFT, _:
                return "BROADCAST", Side.LEFT
            case JoinShip.BROADCAST_RIGHT, _:
                return "BROADCAST", Side.RIGHT
            case _, JoinLocal.HASH_LEFT:
                return "SHUFFLE_HASH", Side.LEFT
            case _, JoinLocal.HASH_RIGHT:
                return "SHUFFLE_HASH", Side.RIGHT
            case (JoinShip.REPARTITION, _) | (_, JoinLocal.SORT_MERGE):
                return "MERGE", Side.LEFT
            case _:
                return None


@dataclass(frozen=True)
class Within:
    """The time bounds of a join of two streams: `left` minus `right`, TIMESTAMP columns with watermarks on its two
    sides, is between `at_least_us` and `at_most_us` microseconds. The join's condition implies this.

    After the join the column `event_time`, one of the two, has a watermark; None: no column has one.
    """

    left: Scalar
    right: Scalar
    at_least_us: int
    at_most_us: int
    event_time: str | None = None


@dataclass(frozen=True)
class Join(PlanNode):
    """Emits the left columns, then the right ones (semi and anti joins: only the left ones).

    `keys` are equalities left = right in which NULL matches nothing, or with `null_safe` only NULL (`<=>`); `residual`
    may use columns of both sides. A strategy other than AUTO becomes a Spark hint. `within` is for joins of two
    streams: rows that can have no more partners are removed from the state.
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
    """Groups by `keys` (without keys, all rows into one) and emits the keys, then the calls' outputs.

    `grouping_sets` are positions in `keys`: it groups by each of the sets, and the other keys are NULL.
    """

    input: Node
    keys: tuple[Named, ...]
    calls: tuple[Call, ...]
    role: AggregateRole = AggregateRole.WHOLE
    phases: Phases = Phases.UNDECIDED
    grouping_sets: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True)
class Deduplicate(PlanNode):
    """Emits rows that are equal in all columns once; over a stream, once for all mini-batches. NULL equals NULL."""

    input: Node


@dataclass(frozen=True)
class Expand(PlanNode):
    """Emits each input row once per branch, with the branch's number (from 1) in an INT column `name` at the end."""

    input: Node
    branches: int
    name: str


@dataclass(frozen=True)
class Generate(PlanNode):
    """Emits each row once for each row that `function` makes of `arguments`: its input's columns, followed by
    `columns`. A row of which it makes none is left out; with `outer` it is emitted once, with NULLs.
    """

    input: Node
    function: GeneratorFunction
    arguments: tuple[Scalar, ...]
    columns: tuple[Field, ...]
    outer: bool = False


@dataclass(frozen=True)
class WindowFunctions(PlanNode):
    """Computes calls with OVER. Emits its input's columns, followed by `calls`.

    The tree of each expression is an `Over` over columns of the input. No row is added or removed, but a value depends
    on other rows: filters and limits must stay above, except for filters by all keys of PARTITION BY.
    """

    input: Node
    calls: tuple[Named, ...]


@dataclass(frozen=True)
class Exchange(PlanNode):
    """Shuffles rows by the hash of `keys`, or round-robin without keys. Emits its input's columns.

    `partitions` is an exact number of partitions; if it is None, Spark may coalesce small ones.
    """

    input: Node
    keys: tuple[Scalar, ...]
    partitions: int | None = None


@dataclass(frozen=True)
class Union(PlanNode):
    """Emits all rows of all `inputs`, at least two, whose columns have the same names and types in the same order.

    `replaces` is the node that a rule replaced by this one; both emit the same rows, and estimates are calculated from
    `replaces`. It does not affect comparisons, nor how this node runs.
    """

    inputs: tuple[Node, ...]
    replaces: Node | None = field(default=None, compare=False)


@dataclass(frozen=True)
class MultisetOperation(PlanNode):
    """INTERSECT ALL or EXCEPT ALL of two inputs whose columns have the same names and types. Emits each row of `left`
    as often as `kind` says: the smaller of its numbers in both inputs, or the difference. NULL equals NULL.

    Spark counts equal rows before and after the shuffle, so a hot row is no skew.
    """

    left: Node
    right: Node
    kind: SetKind


@dataclass(frozen=True)
class StepRows(PlanNode):
    """Rows that the step of a `Recursion` reads: those of the step before if `place` is 0, else those of its input at
    `place`. `columns` pairs the emitted field with the name of the column there.
    """

    place: int
    columns: tuple[tuple[Field, str], ...]


@dataclass(frozen=True)
class Recursion(PlanNode):
    """The rows of the first of `inputs`, then those of `step` over the rows of the step before, until it has none.
    Emits `columns`: those of the first input, and of `step`, in their order.

    `step` is a tree whose leaves are `StepRows`. Spark runs it once for each step, as it is: no rule sees it. There are
    at most `levels` steps, or as many as Spark allows.
    """

    inputs: tuple[Node, ...]
    step: Node
    columns: tuple[Field, ...]
    levels: int | None = None


@dataclass(frozen=True)
class Sort(PlanNode):
    """Sorts all rows. Emits its input's columns."""

    input: Node
    keys: tuple[SortItem, ...]


@dataclass(frozen=True)
class Limit(PlanNode):
    """Skips the first `offset` rows, and keeps the next `count`, or all others if None. Emits its input's columns."""

    input: Node
    count: int | None
    offset: int = 0

    def rows(self, below: float) -> float:
        """Returns the number of rows that it keeps of `below` rows."""
        left = max(below - self.offset, 0)
        return left if self.count is None else min(left, self.count)


@dataclass(frozen=True)
class Shared(PlanNode):
    """Emits its input's rows. Spark computes the nodes with the same `number`, which have equal inputs, once, and keeps
    the rows until the job ends.
    """

    input: Node
    number: int


UnaryNode = (
    Watermark
    | Windows
    | Filter
    | Project
    | Aggregate
    | Deduplicate
    | Expand
    | Generate
    | WindowFunctions
    | Exchange
    | Sort
    | Limit
    | Shared
)
"""A node with one input."""

Node = Scan | Values | UnaryNode | Join | Union | MultisetOperation | Recursion | StepRows
"""Any plan node."""


def inputs_of(node: Node) -> tuple[Node, ...]:
    """Returns the inputs of a node, left first."""
    if isinstance(node, Scan | Values | StepRows):
        return ()
    if isinstance(node, Join | MultisetOperation):
        return (node.left, node.right)
    if isinstance(node, Union | Recursion):
        return node.inputs
    return (node.input,)


def join_input(join: Join, side: Side) -> Node:
    """Returns the input of `join` on one side."""
    return join.left if side is Side.LEFT else join.right


def join_keys(join: Join, side: Side) -> tuple[Scalar, ...]:
    """Returns the key expressions of `join` on one side."""
    return tuple(key[0 if side is Side.LEFT else 1] for key in join.keys)


def output_of(node: Node) -> tuple[Field, ...]:
    """Returns the columns that `node` emits, in order. An expression without a known type has type OTHER.

    They are computed once and cached in the immutable node, outside of its fields.
    """
    cache = vars(node)
    if _OUTPUT not in cache:
        cache[_OUTPUT] = _output_of(node)
    return cast("tuple[Field, ...]", cache[_OUTPUT])


def _output_of(node: Node) -> tuple[Field, ...]:
    match node:
        case Scan():
            return tuple(field for field, _ in node.columns)
        case Values() | Recursion():
            return node.columns
        case StepRows():
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
        case Generate():
            return (*output_of(node.input), *node.columns)
        case WindowFunctions():
            return (*output_of(node.input), *(_field(call) for call in node.calls))
        case Windows():
            return (*output_of(node.input), Field(node.name, window_type(node.column.type or UNKNOWN)))
        case Union():
            return output_of(node.inputs[0])
        case MultisetOperation():
            return output_of(node.left)
        case _:
            return output_of(node.input)


def window_type(instant: DataType) -> DataType:
    """Returns the type of a window over a column of the type `instant`."""
    return struct((Field("start", instant), Field("end", instant)))


def names_of(node: Node) -> frozenset[str]:
    """Returns the names of the columns that `node` emits, cached as in `output_of`."""
    cache = vars(node)
    if _NAMES not in cache:
        cache[_NAMES] = frozenset(field.name for field in output_of(node))
    return cast("frozenset[str]", cache[_NAMES])


def _field(item: Named) -> Field:
    return Field(item.name, item.expression.type or UNKNOWN)


def scanned_columns(node: Node, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """Returns the scans' columns whose values `node` emits as `columns`; None if one is computed, or comes from a union
    of different rows.
    """
    if columns is None:
        return None
    found = [_scanned(node, name) for name in columns]
    known = [name for name in found if name is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(found) else None


def columns_below(items: Iterable[Named], columns: tuple[str, ...]) -> tuple[str, ...] | None:
    """Returns the input columns that a projection to `items`, or a grouping by them, emits as `columns`; None if one is
    an expression.
    """
    expressions = {item.name: item.expression for item in items}
    return columns_of(expressions[name] for name in columns) if expressions.keys() >= set(columns) else None


def _scanned(node: Node, name: str) -> str | None:
    match node:
        case Scan():
            return name
        case Union() | Project() if node.replaces is not None:
            return _scanned(node.replaces, name)
        case Union() | MultisetOperation() | Values():
            return None
        case Join():
            return _scanned(node.left if name in names_of(node.left) else node.right, name)
        case Project() | Aggregate():
            items = node.items if isinstance(node, Project) else node.keys
            below = columns_below(items, (name,))
            return _scanned(node.input, below[0]) if below else None
        case Expand() | Windows() if name == node.name:
            return None
        case Recursion() | StepRows():
            return None
        case WindowFunctions() | Generate() if name not in names_of(node.input):
            return None
        case _:
            return _scanned(node.input, name)


def columns_of(scalars: Iterable[Scalar]) -> tuple[str, ...] | None:
    """Returns the column names of `scalars`, each once, in order; None if one is an expression."""
    names = [scalar.column for scalar in scalars]
    known = [name for name in names if name is not None]
    return tuple(dict.fromkeys(known)) if len(known) == len(names) else None
