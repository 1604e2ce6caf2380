"""A bound query as text, clause by clause: what the front end made of the SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.sql.expressions.scalar import Scalar, quoted
from service.sql.resolve.bound import (
    BoundCall,
    BoundJoin,
    BoundQuery,
    BoundRows,
    BoundSource,
    BoundTable,
    BoundTimes,
    BoundUnion,
    BoundValues,
    BoundWatermark,
)
from service.sql.types.data_types import Field

_INDENT = "  "


def lines_of(query: BoundQuery | BoundUnion) -> Iterator[str]:
    """The clauses of `query`, one a line; those of queries inside of it are indented."""
    if isinstance(query, BoundUnion):
        for branch in query.queries:
            yield query.kind.replace("_", " ")
            yield from _indented(branch)
        return
    yield from (f"note {note}" for note in query.notes)
    yield from _source("from", query.source)
    for join in query.joins:
        yield from _join(join)
    for generator in query.generators:
        outer = " outer" if generator.outer else ""
        columns = ", ".join(map(_field, generator.columns))
        yield f"generate{outer} {generator.function.value}({_list(generator.arguments)}) as {columns}"
    if query.where is not None:
        yield f"where {query.where}"
    if query.is_aggregate:
        yield from _groups(query)
    if query.having is not None:
        yield f"having {query.having}"
    for window in query.windows:
        yield f"window {window.expression} as {quoted(window.name)} {window.expression.type}"
    for sort in query.order_by:
        yield f"order by {sort.expression} {sort.direction.value} nulls {sort.nulls.value}"
    if query.limit is not None:
        yield f"limit {query.limit}"
    if query.offset:
        yield f"offset {query.offset}"
    for item, field in zip(query.select, query.output.fields, strict=True):
        yield f"select {item.expression} as {_field(field)}"


def _indented(query: BoundQuery | BoundUnion) -> Iterator[str]:
    return (_INDENT + line for line in lines_of(query))


def _source(word: str, source: BoundSource, rest: str = "") -> Iterator[str]:
    columns = ", ".join(name for _, name in source.columns)
    if isinstance(source, BoundTable):
        alias = "" if source.alias == source.table else f" {source.alias}"
        yield f"{word} {source.table}{alias} ({columns}){rest}"
        return
    yield f"{word} {source.alias} ({columns}){rest}"
    if isinstance(source, BoundValues):
        yield from (f"{_INDENT}values {', '.join(map(str, row))}" for row in source.rows)
        return
    if isinstance(source, BoundRows):
        yield f"{_INDENT}rows of the step before"
        return
    yield from _indented(source.query)


def _join(join: BoundJoin) -> Iterator[str]:
    chosen = [way.value for way in (join.ship, join.local, join.skew) if way is not None]
    conditions = [f"{left} = {right}" for left, right in join.keys]
    if join.residual is not None:
        conditions.append(f"({join.residual})")
    rest = f" on {' and '.join(conditions)}" if conditions else ""
    if chosen:
        rest += f" by {', '.join(chosen)}"
    yield from _source(f"{join.kind.value} join", join.right, rest)
    if join.within is not None:
        yield f"{_INDENT}within {_within(join.within)}"


def _within(times: BoundTimes) -> str:
    marks = _watermarks(times.watermarks)
    return f"{times.at_least_us} to {times.at_most_us} us of {times.left} - {times.right}, {marks}"


def _watermarks(watermarks: Sequence[BoundWatermark]) -> str:
    return ", ".join(f"{mark.column} late by {mark.delay_ms} ms" for mark in watermarks)


def _groups(query: BoundQuery) -> Iterator[str]:
    keys = [f"{key.expression} as {quoted(key.name)}" for key in query.keys]
    if query.window is not None:
        window = query.window
        ends = f"{quoted(window.start.name)}, {quoted(window.end.name)}"
        marks = _watermarks(window.watermarks)
        keys.append(f"window({window.column}, {window.size_ms} ms every {window.slide_ms} ms, {marks}) as {ends}")
    yield f"group by {', '.join(keys)}".rstrip()
    if query.grouping_sets:
        sets = ("(" + ", ".join(quoted(query.keys[key].name) for key in each) + ")" for each in query.grouping_sets)
        yield f"grouping sets {', '.join(sets)}"
    for call in query.calls:
        yield f"aggregate {_call(call)} as {_field(call.output)}"


def _call(call: BoundCall) -> str:
    given = ("DISTINCT " if call.distinct else "") + _list(call.arguments)
    if call.order_by is not None:
        given += f" ORDER BY {call.order_by}{' DESC' if call.descending else ''}"
    return f"{call.function.value}({given})" + (f" FILTER (WHERE {call.filter})" if call.filter is not None else "")


def _list(arguments: Sequence[Scalar]) -> str:
    return ", ".join(map(str, arguments)) or "*"


def _field(field: Field) -> str:
    return f"{quoted(field.name)} {field.type}"
