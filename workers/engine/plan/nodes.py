"""Plan nodes: frozen values, compared by value, with no Spark in them.

A scan emits its columns as `alias.column`; every other node says below what it emits. Build plans with
`workers.engine.plan.builder`, read their columns with `workers.engine.plan.schema`, check them with
`workers.engine.plan.invariants`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from service.spec.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.spec.scalar import Scalar
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
    """Aggregate functions that only rewrites use, beside those of `AggregateFunction`."""

    MIN_BY = "MIN_BY"
    MAX_BY = "MAX_BY"


@dataclass(frozen=True)
class Named:
    """An expression and the output column that it makes."""

    expression: Scalar
    name: str


@dataclass(frozen=True)
class Call:
    """One aggregate call; `arguments` is empty for COUNT(*). `output` names and types the column that it makes.

    FIRST_VALUE(x ORDER BY t) has arguments (x,) and `order_by` t. MIN_BY(x, t) has arguments (x, t).
    """

    function: AggregateFunction | PlanFunction
    arguments: tuple[Scalar, ...]
    output: Field
    distinct: bool = False
    filter: Scalar | None = None
    order_by: Scalar | None = None


@dataclass(frozen=True)
class Scan:
    """Reads a table. Emits the columns the query needs, each as `alias.column`.

    `columns` pairs the emitted field with the column's name in the files.
    """

    table: str
    alias: str
    columns: tuple[tuple[Field, str], ...]


@dataclass(frozen=True)
class Filter:
    """Keeps rows for which `condition` is true. Emits its input's columns."""

    input: Node
    condition: Scalar


@dataclass(frozen=True)
class Project:
    """Emits `items` alone, in order."""

    input: Node
    items: tuple[Named, ...]


@dataclass(frozen=True)
class Join:
    """Emits the left columns, then the right ones (semi and anti: the left ones alone).

    `keys` are equalities left = right in which NULL matches nothing; `residual` may use columns of both sides.
    """

    left: Node
    right: Node
    kind: JoinKind
    keys: tuple[tuple[Scalar, Scalar], ...]
    residual: Scalar | None = None


@dataclass(frozen=True)
class Aggregate:
    """Groups by `keys` (everything into one row where empty) and emits the keys, then the calls' outputs."""

    input: Node
    keys: tuple[Named, ...]
    calls: tuple[Call, ...]
    role: AggregateRole = AggregateRole.WHOLE
    phases: Phases = Phases.UNDECIDED


@dataclass(frozen=True)
class Expand:
    """Emits each input row once per branch, with the branch's number (from 1) in an INT column `name` at the end."""

    input: Node
    branches: int
    name: str


@dataclass(frozen=True)
class Exchange:
    """Sends rows to tasks by the hash of `keys`. Emits its input's columns."""

    input: Node
    keys: tuple[Scalar, ...]


@dataclass(frozen=True)
class SortItem:
    """One key of a sort."""

    expression: Scalar
    direction: SortDirection
    nulls: NullsOrder


@dataclass(frozen=True)
class Sort:
    """Sorts everything. Emits its input's columns."""

    input: Node
    keys: tuple[SortItem, ...]


@dataclass(frozen=True)
class Limit:
    """Keeps the first `count` rows. Emits its input's columns."""

    input: Node
    count: int


Node = Scan | Filter | Project | Join | Aggregate | Expand | Exchange | Sort | Limit
"""Any plan node."""


def inputs_of(node: Node) -> tuple[Node, ...]:
    """The inputs of a node, left first."""
    if isinstance(node, Scan):
        return ()
    if isinstance(node, Join):
        return (node.left, node.right)
    return (node.input,)
