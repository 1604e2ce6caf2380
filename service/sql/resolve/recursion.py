"""Binds recursive queries: the rows that a step reads have the columns and types of the first query.

A recursive query must be bounded. Spark limits its steps and its rows; here, a value must not grow by a factor with
each step, or it would fill the memory after a few dozen of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from service.contract.problems import SpecError
from service.contract.query import JoinKind, Query, RecursiveRef, RowsRef
from service.sql.expressions.compile_expression import full_name
from service.sql.expressions.limits import COLUMN_BYTES
from service.sql.resolve.bound import (
    BoundDerived,
    BoundQuery,
    BoundRecursion,
    BoundRows,
    BoundUnion,
    queries_of,
    sources_of,
)
from service.sql.resolve.from_clause import Derived, derived_table, longest_of, united
from service.sql.types.data_types import DataType, Field, Schema, TypeName

_GROWS = frozenset({TypeName.STRING, TypeName.BINARY, TypeName.ARRAY, TypeName.MAP, TypeName.STRUCT})
_READS_LEFT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.LEFT, JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI})
_READS_RIGHT = frozenset({JoinKind.INNER, JoinKind.CROSS, JoinKind.RIGHT})
"""Kinds of joins on whose left or right side a step may read the rows before."""


@dataclass(frozen=True)
class RecursiveRows:
    """The rows that a step reads: their columns. `bytes` is the assumed length of a value that may grow."""

    schema: Schema
    bytes: int = COLUMN_BYTES

    def source(self, ref: RowsRef, alias: str, pointer: str) -> tuple[BoundRows, Schema]:
        """Returns the rows as a source with this `alias` in the plan, and its columns under the names of `ref`.

        Raises SpecError `unsupported_construct` if `ref` has another number of columns.
        """
        if len(ref.columns) != len(self.schema.fields):
            detail = f"{ref.alias} has {len(self.schema.fields)} columns, but {len(ref.columns)} names."
            raise SpecError.of("unsupported_construct", detail, pointer=pointer)
        pairs = list(zip(ref.columns, self.schema.fields, strict=True))
        columns = tuple((Field(full_name(alias, name), field.type), field.name) for name, field in pairs)
        return BoundRows(ref.rows, alias, columns), Schema(tuple(Field(name, field.type) for name, field in pairs))

    def longest_of(self, schema: Schema, alias: str) -> dict[str, int]:
        """Returns the assumed bytes of the columns that may grow, by full name."""
        return {full_name(alias, field.name): self.bytes for field in schema.fields if _grows(field.type)}


class Bind(Protocol):
    """Binds a query, with its pointer, that may read the rows of these recursive queries."""

    def __call__(self, query: Query, pointer: str, recursions: Mapping[str, RecursiveRows], /) -> BoundQuery:
        """Returns the bound query."""


def recursive_table(
    source: RecursiveRef, bind: Bind, outer: Mapping[str, RecursiveRows], alias: str, pointer: str
) -> Derived:
    """Returns the derived table of a recursive query; `outer` are those around it.

    Raises SpecError `type_mismatch` if the step has other types than the first query, `unsupported_construct` for a
    step that Spark refuses, and for one whose values could grow by a factor.
    """
    anchor = bind(source.anchor, f"{pointer}/anchor", outer)
    at = f"{pointer}/step"
    step = bind(source.step, at, {**outer, source.rows: RecursiveRows(anchor.output)})
    longer = bind(source.step, at, {**outer, source.rows: RecursiveRows(anchor.output, 2 * COLUMN_BYTES)})
    _check_growth(step, longer, at)
    _check_place(step, source.rows, at)
    both = united((anchor, step), "union_all", pointer)
    for field, wanted in zip(both.output.fields, anchor.output.fields, strict=True):
        if field.type != wanted.type or not field.type.is_known:
            found = step.output.fields[both.output.names.index(field.name)].type
            detail = (
                f"The column {field.name} of the recursive query is {wanted.type} in the first query and {found} in "
                f"the second one. {_remedy(wanted.type)}"
            )
            raise SpecError.of("type_mismatch", detail, pointer=at)
    query = BoundRecursion(both.queries, "recursive", source.rows, source.levels)
    return derived_table(query, alias, source.columns, pointer)


def _remedy(type_: DataType) -> str:
    return f"CAST the second one to {type_}." if type_.is_known and not type_.is_nested else "CAST both to one type."


def _grows(type_: DataType) -> bool:
    return type_.name in _GROWS or not type_.is_known


def _check_growth(step: BoundQuery, longer: BoundQuery, pointer: str) -> None:
    for item, other in zip(step.select, longer.select, strict=True):
        type_ = item.expression.type
        if type_ is not None and not _grows(type_):
            continue
        if longest_of(other.expression) - longest_of(item.expression) > COLUMN_BYTES:
            detail = (
                f"The column {item.name} of a recursive query may become longer by a factor with each step, because it "
                "is made of several values of the rows before. Use one of them, and join the others in the query "
                "around it."
            )
            raise SpecError.of("unsupported_construct", detail, pointer=pointer)


def _check_place(step: BoundQuery, rows: str, pointer: str) -> None:
    """Raises SpecError `unsupported_construct` where Spark does not allow the rows before, which are called `rows`."""
    for query in _readers(step, rows):
        is_cut = query.is_cut or bool(query.order_by)
        what = (
            "aggregates, GROUP BY or DISTINCT"
            if query.is_aggregate
            else "a call with OVER"
            if query.windows
            else "ORDER BY, LIMIT or OFFSET"
            if is_cut
            else None
        )
        if what is not None:
            detail = (
                f"A recursive query cannot read its own rows in a query with {what}. Write that in the query around "
                "the recursive one."
            )
            raise SpecError.of("unsupported_construct", detail, pointer=pointer)
        sides = [
            any(_reads(source, rows) for source in sources_of(query)[: index + 1]) for index in range(len(query.joins))
        ]
        for join, left in zip(query.joins, sides, strict=True):
            if (left and join.kind not in _READS_LEFT) or (_reads(join.right, rows) and join.kind not in _READS_RIGHT):
                detail = (
                    "A recursive query cannot read its own rows on the side of a join for which the join adds rows of "
                    "NULLs, in IN or in EXISTS. Write an inner join."
                )
                raise SpecError.of("unsupported_construct", detail, pointer=pointer)
        for source in sources_of(query):
            inner = source.query if isinstance(source, BoundDerived) else None
            if isinstance(inner, BoundUnion) and inner.kind != "union_all" and _reads(source, rows):
                detail = "A recursive query cannot read its own rows in INTERSECT, EXCEPT or another recursive query."
                raise SpecError.of("unsupported_construct", f"{detail} Write a join.", pointer=pointer)


def _readers(step: BoundQuery, rows: str) -> Iterator[BoundQuery]:
    """Yields the queries of a step that read the `rows` before, themselves or in a query inside them."""
    return (query for query in queries_of(step) if any(_reads(source, rows) for source in sources_of(query)))


def _reads(source: object, rows: str) -> bool:
    if isinstance(source, BoundRows):
        return source.rows == rows
    return isinstance(source, BoundDerived) and any(
        isinstance(inner, BoundRows) and inner.rows == rows
        for query in queries_of(source.query)
        for inner in sources_of(query)
    )
