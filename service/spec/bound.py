"""A query with every name resolved and every expression checked: what the engine plans from.

Names: a table's columns are `alias.column`, and no two tables of a query, however deep, have one alias; group keys and
aggregates are columns under their own names from `having` on; the output has the names of `select`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.spec.query import AggregateFunction, JoinKind, NullsOrder, SortDirection
from service.spec.scalar import Scalar
from service.spec.strategies import JoinLocal, JoinShip, JoinSkew
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
class BoundDerived:
    """A query in the place of a table, and the columns of it that the query around it uses, in its own order.

    Each is the field that it becomes (`alias.column`) and the name of the column in the inner query's output.
    """

    query: BoundQuery | BoundUnion
    alias: str
    columns: tuple[tuple[Field, str], ...]


@dataclass(frozen=True)
class BoundUnion:
    """UNION ALL of at least two queries, each with the same `output`."""

    queries: tuple[BoundQuery, ...]

    @property
    def output(self) -> Schema:
        """The columns, as each of the queries has them."""
        return self.queries[0].output


@dataclass(frozen=True)
class BoundWatermark:
    """How late rows of the table `alias` may come, by their `column` (`alias.column`)."""

    alias: str
    column: str
    delay_ms: int


@dataclass(frozen=True)
class BoundTimes:
    """How far apart rows of two streams are that a join puts together: `left` less `right`, TIMESTAMP columns of its
    sides, is from `at_least_us` to `at_most_us` microseconds, both included.

    Each is a copy of the event times of its side, whose `watermarks` are those of both.
    """

    left: Scalar
    right: Scalar
    at_least_us: int
    at_most_us: int
    watermarks: tuple[BoundWatermark, ...]


@dataclass(frozen=True)
class BoundJoin:
    """`keys` pair an expression over the tables before with one over `right`; `residual` is over both.

    `ship`, `local` and `skew` are None where the job's settings decide; `index` is the join's place in the query as it
    was given, of which cross joins may have changed places. `within` is for joins of two streams alone.
    """

    kind: JoinKind
    right: BoundSource
    keys: tuple[tuple[Scalar, Scalar], ...]
    residual: Scalar | None
    ship: JoinShip | None = None
    local: JoinLocal | None = None
    skew: JoinSkew | None = None
    index: int = 0
    within: BoundTimes | None = None


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
    descending: bool = False


@dataclass(frozen=True)
class BoundWindow:
    """Windows of event time to group by, beside `keys`: the columns `start` and `end` are theirs.

    `column` is a copy of the columns of `watermarks`, one for each stream that its rows come from. Tumbling windows
    have a slide of their size.
    """

    column: Scalar
    size_ms: int
    slide_ms: int
    start: Field
    end: Field
    watermarks: tuple[BoundWatermark, ...]


@dataclass(frozen=True)
class BoundSort:
    """A sort key over the columns that `select` reads; aliases of `select` are replaced by their expressions."""

    expression: Scalar
    direction: SortDirection
    nulls: NullsOrder


@dataclass(frozen=True)
class BoundQuery:
    """FROM, joins, WHERE, then (where `is_aggregate`) GROUP BY and HAVING, then ORDER BY, LIMIT and SELECT.

    `grouping_sets` are positions in `keys`; empty for a grouping by all of them. With a `window`, its start and end are
    columns from HAVING on, as `keys` are.
    """

    source: BoundSource
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
    grouping_sets: tuple[tuple[int, ...], ...] = ()
    window: BoundWindow | None = None


BoundSource = BoundTable | BoundDerived
"""What stands in FROM."""


def queries_of(query: BoundQuery | BoundUnion) -> Iterator[BoundQuery]:
    """`query` and all that are nested in it, inner ones first."""
    if isinstance(query, BoundUnion):
        for branch in query.queries:
            yield from queries_of(branch)
        return
    for source in sources_of(query):
        if isinstance(source, BoundDerived):
            yield from queries_of(source.query)
    yield query


def sources_of(query: BoundQuery) -> tuple[BoundSource, ...]:
    """What stands in FROM, in order."""
    return (query.source, *(join.right for join in query.joins))


def tables_of(query: BoundQuery) -> tuple[BoundTable, ...]:
    """Every table that `query` reads, at any depth."""
    found = (source for inner in queries_of(query) for source in sources_of(inner))
    return tuple(source for source in found if isinstance(source, BoundTable))
