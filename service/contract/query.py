"""The limits of a query, each declared once. What is beyond one is refused with `query_too_deep`, which names it.

They bound the time of a submission, which takes less than a second, and the stack and the time of Spark's optimizer.

The structured query: what a job computes. SQL compiles into it, clients may post it as it is.

Expressions are SQL text in Spark's dialect, read by `service.sql.expressions.compile_expression` and never handed to
Spark unparsed. Columns are `alias.column`, or `column` where that is unambiguous. In `select`, `having` and `order_by`
the names of `group_by` entries and of `aggregates` are columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic_core import PydanticCustomError

from service.contract.model import Bounds, Duration, Flag, Frozen, refuse_flag
from service.contract.options import JoinLocal, JoinShip, JoinSkew

CODE = "query_too_deep"


@dataclass(frozen=True)
class Limit:
    """A limit: `counts` says what is counted, `way_out` what to do instead."""

    name: str
    most: int
    counts: str
    way_out: str

    def detail(self, found: int | None = None) -> str:
        """The sentences of a refusal; `found` is the number in the query, None where it is known only to be more."""
        number = f"more than {self.most}" if found is None else str(found)
        return f"The query has {number} {self.counts}; at most {self.most} (limit `{self.name}`). {self.way_out}"

    def check(self, value: Any) -> Any:
        """`value`, for a validator before that of a field's type. Raises PydanticCustomError for a longer one."""
        if isinstance(value, Sized) and len(value) > self.most:
            raise PydanticCustomError(CODE, "{detail}", {"detail": self.detail(len(value))})
        return value


_VALUES = "Put long lists of values into a file, name it in `tables` and join it."
_SPLIT = "Split the query into several jobs, each of which reads the result of the one before."

SQL_CHARACTERS = Limit("sql_characters", 100_000, "characters in one text", _VALUES)
SQL_TOKENS = Limit("sql_tokens", 20_000, "words and signs in one text", _VALUES)
NESTING = Limit(
    "nesting",
    32,
    "levels of parentheses, brackets, CASE and signs inside each other",
    "Remove parentheses that are not needed, or compute the inner part in a common table expression.",
)
OPERATOR_DEPTH = Limit(
    "operator_depth",
    64,
    "levels of operators, calls and queries inside each other, a chain of AND, OR or UNION being one level",
    "Compute parts of the expression as columns of a common table expression.",
)
QUERY_DEPTH = Limit(
    "query_depth",
    12,
    "levels of queries inside each other, common table expressions included",
    f"Merge queries that only rename or filter. {_SPLIT}",
)
QUERIES = Limit(
    "queries", 128, "queries, each branch of a UNION and each use of a common table expression counted", _SPLIT
)
BRANCHES = Limit(
    "union_branches", 64, "branches in one UNION", "Read several files as one table, or unite several UNIONs."
)
TABLES = Limit("tables", 128, "tables to read, each use of a common table expression counted", _SPLIT)
TABLE_COLUMNS = Limit(
    "table_columns",
    200_000,
    "columns in the tables to read, each use of a table counted",
    "Keep the columns that are needed in a table of their own, or read the table less often.",
)
JOINS = Limit("joins", 100, "joins in one FROM", _SPLIT)
COLUMNS = Limit("columns", 1024, "columns in one SELECT, those that stars stand for counted", "Name fewer columns.")
GROUP_KEYS = Limit("group_keys", 64, "keys in one GROUP BY or SELECT DISTINCT", "Group by fewer columns.")
GROUPING_SETS = Limit("grouping_sets", 256, "grouping sets in one GROUP BY", "Write several queries.")
CUBE_KEYS = Limit("cube_keys", 8, "keys in one CUBE", "Name the sets that are needed with GROUPING SETS.")
AGGREGATES = Limit(
    "aggregates", 256, "aggregates in one SELECT", "Compute them in several queries, and join these by the group keys."
)
SORT_KEYS = Limit("sort_keys", 64, "keys in one ORDER BY", "Order by fewer columns.")
CONDITIONS = Limit(
    "conditions",
    1_000,
    "conditions joined by AND, those of the queries around it included",
    "Write several values of a column as IN or NOT IN, or put them into a file and join it.",
)
"""The time of Spark's optimizer grows with their cube: 5,000 take it many minutes."""
NODES = Limit(
    "nodes",
    40_000,
    "names, values, operators and columns, each use of a common table expression counted",
    "Use common table expressions less often, or name the columns that are needed in place of a star.",
)
WRITTEN_NODES = Limit(
    "written_nodes",
    100_000,
    "names, values and operators once aliases and columns of USING are replaced by what they stand for",
    "Compute the expression in a common table expression, and use its column.",
)
EXPRESSION_CHARACTERS = Limit(
    "expression_characters", 200_000, "characters in the expressions of all its queries", _VALUES
)
EXPRESSION_TOKENS = Limit(
    "expression_tokens", 40_000, "words and signs in the expressions of a structured `query`", _VALUES
)
EXPANDED_NODES = Limit(
    "expanded_nodes",
    20_000,
    "parts in one expression, columns of derived tables counted as what they are computed from",
    "Use each of these columns less often.",
)

