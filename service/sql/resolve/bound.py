"""The bound query: every name resolved and every expression checked. The engine plans from it.

Names: a table's columns are `alias.column`, and aliases are unique in a query and all queries inside it; group keys and
aggregates are columns under their own names in HAVING, ORDER BY and SELECT; the output has the names of `select`.

`pruned` removes unused columns of tables and of inner queries, and unused aggregates. Spark would prune them too, but
plans, statistics and reads become smaller if that is done here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.contract.query import AggregateFunction, GeneratorFunction, JoinKind, NullsOrder, SetKind, SortDirection
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import Field, Schema


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
    """A derived table, and its columns that the outer query uses, in the order of the inner query.

    Each is the field that it becomes (`alias.column`) and the name of the column in the inner query's output.
    """

    query: BoundQuery | BoundUnion
    alias: str
    columns: tuple[tuple[Field, str], ...]


@dataclass(frozen=True)
class BoundValues:
    """Rows of constants: those of the columns that the query uses, each with the field `alias.column`."""

    alias: str
    columns: tuple[tuple[Field, str], ...]
    rows: tuple[tuple[Scalar, ...], ...]


@dataclass(frozen=True)
class BoundRows:
    """The rows of the step before, in the step of the `BoundRecursion` with the same `rows`: the columns that the step
    uses, each with the field `alias.column`.
    """

    rows: str
    alias: str
    columns: tuple[tuple[Field, str], ...]


@dataclass(frozen=True)
class BoundUnion:
    """UNION ALL, INTERSECT ALL or EXCEPT ALL of at least two queries, each with the same `output`."""

    queries: tuple[BoundQuery, ...]
    kind: SetKind | Literal["recursive"] = "union_all"

    @property
    def output(self) -> Schema:
        """The columns, which are the same for each of the queries."""
        return self.queries[0].output


@dataclass(frozen=True)
class BoundRecursion(BoundUnion):
    """A recursive query: its first query, and the step over the rows of the step before, which reads them as `rows`. At
    most `levels` steps, or as many as Spark allows.
    """

    rows: str = ""
    levels: int | None = None


@dataclass(frozen=True)
class BoundWatermark:
    """The maximum delay of the rows of the table `alias`, by the event time `column` (`alias.column`)."""

    alias: str
    column: str
    delay_ms: int


@dataclass(frozen=True)
class BoundTimes:
    """The bounds of the time between joined rows of two streams: `left` minus `right`, TIMESTAMP columns of the sides,
    is from `at_least_us` to `at_most_us` microseconds, both included.

    Each column is a copy of the event time of its side; `watermarks` are those of both sides.
    """

    left: Scalar
    right: Scalar
    at_least_us: int
    at_most_us: int
    watermarks: tuple[BoundWatermark, ...]


@dataclass(frozen=True)
class BoundJoin:
    """A join. `keys` pair an expression over the preceding tables with one over `right`; `residual` is over both.

    `ship`, `local` and `skew` are None if the job's settings decide. `index` is the join's place in the query as it was
    submitted, since cross joins may have changed places. `within` is only set for joins of two streams.
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
class BoundGenerator:
    """A function that makes several rows of one, over the joined tables and the `columns` of generators before it."""

    function: GeneratorFunction
    arguments: tuple[Scalar, ...]
    columns: tuple[Field, ...]
    outer: bool


