"""The limits of a query, each declared once. What is beyond one is refused with `query_too_deep`, which names it.

They bound the time of a submission, which takes less than a second, and the stack and the time of Spark's optimizer.
"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any

from pydantic_core import PydanticCustomError

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