LIMITS = (
    SQL_CHARACTERS,
    SQL_TOKENS,
    NESTING,
    OPERATOR_DEPTH,
    QUERY_DEPTH,
    QUERIES,
    BRANCHES,
    TABLES,
    TABLE_COLUMNS,
    JOINS,
    COLUMNS,
    GROUP_KEYS,
    GROUPING_SETS,
    CUBE_KEYS,
    AGGREGATES,
    SORT_KEYS,
    CONDITIONS,
    NODES,
    WRITTEN_NODES,
    EXPRESSION_CHARACTERS,
    EXPRESSION_TOKENS,
    EXPANDED_NODES,
)
"""All of them, in the order of the README's table."""


MAX_NAME_LENGTH = 255
MAX_LIMIT = 2_147_483_647

ExpressionText = Annotated[
    str,
    # The text of one that is compiled from SQL may become longer than a client may post.
    Field(min_length=1, json_schema_extra={"maxLength": SQL_CHARACTERS.most}, examples=["o.amount * 2"]),
    BeforeValidator(EXPRESSION_CHARACTERS.check),
]
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
    """The aggregate functions. GROUPING and GROUPING_ID tell grouping sets apart, and need them."""

    COUNT = "COUNT"
    SUM = "SUM"
    AVG = "AVG"
    MIN = "MIN"
    MAX = "MAX"
    FIRST_VALUE = "FIRST_VALUE"
    LAST_VALUE = "LAST_VALUE"
    VAR_POP = "VAR_POP"
    VAR_SAMP = "VAR_SAMP"
    STDDEV_POP = "STDDEV_POP"
    STDDEV_SAMP = "STDDEV_SAMP"
    LISTAGG = "LISTAGG"
    APPROX_COUNT_DISTINCT = "APPROX_COUNT_DISTINCT"
    PERCENTILE = "PERCENTILE"
    GROUPING = "GROUPING"
    GROUPING_ID = "GROUPING_ID"


class TableRef(Frozen):
    """A table of the job, under an alias."""

    kind: Literal["table"]
    table: Identifier = Field(description="A key of the job's `tables`.")
    alias: Identifier | None = Field(default=None, description="Its name in expressions; the table's by default.")

    @property
    def name(self) -> str:
        """The name under which expressions see it."""
        return self.alias or self.table


class QueryRef(Frozen):
    """A query in the place of a table (a derived table), under an alias. ORDER BY and LIMIT may stand in it."""

    kind: Literal["query"]
    query: Query
    alias: Identifier = Field(description="Its name in expressions.")
    columns: Annotated[tuple[Identifier, ...], BeforeValidator(COLUMNS.check)] = Field(
        default=(),
        max_length=COLUMNS.most,
        description="Names of its columns in order; those of its output by default.",
    )

    @property
    def name(self) -> str:
        """The name under which expressions see it."""
        return self.alias


class UnionRef(Frozen):
    """The rows of all `queries`, one after the other and duplicates included (UNION ALL), under an alias.

    The columns have the names of the first query's output and types that hold those of all; they are matched by
    position.
    """

    kind: Literal["union_all"]
    queries: Annotated[tuple[Query, ...], BeforeValidator(BRANCHES.check)] = Field(
        min_length=2, max_length=BRANCHES.most
    )
    alias: Identifier = Field(description="Its name in expressions.")
    columns: Annotated[tuple[Identifier, ...], BeforeValidator(COLUMNS.check)] = Field(
        default=(),
        max_length=COLUMNS.most,
        description="Names of its columns in order; those of the first query by default.",
    )

    @property
    def name(self) -> str:
        """The name under which expressions see it."""
        return self.alias


Source = Annotated[TableRef | QueryRef | UnionRef, Field(discriminator="kind")]
"""What stands in FROM."""


class JoinKey(Frozen):
    """One equality of a join: `left = right`, NULL matches nothing."""

    left: ExpressionText = Field(description="An expression over the tables joined so far.")
    right: ExpressionText = Field(description="An expression over the joined table.")


class Join(Frozen):
    """Joins one more table to everything before it."""

    kind: JoinKind
    right: Source
    on: tuple[JoinKey, ...] = Field(default=(), max_length=16, description="Equi-keys; none for `cross` alone.")
    residual: ExpressionText | None = Field(default=None, description="A further condition on both sides.")
    ship: JoinShip | None = Field(default=None, description="`join.ship` for this join alone.")
    local: JoinLocal | None = Field(default=None, description="`join.local` for this join alone.")
    skew: JoinSkew | None = Field(default=None, description="`join.skew` for this join alone.")


class NamedExpression(Frozen):
    """An expression and the name of the column that it makes."""

    expression: ExpressionText
    name: Identifier