@dataclass(frozen=True)
class Named:
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
    """Windows of event time to group by, in addition to `keys`; `start` and `end` are the columns of their bounds.

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
class SortItem:
    """A sort key over the columns that `select` reads; aliases of `select` are replaced by their expressions."""

    expression: Scalar
    direction: SortDirection
    nulls: NullsOrder


@dataclass(frozen=True)
class BoundQuery:
    """FROM, joins, `generators`, WHERE, then (if `is_aggregate`) GROUP BY and HAVING, then `windows`, ORDER BY, OFFSET,
    LIMIT, SELECT.

    `windows` are calls with OVER; ORDER BY and SELECT use them as columns. `grouping_sets` are positions in `keys`;
    empty if the query groups by all of them. HAVING and later clauses may use the start and end of a `window` like
    `keys`. `notes` are sentences for the job's report. `needs_version` is the lowest SPEC_VERSION whose
    workers support the query; 0 for an inner query. `written_aliases` are the aliases in the query of tables that have
    another one in the plan, by the latter; empty for an inner query.
    """

    source: BoundSource
    joins: tuple[BoundJoin, ...]
    where: Scalar | None
    is_aggregate: bool
    keys: tuple[Named, ...]
    calls: tuple[BoundCall, ...]
    having: Scalar | None
    order_by: tuple[SortItem, ...]
    limit: int | None
    select: tuple[Named, ...]
    output: Schema
    grouping_sets: tuple[tuple[int, ...], ...] = ()
    window: BoundWindow | None = None
    windows: tuple[Named, ...] = ()
    generators: tuple[BoundGenerator, ...] = ()
    offset: int = 0
    notes: tuple[str, ...] = ()
    needs_version: int = 0
    written_aliases: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def is_cut(self) -> bool:
        """Whether LIMIT or OFFSET leaves out rows."""
        return self.limit is not None or self.offset > 0


BoundSource = BoundTable | BoundDerived | BoundValues | BoundRows
"""A source in FROM: a table, a derived table, VALUES, or the rows of the step before."""


def queries_of(query: BoundQuery | BoundUnion) -> Iterator[BoundQuery]:
    """Yields `query` and all queries inside it, inner ones first."""
    if isinstance(query, BoundUnion):
        for branch in query.queries:
            yield from queries_of(branch)
        return
    for source in sources_of(query):
        if isinstance(source, BoundDerived):
            yield from queries_of(source.query)
    yield query


def sources_of(query: BoundQuery) -> tuple[BoundSource, ...]:
    """Returns the sources in FROM, in order."""
    return (query.source, *(join.right for join in query.joins))


def tables_of(query: BoundQuery) -> tuple[BoundTable, ...]:
    """Returns every table that `query` reads, at any depth."""
    found = (source for inner in queries_of(query) for source in sources_of(inner))
    return tuple(source for source in found if isinstance(source, BoundTable))


def pruned(query: BoundQuery) -> BoundQuery:
    """Returns `query` with the same output and without unused columns of tables and inner queries.

    A source without used columns (`COUNT(*)`) keeps its first column, so that its rows can be counted.
    """
    used = _columns_of(_table_scalars(query))
    return replace(
        query,
        source=_source(query.source, used),
        joins=tuple(replace(join, right=_source(join.right, used)) for join in query.joins),
    )


def _source(source: BoundSource, used: frozenset[str]) -> BoundSource:
    columns = tuple(column for column in source.columns if column[0].name in used) or source.columns[:1]
    if isinstance(source, BoundValues):
        places = [source.columns.index(column) for column in columns]
        return replace(source, columns=columns, rows=tuple(tuple(row[at] for at in places) for row in source.rows))
    if not isinstance(source, BoundDerived):
        return replace(source, columns=columns)
    names = frozenset(name for _, name in columns)
    inner = source.query
    if isinstance(inner, BoundUnion):
        # INTERSECT and EXCEPT compare all columns.
        kept = names if inner.kind == "union_all" else frozenset(inner.output.names)
        return replace(
            source, columns=columns, query=replace(inner, queries=tuple(_only(each, kept) for each in inner.queries))
        )
    return replace(source, columns=columns, query=_only(inner, names))


def _only(query: BoundQuery, names: frozenset[str]) -> BoundQuery:
    """Returns an inner query with only the output columns `names`."""
    select = tuple(item for item in query.select if item.name in names)
    output = Schema(tuple(field for field in query.output.fields if field.name in names))
    shown = [item.expression for item in select] + [key.expression for key in query.order_by]
    read = _columns_of(shown)
    windows = tuple(window for window in query.windows if window.name in read)
    read |= _columns_of(window.expression for window in windows)
    if query.having is not None:
        read |= _columns_of([query.having])
    calls = tuple(call for call in query.calls if call.output.name in read)
    return pruned(replace(query, select=select, output=output, calls=calls, windows=windows))


def _columns_of(scalars: Iterable[Scalar]) -> frozenset[str]:
    return frozenset(name for scalar in scalars for name in scalar.columns)


def _table_scalars(query: BoundQuery) -> Iterator[Scalar]:
    """Yields every expression that is evaluated over the sources in FROM."""
    for join in query.joins:
        yield from (side for key in join.keys for side in key)
        if join.residual is not None:
            yield join.residual
    for generator in query.generators:
        yield from generator.arguments
    if query.where is not None:
        yield query.where
    if not query.is_aggregate:
        yield from (item.expression for item in (*query.select, *query.windows))
        yield from (key.expression for key in query.order_by)
        return
    yield from (key.expression for key in query.keys)
    if query.window is not None:
        yield query.window.column
    for call in query.calls:
        yield from (*call.arguments, *(each for each in (call.filter, call.order_by) if each is not None))
