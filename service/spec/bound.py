"""A query with every name resolved and every expression checked: what the engine plans from.

Names: a table's columns are `alias.column`; group keys and aggregates are columns under their own names from `having`
on; the output has the names of `select`.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.spec.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.spec.scalar import Scalar
from service.spec.types import Field, Schema


@dataclass(frozen=True)
class BoundTable:
    """A table and the columns of it that the query uses, in file order.

    Each is the field that it becomes (`alias.column`) and its name in the files.
    """

    table: str
    alias: str
    columns: tuple[tuple[Field, str], ...]


@dataclass(frozen=True)
class BoundJoin:
    """`keys` pair an expression over the tables before with one over `right`; `residual` is over both."""

    kind: JoinKind
    right: BoundTable
    keys: tuple[tuple[Scalar, Scalar], ...]
    residual: Scalar | None


@dataclass(frozen=True)
class BoundName:
    """An expression and its output column."""

    expression: Scalar
    name: str


@dataclass(frozen=True)
class BoundCall:
    """An aggregate call over the joined and filtered rows. COUNT(*) has no arguments."""

    function: AggregateFunction
    arguments: tuple[Scalar, ...]
    distinct: bool
    filter: Scalar | None
    order_by: Scalar | None
    output: Field


@dataclass(frozen=True)
class BoundSort:
    """A sort key over the columns that `select` reads; aliases of `select` are replaced by their expressions."""

    expression: Scalar
    direction: SortDirection
    nulls: NullsOrder


@dataclass(frozen=True)
class BoundQuery:
    """FROM, joins, WHERE, then (where `is_aggregate`) GROUP BY and HAVING, then ORDER BY, LIMIT and SELECT."""

    source: BoundTable
    joins: tuple[BoundJoin, ...]
    where: Scalar | None
    is_aggregate: bool
    keys: tuple[BoundName, ...]
    calls: tuple[BoundCall, ...]
    having: Scalar | None
    order_by: tuple[BoundSort, ...]
    limit: int | None
    select: tuple[BoundName, ...]
    output: Schema