class AggregateCall(Frozen):
    """One aggregate: `COUNT(DISTINCT o.category) FILTER (WHERE o.ok) AS categories`."""

    function: AggregateFunction
    arguments: tuple[ExpressionText, ...] = Field(
        default=(),
        max_length=16,
        description="Empty for COUNT(*); several for COUNT(DISTINCT a, b), LISTAGG(x, ', ') and PERCENTILE(x, 0.9).",
    )
    distinct: Flag = False
    filter: ExpressionText | None = Field(default=None, description="Only rows for which this is true count.")
    order_by: ExpressionText | None = Field(
        default=None,
        description="What FIRST_VALUE and LAST_VALUE are first or last by, and LISTAGG's order; required there, "
        "refused elsewhere.",
    )
    descending: Flag = Field(default=False, description="Whether the order of LISTAGG is a descending one.")
    name: Identifier


_Length = Annotated[Duration, Bounds(timedelta(milliseconds=1))]


class _Window(Frozen):
    column: ExpressionText = Field(
        description="The column that is the `event_time` of its stream.", examples=["orders.ts"]
    )
    size: _Length = Field(description="How long each window is.", examples=["10m"])
    start: Identifier = Field(
        default="window_start", examples=["window_start"], description="The column of its first instant."
    )
    end: Identifier = Field(
        default="window_end", examples=["window_end"], description="The column of the first instant behind it."
    )


class TumblingWindow(_Window):
    """Windows side by side, each row in one of them."""

    kind: Literal["tumble"]


class HoppingWindow(_Window):
    """Windows that overlap: one begins every `slide`, and a row is in all that cover it."""

    kind: Literal["hop"]
    slide: _Length = Field(description="How long after a window the next one begins; at most `size`.", examples=["1m"])


GroupWindow = Annotated[TumblingWindow | HoppingWindow, Field(discriminator="kind")]
"""Windows of event time to group by, beside `group_by`."""


class SortKey(Frozen):
    """One key of ORDER BY. NULLs sort first ascending and last descending unless told, as in Spark."""

    expression: ExpressionText
    direction: SortDirection = SortDirection.ASC
    nulls: NullsOrder | None = None


class Query(Frozen):
    """FROM, joins, WHERE, GROUP BY with aggregates, HAVING, SELECT, ORDER BY, LIMIT, applied in this order.

    Without `group_by`, `window` and `aggregates` the query is a plain selection and `select` is required; with
    `aggregates` alone it aggregates everything into one row. Without `select` the output is the window's start and end,
    the group keys, then the aggregates.
    """

    source: Source = Field(description="The first table (FROM).")
    joins: Annotated[tuple[Join, ...], BeforeValidator(JOINS.check)] = Field(default=(), max_length=JOINS.most)
    where: ExpressionText | None = None
    group_by: Annotated[tuple[NamedExpression, ...], BeforeValidator(GROUP_KEYS.check)] = Field(
        default=(), max_length=GROUP_KEYS.most
    )
    grouping_sets: Annotated[tuple[tuple[Identifier, ...], ...], BeforeValidator(GROUPING_SETS.check)] = Field(
        default=(),
        max_length=GROUPING_SETS.most,
        description="Names of `group_by` entries: groups by each of these sets, keys outside of a set being NULL. "
        "`[[a, b], [a], []]` is ROLLUP (a, b).",
    )
    window: GroupWindow | None = Field(
        default=None,
        exclude_if=lambda window: window is None,
        description="Streaming modes: a window of event time, by which groups are told apart besides `group_by`. Its "
        "`start` and `end` are columns of `select` and `having`.",
    )
    aggregates: Annotated[tuple[AggregateCall, ...], BeforeValidator(AGGREGATES.check)] = Field(
        default=(), max_length=AGGREGATES.most
    )
    having: ExpressionText | None = None
    select: Annotated[tuple[NamedExpression, ...], BeforeValidator(COLUMNS.check)] = Field(
        default=(), max_length=COLUMNS.most
    )
    order_by: Annotated[tuple[SortKey, ...], BeforeValidator(SORT_KEYS.check)] = Field(
        default=(), max_length=SORT_KEYS.most
    )
    limit: int | None = Field(default=None, ge=0, le=MAX_LIMIT)

    _limit_is_no_flag = field_validator("limit", mode="before")(refuse_flag)


def sources_in(query: Query) -> tuple[Source, ...]:
    """What stands in FROM of `query` itself, in order."""
    return (query.source, *(join.right for join in query.joins))


def queries_in(query: Query) -> Iterator[tuple[Query, int]]:
    """`query` and each query in it, with its depth, outer ones first; without recursion, which depth could exhaust."""
    pending = [(query, 1)]
    while pending:
        current, depth = pending.pop()
        yield current, depth
        for source in sources_in(current):
            if isinstance(source, QueryRef):
                pending.append((source.query, depth + 1))
            elif isinstance(source, UnionRef):
                pending += [(branch, depth + 1) for branch in source.queries]


for _model in (QueryRef, UnionRef, Join, Query):
    _model.model_rebuild()
