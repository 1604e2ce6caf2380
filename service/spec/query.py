"""The structured query: what a job computes. SQL compiles into it, clients may post it as it is.

Expressions are SQL text in Spark's dialect, read by `service.spec.expressions` and never handed to Spark unparsed.
Columns are `alias.column`, or `column` where that is unambiguous. In `select`, `having` and `order_by` the names of
`group_by` entries and of `aggregates` are columns.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from service.spec.model import Frozen

MAX_NAME_LENGTH = 255
MAX_LIMIT = 2_147_483_647

ExpressionText = Annotated[str, Field(min_length=1, max_length=100_000, examples=["o.amount * 2"])]
Identifier = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH, examples=["orders"])]


class JoinKind(StrEnum):
    """Which rows a join keeps."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
    LEFT_SEMI = "left_semi"
    LEFT_ANTI = "left_anti"
    CROSS = "cross"


class SortDirection(StrEnum):
    """Ascending or descending."""

    ASC = "asc"
    DESC = "desc"


class NullsOrder(StrEnum):
    """Where NULLs sort."""

    FIRST = "first"
    LAST = "last"


class AggregateFunction(StrEnum):
    """The aggregate functions of the algebra. Each but the last two also over DISTINCT values."""

    COUNT = "COUNT"
    SUM = "SUM"
    AVG = "AVG"
    MIN = "MIN"
    MAX = "MAX"
    FIRST_VALUE = "FIRST_VALUE"
    LAST_VALUE = "LAST_VALUE"


class TableRef(Frozen):
    """A table of the job, under an alias."""

    kind: Literal["table"]
    table: Identifier = Field(description="A key of the job's `tables`.")
    alias: Identifier | None = Field(default=None, description="Its name in expressions; the table's by default.")

    @property
    def name(self) -> str:
        """The name under which expressions see it."""
        return self.alias or self.table


class JoinKey(Frozen):
    """One equality of a join: `left = right`, NULL matches nothing."""

    left: ExpressionText = Field(description="An expression over the tables joined so far.")
    right: ExpressionText = Field(description="An expression over the joined table.")


class Join(Frozen):
    """Joins one more table to everything before it."""

    kind: JoinKind
    right: TableRef
    on: tuple[JoinKey, ...] = Field(default=(), max_length=16, description="Equi-keys; none for `cross` alone.")
    residual: ExpressionText | None = Field(default=None, description="A further condition on both sides.")


class NamedExpression(Frozen):
    """An expression and the name of the column that it makes."""

    expression: ExpressionText
    name: Identifier


class AggregateCall(Frozen):
    """One aggregate: `COUNT(DISTINCT o.category) FILTER (WHERE o.ok) AS categories`."""

    function: AggregateFunction
    arguments: tuple[ExpressionText, ...] = Field(
        default=(), max_length=16, description="Empty for COUNT(*); several for COUNT(DISTINCT a, b) alone."
    )
    distinct: bool = False
    filter: ExpressionText | None = Field(default=None, description="Only rows for which this is true count.")
    order_by: ExpressionText | None = Field(
        default=None,
        description="What FIRST_VALUE and LAST_VALUE are first or last by; required there, refused elsewhere.",
    )
    name: Identifier


class SortKey(Frozen):
    """One key of ORDER BY. NULLs sort first ascending and last descending unless told, as in Spark."""

    expression: ExpressionText
    direction: SortDirection = SortDirection.ASC
    nulls: NullsOrder | None = None


class Query(Frozen):
    """FROM, joins, WHERE, GROUP BY with aggregates, HAVING, SELECT, ORDER BY, LIMIT, applied in this order.

    Without `group_by` and `aggregates` the query is a plain selection and `select` is required; with `aggregates` and
    no `group_by` it aggregates everything into one row. Without `select` the output is the group keys, then the
    aggregates.
    """

    source: TableRef = Field(description="The first table (FROM).")
    joins: tuple[Join, ...] = Field(default=(), max_length=32)
    where: ExpressionText | None = None
    group_by: tuple[NamedExpression, ...] = Field(default=(), max_length=64)
    aggregates: tuple[AggregateCall, ...] = Field(default=(), max_length=256)
    having: ExpressionText | None = None
    select: tuple[NamedExpression, ...] = Field(default=(), max_length=1024)
    order_by: tuple[SortKey, ...] = Field(default=(), max_length=64)
    limit: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
