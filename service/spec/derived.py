"""A query in the place of a table: what the query around it sees of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from service.spec.bound import BoundDerived, BoundQuery, BoundUnion
from service.spec.errors import SpecError
from service.spec.growth import of_column
from service.spec.limits import (
    CODE,
    EXPRESSION_CHARACTERS,
    EXPRESSION_TOKENS,
    QUERIES,
    QUERY_DEPTH,
    TABLE_COLUMNS,
    TABLES,
    Limit,
)
from service.spec.query import Query, TableRef, queries_in, sources_in
from service.spec.scalar import Scalar
from service.spec.scope import full_name
from service.spec.types import Field, Schema

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Derived:
    """A bound derived table with its columns under the caller's names, bounds of their bytes, and the nodes of their
    expressions, by full name.
    """

    bound: BoundDerived
    schema: Schema
    longest: Mapping[str, int]
    sizes: Mapping[str, int]


def derived_table(query: BoundQuery | BoundUnion, alias: str, columns: Sequence[str], pointer: str) -> Derived:
    """The derived table that the plan knows as `alias`; `columns` rename its columns, where there are any.

    Raises SpecError `unsupported_construct`, `duplicate_column`.
    """
    inner = query.output
    if columns and len(columns) != len(inner.fields):
        detail = f"The query has {len(inner.fields)} columns, and {len(columns)} names are given for them."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    names = tuple(columns) or inner.names
    times = Counter(name.casefold() for name in names)
    for name in names:
        check_name(name, pointer)
        if times[name.casefold()] > 1:
            detail = f"Two columns would be called {name} (case does not count)."
            raise SpecError.of("duplicate_column", detail, pointer=pointer)
    schema = Schema(tuple(Field(name, field.type) for name, field in zip(names, inner.fields, strict=True)))
    pairs = tuple(
        (Field(full_name(alias, field.name), field.type), old)
        for field, old in zip(schema.fields, inner.names, strict=True)
    )
    branches = query.queries if isinstance(query, BoundUnion) else (query,)
    bounds = zip(*([_longest(item.expression) for item in branch.select] for branch in branches), strict=True)
    longest = {field.name: max(bound) for (field, _), bound in zip(pairs, bounds, strict=True)}
    nodes = zip(*([item.expression.size for item in branch.select] for branch in branches), strict=True)
    sizes = {field.name: max(several) for (field, _), several in zip(pairs, nodes, strict=True)}
    return Derived(BoundDerived(query, alias, pairs), schema, longest, sizes)


def _longest(scalar: Scalar) -> int:
    """The bytes of a value, where they are not known those that a column's are taken to have."""
    return of_column(scalar.type) if scalar.longest is None else scalar.longest


def check_name(name: str, pointer: str) -> None:
    """Raises SpecError `unsupported_construct` for a name that Spark would read more into."""
    # Spark replaces `${env:…}` by the worker's environment wherever it stands, and names cannot escape it.
    if "${" in name:
        detail = f"The name {name} holds '${{', which no name may."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)


def check_size(query: Query, pointer: str) -> None:
    """Raises SpecError `query_too_deep` where too many queries stand in `query`, too deep, or with too much in them."""
    queries = list(queries_in(query))
    _require(QUERY_DEPTH, max(depth for _, depth in queries), pointer)
    _require(QUERIES, len(queries), pointer)
    _require(EXPRESSION_CHARACTERS, sum(len(text) for each, _ in queries for text in _texts(each)), pointer)


def check_work(query: Query, schemas: Mapping[str, Schema], pointer: str, *, is_read: bool) -> None:
    """Raises SpecError `query_too_deep` where binding or planning `query` over `schemas` could take too long;
    `is_read`: or reading it could, since its expressions are not compiled from SQL. For new jobs: earlier versions
    accepted more.
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
    """The expressions of one query, those of the queries in it left out."""
    for join in query.joins:
        for key in join.on:
            yield from (key.left, key.right)
        yield join.residual or ""
    yield from (query.where or "", query.having or "")
    yield from (item.expression for item in (*query.group_by, *query.select))
    yield from (key.expression for key in query.order_by)
    for call in query.aggregates:
        yield from (*call.arguments, call.filter or "", call.order_by or "")
