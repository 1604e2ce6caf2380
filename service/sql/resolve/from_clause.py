"""Binds FROM: the columns of derived tables and of UNION ALL, and equalities of WHERE as join keys.

A UNION ALL has the names of its first query and the common types of all. `FROM a, b WHERE a.k = b.k` is an equi-join,
as in Spark's optimizer. Only equalities of two columns become keys, because their earlier evaluation cannot fail.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from operator import itemgetter

from service.contract.problems import SpecError
from service.contract.query import (
    CODE,
    EXPRESSION_CHARACTERS,
    EXPRESSION_TOKENS,
    QUERIES,
    QUERY_DEPTH,
    TABLE_COLUMNS,
    TABLES,
    Join,
    JoinKind,
    Limit,
    Query,
    SetKind,
    TableRef,
    ValuesRef,
    queries_in,
    sources_in,
)
from service.sql.expressions.compile_expression import full_name
from service.sql.expressions.limits import of_column
from service.sql.expressions.nodes import Cast, Column, Comparison, Connective, Expression, conjuncts
from service.sql.expressions.scalar import Scalar
from service.sql.resolve.bound import BoundDerived, BoundQuery, BoundUnion, BoundValues, Named
from service.sql.types.data_types import NUMERIC, TEMPORAL, UNKNOWN, DataType, Field, Incompatible, Schema, widest
from service.sql.types.inference import convertible

_WORD = re.compile(r"\w+|[^\w\s]")
_INNER = frozenset({JoinKind.INNER, JoinKind.CROSS})
_KEEPS_LEFT = _INNER | {JoinKind.LEFT, JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI}
"""Joins below which a condition on the preceding tables may be moved."""
Equality = tuple[Column, Column]
_WORDS: Mapping[SetKind, str] = {"union_all": "UNION", "intersect_all": "INTERSECT", "except_all": "EXCEPT"}
_FIRST = -1
"""The number of the first table; a joined table has the index of its step."""


@dataclass(frozen=True)
class Derived:
    """A bound derived table with its columns under the outer query's names.

    By full name, `longest` is an upper bound of a column's bytes, and `sizes` the number of nodes of its expression.
    """

    bound: BoundDerived
    schema: Schema
    longest: Mapping[str, int]
    sizes: Mapping[str, int]


def derived_table(query: BoundQuery | BoundUnion, alias: str, columns: Sequence[str], pointer: str) -> Derived:
    """Returns the derived table with the alias `alias` in the plan; `columns`, if any, rename its columns.

    Raises SpecError `unsupported_construct`, `duplicate_column`.
    """
    inner = query.output
    if columns and len(columns) != len(inner.fields):
        detail = f"The query has {len(inner.fields)} columns, but {len(columns)} names. Name every column once."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    names = tuple(columns) or inner.names
    _check_names(names, pointer)
    schema = Schema(tuple(Field(name, field.type) for name, field in zip(names, inner.fields, strict=True)))
    pairs = tuple(
        (Field(full_name(alias, field.name), field.type), old)
        for field, old in zip(schema.fields, inner.names, strict=True)
    )
    branches = query.queries if isinstance(query, BoundUnion) else (query,)
    bounds = zip(*([longest_of(item.expression) for item in branch.select] for branch in branches), strict=True)
    longest = {field.name: max(bound) for (field, _), bound in zip(pairs, bounds, strict=True)}
    nodes = zip(*([item.expression.size for item in branch.select] for branch in branches), strict=True)
    sizes = {field.name: max(several) for (field, _), several in zip(pairs, nodes, strict=True)}
    return Derived(BoundDerived(query, alias, pairs), schema, longest, sizes)


def values_of(rows: Sequence[Sequence[Scalar]], alias: str, names: Sequence[str], pointer: str) -> BoundValues:
    """Returns VALUES with the common type of each column; `names` are those of the columns.

    Raises SpecError `type_mismatch`, `duplicate_column`, and `unsupported_construct` if a row is shorter or longer.
    """
    for index, row in enumerate(rows):
        if len(row) != len(names):
            detail = f"This row of VALUES has {len(row)} values, and the first one {len(names)}."
            raise SpecError.of("unsupported_construct", detail, pointer=f"{pointer}/rows/{index}")
    _check_names(names, pointer)
    types = []
    for name, column in zip(names, zip(*rows, strict=True), strict=True):
        cells = [Named(scalar, name) for scalar in column]
        types.append(_common(cells, "VALUES", [f"{pointer}/rows/{index}" for index in range(len(cells))]))
    columns = tuple(
        (Field(full_name(alias, name), type_ or UNKNOWN), name) for name, type_ in zip(names, types, strict=True)
    )
    return BoundValues(alias, columns, tuple(tuple(map(_cast, row, types)) for row in rows))


def _check_names(names: Sequence[str], pointer: str) -> None:
    times = Counter(name.casefold() for name in names)
    for name in names:
        check_name(name, pointer)
        if times[name.casefold()] > 1:
            detail = f"Two columns are called {name} (case is ignored). Rename one of them."
            raise SpecError.of("duplicate_column", detail, pointer=pointer)


def longest_of(scalar: Scalar) -> int:
    """Returns the maximum bytes of a value; if unknown, those that are assumed for a column."""
    return of_column(scalar.type) if scalar.longest is None else scalar.longest


def check_name(name: str, pointer: str) -> None:
    """Raises SpecError `unsupported_construct` for a name in which Spark would replace variables."""
    # Spark replaces `${env:…}` by the worker's environment everywhere, and names cannot escape it.
    if "${" in name:
        detail = f"The name {name} contains '${{', which is not allowed. Rename it."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)


def check_size(query: Query, pointer: str) -> None:
    """Raises SpecError `query_too_deep` if the queries inside `query` are too many, too deep or too long."""
    queries = list(queries_in(query))
    _require(QUERY_DEPTH, max(depth for _, depth in queries), pointer)
    _require(QUERIES, len(queries), pointer)
    _require(EXPRESSION_CHARACTERS, sum(len(text) for each, _ in queries for text in _texts(each)), pointer)


def check_work(query: Query, schemas: Mapping[str, Schema], pointer: str, *, is_read: bool) -> None:
    """Raises SpecError `query_too_deep` if binding or planning `query` over `schemas` could take too long.

    `is_read`: its expressions are texts that have to be parsed, which is limited too. Only for new jobs, because
    earlier versions accepted more.
    """
    queries = [each for each, _ in queries_in(query)]
    sources = (source for each in queries for source in sources_in(each))
    tables = [source.table for source in sources if isinstance(source, TableRef)]
    _require(TABLES, len(tables), pointer)
    _require(TABLE_COLUMNS, sum(len(schemas[table].fields) for table in tables if table in schemas), pointer)
    if is_read:
        words = sum(sum(1 for _ in _WORD.finditer(text)) for each in queries for text in _texts(each))
        _require(EXPRESSION_TOKENS, words, pointer)


def _require(limit: Limit, found: int, pointer: str) -> None:
    if found > limit.most:
        raise SpecError.of(CODE, limit.detail(found), pointer=pointer)


def _texts(query: Query) -> Iterator[str]:
    """Yields the expressions of one query, without those of the queries inside it."""
    for source in sources_in(query):
        for row in source.rows if isinstance(source, ValuesRef) else ():
            yield from row
    for join in query.joins:
        for key in join.on:
            yield from (key.left, key.right)
        yield join.residual or ""
    for generator in query.generators:
        yield from generator.arguments
    yield from (query.where or "", query.having or "")
    yield from (item.expression for item in (*query.group_by, *query.select))
    yield from (key.expression for key in query.order_by)
    for call in query.aggregates:
        yield from (*call.arguments, call.filter or "", call.order_by or "")


def united(branches: Sequence[BoundQuery], kind: SetKind, pointer: str) -> BoundUnion:
    """Returns the union of the branches with equal outputs, and casts if types differ; `pointer` is that of their list.

    Raises SpecError `type_mismatch`, and `unsupported_construct` if the numbers of columns differ.
    """
    first = branches[0]
    for index, branch in enumerate(branches):
        if len(branch.select) != len(first.select):
            raise SpecError.of(
                "unsupported_construct",
                f"The queries of {_WORDS[kind]} have {len(first.select)} and {len(branch.select)} columns. "
                "Select the same number of columns in each.",
                pointer=f"{pointer}/{index}",
            )
    columns = zip(*(branch.select for branch in branches), strict=True)
    pointers = [f"{pointer}/{index}" for index in range(len(branches))]
    types = [_common(items, _WORDS[kind], pointers) for items in columns]
    return BoundUnion(tuple(_aligned(branch, first.output.names, types) for branch in branches), kind)


def _common(items: Sequence[Named], what: str, pointers: Sequence[str]) -> DataType | None:
    found: DataType | None = items[0].expression.type
    for index, item in enumerate(items[1:], start=1):
        other = item.expression.type
        try:
            found = widest((found, other), strings_convert=True)
        except Incompatible:
            unit = "row" if what == "VALUES" else "query"
            remedy = _cast_to_common(found or UNKNOWN, other or UNKNOWN, unit)
            raise SpecError.of(
                "type_mismatch",
                f"The column {items[0].name} of {what} is {found} in one {unit} and {other} in another. {remedy}",
                pointer=pointers[index],
            ) from None
    return found


def _cast_to_common(one: DataType, other: DataType, unit: str) -> str:
    """Returns the sentence that says which cast gives both types of a column one type."""
    for type_, target in ((other, one), (one, other)):
        if convertible(type_, target):
            return f"Where it is {type_}, CAST it to {target}."
    return f"CAST it to STRING in each {unit}."


def _aligned(branch: BoundQuery, names: Sequence[str], types: Sequence[DataType | None]) -> BoundQuery:
    select = tuple(
        Named(_cast(item.expression, type_), name)
        for item, name, type_ in zip(branch.select, names, types, strict=True)
    )
    fields = tuple(Field(name, type_ or UNKNOWN) for name, type_ in zip(names, types, strict=True))
    return replace(branch, select=select, output=Schema(fields))


def _cast(scalar: Scalar, type_: DataType | None) -> Scalar:
    if type_ is not None and type_.is_nested and scalar.type != type_ and "${" in str(type_):
        # Spark would replace it, and a name cannot escape it.
        type_ = None
    if type_ is None:
        # Spark finds the common type by itself.
        return replace(scalar, type=None)
    return scalar if scalar.type == type_ else replace(scalar, tree=Cast(scalar.tree, type_, tries=False), type=type_)


@dataclass(frozen=True)
class Step:
    """A join whose expressions are bound. `index` is its place in the query, `columns` are those of the joined table.
    `moved` are equalities from WHERE, with the preceding tables on their left.
    """

    index: int
    join: Join
    alias: str
    columns: frozenset[str]
    keys: tuple[tuple[Scalar, Scalar], ...] = ()
    residual: Scalar | None = None
    moved: tuple[Equality, ...] = ()

    @property
    def kind(self) -> JoinKind:
        """The kind of the join; a cross join with keys is an inner join."""
        return JoinKind.INNER if self.join.kind is JoinKind.CROSS and self.moved else self.join.kind

    @property
    def reads(self) -> frozenset[str]:
        """The columns that its own condition reads."""
        scalars = [side for key in self.keys for side in key]
        scalars += [self.residual] if self.residual is not None else []
        return frozenset(name for scalar in scalars for name in scalar.columns)

    @property
    def has_strategy(self) -> bool:
        """Whether the query sets a strategy for this join."""
        return any(way is not None for way in (self.join.ship, self.join.local, self.join.skew))


def with_equalities(
    first: frozenset[str], steps: Sequence[Step], where: Expression
) -> tuple[tuple[Step, ...], Expression | None]:
    """Returns the joins with the equalities of `where` as keys, and the rest of `where`; `first` are the columns of the
    first table.

    Consecutive inner and cross joins may change places, so that each table is joined by a key if an equality connects
    it to the preceding ones. Otherwise they keep their order.
    """
    if not any(step.join.kind in _INNER for step in steps):
        return tuple(steps), where
    terms = tuple(conjuncts(where))
    tables = _Tables(first, steps)
    pairs = _Pairs(tables, (pair for term in (*terms, *_implied(terms)) if (pair := _pair(term)) is not None))
    ordered = _ordered(steps, tables, pairs)
    last_kept = max((index for index, step in enumerate(ordered) if step.join.kind not in _KEEPS_LEFT), default=-1)
    placed, done = {_FIRST}, list[Step]()
    for index, step in enumerate(ordered):
        movable = step.join.kind in _INNER and index >= last_kept
        done.append(replace(step, moved=pairs.between(placed, step.index) if movable else ()))
        placed.add(step.index)
    used = {frozenset(pair) for step in done for pair in step.moved}
    rest = tuple(term for term in terms if (pair := _pair(term)) is None or frozenset(pair) not in used)
    if len(rest) == len(terms):
        return tuple(done), where
    return tuple(done), None if not rest else rest[0] if len(rest) == 1 else Connective("AND", rest)


class _Tables:
    """The table of each column, by number."""

    def __init__(self, first: frozenset[str], steps: Sequence[Step]) -> None:
        self._of_column = dict.fromkeys(first, _FIRST)
        for step in steps:
            self._of_column.update(dict.fromkeys(step.columns, step.index))

    def of(self, column: str) -> int | None:
        """Returns the number of the table that has `column`; None if no table of this query has it."""
        return self._of_column.get(column)

    def read_by(self, step: Step) -> set[int | None]:
        """Returns the tables that the condition of `step` reads, without its own."""
        return {self.of(name) for name in step.reads} - {step.index}


class _Pairs:
    """The equalities between two tables, by table, so that a look-up only visits those of its own tables."""

    def __init__(self, tables: _Tables, pairs: Iterable[Equality]) -> None:
        self._of_table: dict[int, dict[int, list[tuple[int, Equality]]]] = {}
        for number, (one, other) in enumerate(pairs):
            left, right = tables.of(one.name), tables.of(other.name)
            if left is None or right is None or left == right:
                continue
            self._of_table.setdefault(right, {}).setdefault(left, []).append((number, (one, other)))
            self._of_table.setdefault(left, {}).setdefault(right, []).append((number, (other, one)))

    def connect(self, placed: Set[int], table: int) -> bool:
        """Whether an equality connects `table` to one of the tables `placed`."""
        return not placed.isdisjoint(self._of_table.get(table, ()))

    def between(self, placed: Set[int], table: int) -> tuple[Equality, ...]:
        """Returns the equalities between the tables `placed`, on the left, and `table`, in their order in WHERE."""
        found = [pair for left, pairs in self._of_table.get(table, {}).items() if left in placed for pair in pairs]
        return tuple(dict.fromkeys(pair for _, pair in sorted(found, key=itemgetter(0))))


def _ordered(steps: Sequence[Step], tables: _Tables, pairs: _Pairs) -> list[Step]:
    run = next((index for index, step in enumerate(steps) if step.join.kind not in _INNER), len(steps))
    pending, rest = list(steps[:run]), list(steps[run:])
    if any(step.has_strategy for step in pending):
        return list(steps)
    reads = {step.index: tables.read_by(step) for step in pending}
    placed, ordered = {_FIRST}, list[Step]()
    while pending:
        ready = [step for step in pending if reads[step.index] <= placed]
        joined = (step for step in ready if step.keys or pairs.connect(placed, step.index))
        step = next(joined, ready[0])
        pending.remove(step)
        ordered.append(step)
        placed.add(step.index)
    return ordered + rest


def _pair(term: Expression) -> Equality | None:
    """Returns both columns of an equality whose sides Spark compares unchanged, or as numbers or times; else None."""
    if not isinstance(term, Comparison) or term.operator != "=":
        return None
    left, right = term.left, term.right
    if not isinstance(left, Column) or not isinstance(right, Column) or left.type is None or right.type is None:
        return None
    names = {left.type.name, right.type.name}
    alike = left.type == right.type or names <= NUMERIC or names <= TEMPORAL
    return (left, right) if alike and left.name != right.name else None


def _implied(terms: Sequence[Expression]) -> list[Expression]:
    """Returns the conditions that all branches of an OR share: `(a AND x) OR (a AND y)` implies a. The OR stays."""
    found: list[Expression] = []
    for term in terms:
        if isinstance(term, Connective) and term.operator == "OR":
            first, *others = (tuple(conjuncts(branch)) for branch in term.terms)
            in_all = frozenset(first).intersection(*others)
            found += [part for part in first if part in in_all]
    return found
