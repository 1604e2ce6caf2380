"""The structured query, into which SQL is compiled and which clients may also post, and the limits of its size.

Expressions are SQL text in Spark's dialect; `service.sql.expressions.compile_expression` parses them, and Spark never
gets the text itself. Columns are `alias.column`, or `column` where that is unambiguous. In `select`, `having` and
`order_by` the names of `group_by` entries and of `aggregates` are columns.

A query that exceeds a limit is refused with `query_too_deep`, and the message names the limit. The limits keep a
submission below one second, and bound the stack depth and the time that Spark's optimizer needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from .model import Bounds, Duration, Flag, Frozen, refuse_boolean
from .options import JoinLocal, JoinShip, JoinSkew

CODE = "query_too_deep"


@dataclass(frozen=True)
class Limit:
    """A limit of a query: at most `most` of what `counted` describes; `remedy` says what to do instead."""

    name: str
    most: int
    counted: str
    remedy: str

    def detail(self, found: int | None = None) -> str:
        """Returns the text of the error; `found` is the number in the query, None if only known to exceed the limit."""
        number = f"more than {self.most}" if found is None else str(found)
        return f"The query has {number} {self.counted}; at most {self.most} (limit `{self.name}`). {self.remedy}"

    def check(self, value: Any) -> Any:
        """Returns `value`, or raises PydanticCustomError if it is too long; a validator before that of the type."""
        if isinstance(value, Sized) and len(value) > self.most:
            raise PydanticCustomError(CODE, "{detail}", {"detail": self.detail(len(value))})
        return value


_USE_A_FILE = "Put long lists of values into a file, name it in `tables` and join it."
_SPLIT = "Split the query into several jobs, each of which reads the result of the previous one."

SQL_CHARACTERS = Limit("sql_characters", 100_000, "characters in one text", _USE_A_FILE)
SQL_TOKENS = Limit("sql_tokens", 20_000, "tokens in one text", _USE_A_FILE)
PARAMETERS = Limit("parameters", 1_000, "parameters", _USE_A_FILE)
NESTING = Limit(
    "nesting",
    32,
    "levels of nested parentheses, brackets, CASE and unary signs",
    "Remove parentheses that are not needed, or compute the inner part in a common table expression.",
)
OPERATOR_DEPTH = Limit(
    "operator_depth",
    64,
    "levels of nested operators, calls and queries, a chain of AND, OR or UNION being one level",
    "Compute parts of the expression as columns of a common table expression.",
)
QUERY_DEPTH = Limit(
    "query_depth",
    12,
    "levels of nested queries, including common table expressions",
    f"Merge queries that only rename or filter. {_SPLIT}",
)
QUERIES = Limit(
    "queries", 128, "queries, counting each branch of a UNION and each use of a common table expression", _SPLIT
)
BRANCHES = Limit(
    "union_branches", 64, "branches in one UNION", "Read several files as one table, or use a UNION of several UNIONs."
)
TABLES = Limit("tables", 128, "tables to read, counting each use of a common table expression", _SPLIT)
TABLE_COLUMNS = Limit(
    "table_columns",
    200_000,
    "columns in the tables to read, counting each use of a table",
    "Store the columns that you need in a separate table, or read the table fewer times.",
)
VALUES_ROWS = Limit("values_rows", 1_024, "rows in one VALUES", _USE_A_FILE)
RANGE_ROWS = Limit("range_rows", 1_000_000, "rows of one range", _USE_A_FILE)
JOINS = Limit("joins", 100, "joins in one FROM", _SPLIT)
GENERATORS = Limit("generators", 8, "calls of functions such as explode in one FROM", _SPLIT)
COLUMNS = Limit("columns", 1024, "columns in one SELECT, counting those of `*`", "Name fewer columns.")
GROUP_KEYS = Limit("group_keys", 64, "keys in one GROUP BY, SELECT DISTINCT or PARTITION BY", "Group by fewer columns.")
GROUPING_SETS = Limit("grouping_sets", 256, "grouping sets in one GROUP BY", "Write several queries.")
CUBE_KEYS = Limit("cube_keys", 8, "keys in one CUBE", "Name the sets that are needed with GROUPING SETS.")
AGGREGATES = Limit(
    "aggregates", 256, "aggregates in one SELECT", "Compute them in several queries, and join these on the group keys."
)
WINDOWS = Limit(
    "windows", 128, "window functions in one SELECT", "Compute them in several queries, and join these on a key."
)
SORT_KEYS = Limit("sort_keys", 64, "keys in one ORDER BY", "Order by fewer columns.")
CONDITIONS = Limit(
    "conditions",
    1_000,
    "conditions joined by AND, including those of the enclosing queries",
    "Write several values of a column as IN or NOT IN, or put them into a file and join it.",
)
"""The time of Spark's optimizer grows with the cube of this number: 5,000 take many minutes."""
NODES = Limit(
    "nodes",
    40_000,
    "names, values, operators and columns, counting each use of a common table expression",
    "Use common table expressions fewer times, or name the columns that you need instead of `*`.",
)
WRITTEN_NODES = Limit(
    "written_nodes",
    100_000,
    "names, values and operators after aliases and columns of USING are replaced by their expressions",
    "Compute the expression in a common table expression, and use its column.",
)
EXPRESSION_CHARACTERS = Limit(
    "expression_characters", 200_000, "characters in the expressions of all its queries", _USE_A_FILE
)
EXPRESSION_TOKENS = Limit("expression_tokens", 40_000, "tokens in the expressions of a structured `query`", _USE_A_FILE)
EXPANDED_NODES = Limit(
    "expanded_nodes",
    20_000,
    "nodes in one expression after columns of derived tables are replaced by their expressions",
    "Use each of these columns fewer times.",
)

LIMITS = tuple(value for value in list(globals().values()) if isinstance(value, Limit))
"""All limits, in the order of their declaration, which is that of the documentation."""


MAX_NAME_LENGTH = 255
MAX_LIMIT = 2_147_483_647
MAX_LEVELS = 1_000
"""The largest number of steps of a recursive query. Spark runs a job for each."""

ExpressionText = Annotated[
    str,
    # An expression that is compiled from SQL may be longer than one that a client may post.
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
    """The aggregate functions. GROUPING and GROUPING_ID need grouping sets."""

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
    PERCENTILE_DISC = "PERCENTILE_DISC"
    APPROX_PERCENTILE = "APPROX_PERCENTILE"
    COUNT_IF = "COUNT_IF"
    BOOL_AND = "BOOL_AND"
    BOOL_OR = "BOOL_OR"
    BIT_AND = "BIT_AND"
    BIT_OR = "BIT_OR"
    BIT_XOR = "BIT_XOR"
    MIN_BY = "MIN_BY"
    MAX_BY = "MAX_BY"
    ANY_VALUE = "ANY_VALUE"
    MODE = "MODE"
    FIRST = "FIRST"
    LAST = "LAST"
    COLLECT_LIST = "COLLECT_LIST"
    COLLECT_SET = "COLLECT_SET"
    TRY_SUM = "TRY_SUM"
    TRY_AVG = "TRY_AVG"
    SKEWNESS = "SKEWNESS"
    KURTOSIS = "KURTOSIS"
    CORR = "CORR"
    COVAR_POP = "COVAR_POP"
    COVAR_SAMP = "COVAR_SAMP"
    REGR_AVGX = "REGR_AVGX"
    REGR_AVGY = "REGR_AVGY"
    REGR_COUNT = "REGR_COUNT"
    REGR_INTERCEPT = "REGR_INTERCEPT"
    REGR_R2 = "REGR_R2"
    REGR_SLOPE = "REGR_SLOPE"
    REGR_SXX = "REGR_SXX"
    REGR_SXY = "REGR_SXY"
    REGR_SYY = "REGR_SYY"
    HISTOGRAM_NUMERIC = "HISTOGRAM_NUMERIC"
    HLL_SKETCH_AGG = "HLL_SKETCH_AGG"
    HLL_UNION_AGG = "HLL_UNION_AGG"
    THETA_SKETCH_AGG = "THETA_SKETCH_AGG"
    THETA_UNION_AGG = "THETA_UNION_AGG"
    THETA_INTERSECTION_AGG = "THETA_INTERSECTION_AGG"
    KLL_SKETCH_AGG_BIGINT = "KLL_SKETCH_AGG_BIGINT"
    KLL_SKETCH_AGG_FLOAT = "KLL_SKETCH_AGG_FLOAT"
    KLL_SKETCH_AGG_DOUBLE = "KLL_SKETCH_AGG_DOUBLE"
    KLL_MERGE_AGG_BIGINT = "KLL_MERGE_AGG_BIGINT"
    KLL_MERGE_AGG_FLOAT = "KLL_MERGE_AGG_FLOAT"
    KLL_MERGE_AGG_DOUBLE = "KLL_MERGE_AGG_DOUBLE"
    COUNT_MIN_SKETCH = "COUNT_MIN_SKETCH"
    COLLECT_UNION = "COLLECT_UNION"
    VECTOR_AVG = "VECTOR_AVG"
    VECTOR_SUM = "VECTOR_SUM"
    APPROX_TOP_K = "APPROX_TOP_K"
    GROUPING = "GROUPING"
    GROUPING_ID = "GROUPING_ID"


class GeneratorFunction(StrEnum):
    """Makes rows of one row."""

    EXPLODE = "explode"
    POSEXPLODE = "posexplode"
    INLINE = "inline"
    STACK = "stack"
    JSON_TUPLE = "json_tuple"


class TableRef(Frozen):
    """A table of the job, under an alias."""

    kind: Literal["table"]
    table: Identifier = Field(description="A key of the job's `tables`.")
    alias: Identifier | None = Field(
        default=None, description="Its name in expressions; by default, the name of the table."
    )

    @property
    def name(self) -> str:
        """The name of the table in expressions."""
        return self.alias or self.table


class QueryRef(Frozen):
    """A derived table: a query under an alias."""

    kind: Literal["query"]
    query: Query
    alias: Identifier = Field(description="Its name in expressions.")
    columns: Annotated[tuple[Identifier, ...], BeforeValidator(COLUMNS.check)] = Field(
        default=(),
        max_length=COLUMNS.most,
        description="Names of its columns; by default, those of the query.",
    )

    @property
    def name(self) -> str:
        """The name of the derived table in expressions."""
        return self.alias


SetKind = Literal["union_all", "intersect_all", "except_all"]


class UnionRef(Frozen):
    """UNION ALL, INTERSECT ALL or EXCEPT ALL of `queries`, from left to right, under an alias. Columns are matched by
    position. They have the names of the first query's columns, and the least common type.
    """

    kind: SetKind
    queries: Annotated[tuple[Query, ...], BeforeValidator(BRANCHES.check)] = Field(
        min_length=2, max_length=BRANCHES.most
    )
    alias: Identifier = Field(description="Its name in expressions.")
    columns: Annotated[tuple[Identifier, ...], BeforeValidator(COLUMNS.check)] = Field(
        default=(),
        max_length=COLUMNS.most,
        description="Names of its columns; by default, those of the first query.",
    )

    @property
    def name(self) -> str:
        """The name of the union in expressions."""
        return self.alias


_Row = Annotated[tuple[ExpressionText, ...], Field(min_length=1), BeforeValidator(COLUMNS.check)]


class ValuesRef(Frozen):
    """Rows of constants (VALUES) under an alias."""

    kind: Literal["values"]
    rows: Annotated[tuple[_Row, ...], BeforeValidator(VALUES_ROWS.check)] = Field(
        min_length=1, max_length=VALUES_ROWS.most
    )
    alias: Identifier
    columns: Annotated[tuple[Identifier, ...], BeforeValidator(COLUMNS.check)] = Field(
        default=(), description="By default `col1`, `col2` …"
    )

    @property
    def name(self) -> str:
        """The name in expressions."""
        return self.alias

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self.columns or tuple(f"col{number}" for number in range(1, len(self.rows[0]) + 1))


class RecursiveRef(Frozen):
    """A recursive query (WITH RECURSIVE) under an alias: the rows of `anchor`, then those of `step` over the rows
    before, until it has none. `step` reads them as a `RowsRef` with this `rows`; there are at most `levels` steps.

    SQL alone has it: it is not in the schema of a structured query.
    """

    kind: Literal["recursive"]
    anchor: Query
    step: Query
    rows: Identifier
    alias: Identifier
    columns: tuple[Identifier, ...]
    levels: int | None = Field(default=None, ge=1, le=MAX_LEVELS)

    @property
    def name(self) -> str:
        """The name in expressions."""
        return self.alias


class RowsRef(Frozen):
    """The rows of the step before, in the `step` of the `RecursiveRef` with the same `rows`."""

    kind: Literal["rows"]
    rows: Identifier
    alias: Identifier
    columns: tuple[Identifier, ...]

    @property
    def name(self) -> str:
        """The name in expressions."""
        return self.alias


Source = TypeAliasType(
    "Source",
    Annotated[
        "TableRef | QueryRef | UnionRef | ValuesRef | SkipJsonSchema[RecursiveRef] | SkipJsonSchema[RowsRef]",
        Field(discriminator="kind"),
    ],
)
"""An item of FROM."""


class JoinKey(Frozen):
    """One equality of a join, `left = right`; NULL matches nothing."""

    left: ExpressionText = Field(description="An expression over the tables joined so far.")
    right: ExpressionText = Field(description="An expression over the joined table.")


class Join(Frozen):
    """Joins one more table to the tables before it."""

    kind: JoinKind
    right: Source
    on: tuple[JoinKey, ...] = Field(default=(), max_length=16, description="Equality conditions.")
    residual: ExpressionText | None = Field(default=None, description="An additional condition on both sides.")
    ship: JoinShip | None = Field(default=None, description="`join.ship` for this join only.")
    local: JoinLocal | None = Field(default=None, description="`join.local` for this join only.")
    skew: JoinSkew | None = Field(default=None, description="`join.skew` for this join only.")


class NamedExpression(Frozen):
    """An expression and the name of its column."""

    expression: ExpressionText
    name: Identifier


class Lateral(Frozen):
    """`LATERAL VIEW [OUTER] function(arguments) alias AS columns`."""

    function: GeneratorFunction
    arguments: tuple[ExpressionText, ...] = Field(min_length=1)
    alias: Identifier
    columns: tuple[Identifier, ...] = Field(min_length=1)
    outer: Flag = False


class AggregateCall(Frozen):
    """One aggregate: `COUNT(DISTINCT o.category) FILTER (WHERE o.ok) AS categories`."""

    function: AggregateFunction
    arguments: tuple[ExpressionText, ...] = Field(
        default=(),
        max_length=16,
        description="Empty for COUNT(*); several for COUNT(DISTINCT a, b), LISTAGG(x, ', ') and PERCENTILE(x, 0.9).",
    )
    distinct: Flag = False
    filter: ExpressionText | None = Field(
        default=None, description="Only rows for which this is true are aggregated (FILTER)."
    )
    order_by: ExpressionText | None = Field(
        default=None,
        description="The order of rows for FIRST_VALUE, LAST_VALUE and LISTAGG; required for these functions, not "
        "allowed for others.",
    )
    descending: Flag = Field(default=False, description="Whether the order of LISTAGG is descending.")
    name: Identifier


_Length = Annotated[Duration, Bounds(timedelta(milliseconds=1))]


class _Window(Frozen):
    column: ExpressionText = Field(
        description="The column that is the `event_time` of its stream.", examples=["orders.ts"]
    )
    size: _Length = Field(description="The length of each window.", examples=["10m"])
    start: Identifier = Field(
        default="window_start",
        examples=["window_start"],
        description="The column with the window's start (inclusive).",
    )
    end: Identifier = Field(
        default="window_end",
        examples=["window_end"],
        description="The column with the window's end (exclusive).",
    )


class TumblingWindow(_Window):
    """Adjacent windows of the same length. Each row is in one of them."""

    kind: Literal["tumble"]


class HoppingWindow(_Window):
    """Windows that overlap: one begins every `slide`, and each row is in all that cover it."""

    kind: Literal["hop"]
    slide: _Length = Field(
        description="From the start of a window to the start of the next one; at most `size`.", examples=["1m"]
    )


GroupWindow = Annotated[TumblingWindow | HoppingWindow, Field(discriminator="kind")]
"""Windows of event time to group by, in addition to `group_by`."""


class SortKey(Frozen):
    """One key of ORDER BY. As in Spark, NULLs are by default first in ascending and last in descending order."""

    expression: ExpressionText
    direction: SortDirection = SortDirection.ASC
    nulls: NullsOrder | None = None


class Query(Frozen):
    """FROM, joins, generators, WHERE, GROUP BY with aggregates, HAVING, SELECT, ORDER BY, OFFSET, LIMIT, in this order.

    Without `group_by`, `window` and `aggregates`, `select` is required. With only `aggregates`, all rows are one group.
    By default, `select` is the window's start and end, the group keys, then the aggregates.
    """

    source: Source = Field(description="The first table (FROM).")
    joins: Annotated[tuple[Join, ...], BeforeValidator(JOINS.check)] = Field(default=(), max_length=JOINS.most)
    generators: Annotated[tuple[Lateral, ...], BeforeValidator(GENERATORS.check)] = Field(
        default=(),
        max_length=GENERATORS.most,
        exclude_if=lambda generators: not generators,
    )
    where: ExpressionText | None = None
    group_by: Annotated[tuple[NamedExpression, ...], BeforeValidator(GROUP_KEYS.check)] = Field(
        default=(), max_length=GROUP_KEYS.most
    )
    grouping_sets: Annotated[tuple[tuple[Identifier, ...], ...], BeforeValidator(GROUPING_SETS.check)] = Field(
        default=(),
        max_length=GROUPING_SETS.most,
        description="Names of `group_by` entries. Keys that are not in a set are NULL. `[[a, b], [a], []]` is ROLLUP "
        "(a, b).",
    )
    window: GroupWindow | None = Field(
        default=None,
        exclude_if=lambda window: window is None,
        description="Streaming modes: a window of event time to group by. `select` and `having` may use its `start` "
        "and `end`.",
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
    offset: int = Field(
        default=0,
        ge=0,
        le=MAX_LIMIT,
        exclude_if=lambda offset: offset == 0,
        description="Rows to skip before `limit`.",
    )

    _limit_is_not_boolean = field_validator("limit", "offset", mode="before")(refuse_boolean)


def sources_in(query: Query) -> tuple[Source, ...]:
    """Returns the items of FROM of `query` itself, in order."""
    return (query.source, *(join.right for join in query.joins))


def queries_in(query: Query) -> Iterator[tuple[Query, int]]:
    """Yields `query` and each query nested in it, with its depth, outer ones first.

    Not recursive, since a deep query could exceed the recursion limit.
    """
    pending = [(query, 1)]
    while pending:
        current, depth = pending.pop()
        yield current, depth
        for source in sources_in(current):
            if isinstance(source, QueryRef):
                pending.append((source.query, depth + 1))
            elif isinstance(source, UnionRef):
                pending += [(branch, depth + 1) for branch in source.queries]
            elif isinstance(source, RecursiveRef):
                pending += [(source.anchor, depth + 1), (source.step, depth + 1)]


for _model in (QueryRef, UnionRef, RecursiveRef, Join, Query):
    _model.model_rebuild()
