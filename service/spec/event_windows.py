"""Group windows over tables of known schemas: over which streams' event time, and how late rows of those may come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from service.spec.bound import (
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundSource,
    BoundTable,
    BoundUnion,
    BoundWatermark,
    BoundWindow,
    queries_of,
    sources_of,
)
from service.spec.dialect import Text
from service.spec.errors import SpecError
from service.spec.expressions import scalar_of
from service.spec.parsing import read_expression
from service.spec.query import HoppingWindow, TumblingWindow
from service.spec.scope import TableScope, resolve
from service.spec.streaming import EventTime
from service.spec.tree import Column
from service.spec.types import TIMESTAMP, TIMESTAMP_NTZ, Field
from service.spec.windows import MAX_WINDOWS_PER_ROW

EventTimes = Mapping[str, EventTime | None]
"""Of the tables that a job reads as streams, by name, the event time that is declared; the other tables are static."""

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True)
class Origin:
    """A column of a table that another column is a copy of; `column` is its name in the files."""

    table: str
    alias: str
    emitted: str
    column: str


class NotAColumnError(Exception):
    """A column that is no copy of a table's; `told` is what it is."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told = told


def bind_window(
    window: TumblingWindow | HoppingWindow,
    scope: TableScope,
    sources: Mapping[str, BoundSource],
    joins: Iterable[BoundJoin],
    event_times: EventTimes | None,
    pointer: str,
    source: Text,
) -> BoundWindow:
    """The bound form of `window`, whose pointer is `pointer`, over `sources`, which `joins` put together; `event_times`
    is None for a batch job. `source` is the text of the window's column.

    Raises SpecError `window_without_stream` for a batch job, `watermark_required` where the column is no declared event
    time, `window_over_joined_streams`, `unsupported_construct`, `type_mismatch`, `unknown_column`, `ambiguous_column`.
    """
    if event_times is None:
        detail = (
            "A group window is closed by the rows that come later, which a batch job has none of: set 'mode' to "
            "'incremental' or 'continuous', or group by date_trunc('hour', t)."
        )
        raise SpecError.of("window_without_stream", detail, pointer=pointer)
    _check_joins(sources.values(), joins, event_times, pointer)
    slide = window.slide if isinstance(window, HoppingWindow) else window.size
    _check_lengths(window.size, slide, pointer)
    told = window.column.replace("`", "")
    column = resolve(read_expression(source), scope, source)
    if not isinstance(column, Column):
        hint = "Name the column that is the event time of its stream."
        raise source.unsupported("A window over anything but a column", hint=hint)
    if column.type not in (TIMESTAMP, TIMESTAMP_NTZ):
        detail = f"A window is over a TIMESTAMP, and {told} is {column.type or 'of an unknown type'}."
        raise source.error("type_mismatch", detail, at=column.at)
    try:
        origins = tuple(dict.fromkeys(origins_of(column.name, sources.values())))
    except NotAColumnError as error:
        detail = (
            f"A window is over the event time of a stream, and {told} is {error.told}: name "
            "a column that is declared as 'event_time' of its table."
        )
        raise source.error("watermark_required", detail, at=column.at) from None
    marks = tuple(_watermark(origin, event_times, source, column.at) for origin in origins)
    if column.type == TIMESTAMP_NTZ and [mark.column for mark in marks] != [column.name]:
        detail = (
            f"{told} is a TIMESTAMP_NTZ, over which a window stands in the query that reads the table: write GROUP BY "
            "there, without a derived table in between."
        )
        raise source.error("type_mismatch", detail, at=column.at)
    return BoundWindow(
        column=scalar_of(column, source),
        size_ms=window.size // _MILLISECOND,
        slide_ms=slide // _MILLISECOND,
        start=Field(window.start, column.type),
        end=Field(window.end, column.type),
        watermarks=marks,
    )


def is_streaming(source: BoundSource, event_times: EventTimes) -> bool:
    """Whether rows of `source` come from a stream."""
    if isinstance(source, BoundTable):
        return source.table in event_times
    return any(is_streaming(inner, event_times) for query in queries_of(source.query) for inner in sources_of(query))


def _check_joins(
    sources: Iterable[BoundSource], joins: Iterable[BoundJoin], event_times: EventTimes, pointer: str
) -> None:
    sources = tuple(sources)
    nested = [source.query for source in sources if isinstance(source, BoundDerived)]
    inner = (each for query in nested for each in queries_of(query))
    for level, between in ((sources, joins), *((sources_of(each), each.joins) for each in inner)):
        streams = [source.alias for source in level if is_streaming(source, event_times)]
        if len(streams) > 1 + sum(join.within is not None for join in between):
            detail = (
                f"Two streams are joined below the window, {streams[0]} and {streams[1]}: a row of one may come long "
                "after the window of its partner was closed. Declare 'event_time' on both tables, and bound the time "
                "between their rows in ON, as with a.ts BETWEEN b.ts - INTERVAL '1' HOUR AND b.ts + INTERVAL '1' HOUR; "
                "or give one of them the role 'static'."
            )
            raise SpecError.of("window_over_joined_streams", detail, pointer=pointer)


def _check_lengths(size: timedelta, slide: timedelta, pointer: str) -> None:
    if slide > size:
        detail = "The slide is longer than the window, which leaves rows between two windows out: use WHERE for that."
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)
    if -(-size // slide) > MAX_WINDOWS_PER_ROW:
        detail = (
            f"Each row would be in {-(-size // slide)} windows, and is written out for each; at most "
            f"{MAX_WINDOWS_PER_ROW}: slide by more, or aggregate TUMBLE windows when reading."
        )
        raise SpecError.of("unsupported_construct", detail, pointer=pointer)


def _watermark(origin: Origin, event_times: EventTimes, source: Text, at: int | None) -> BoundWatermark:
    table, column = origin.table, origin.column
    if table not in event_times:
        detail = (
            f"Table '{table}' is static, so that nothing tells when a window over its {column} is complete: window "
            "over the event time of a stream."
        )
        raise source.error("watermark_required", detail, at=at)
    declared = event_times[table]
    example = f'"event_time": {{"column": "{column}", "delay": "10m"}}'
    if declared is None:
        detail = (
            f"A window needs to know how late rows of table '{table}' may come: declare {example} on the table, with "
            "the delay that they have at most."
        )
        raise source.error("watermark_required", detail, at=at)
    if declared.column != column and declared.column.casefold() != column.casefold():
        detail = (
            f"The event time of table '{table}' is {declared.column}: window over that column, or declare {example}."
        )
        raise source.error("watermark_required", detail, at=at)
    return BoundWatermark(origin.alias, origin.emitted, declared.delay // _MILLISECOND)


def origins_of(name: str, sources: Iterable[BoundSource]) -> Iterator[Origin]:
    """The columns of tables that the column `name` of `sources` is a copy of: several where queries are united.

    Raises NotAColumnError.
    """
    for source in sources:
        inner = next((inner for field, inner in source.columns if field.name == name), None)
        if inner is None:
            continue
        if isinstance(source, BoundTable):
            yield Origin(source.table, source.alias, name, inner)
        else:
            yield from _of_derived(source, inner)
        return


def _of_derived(source: BoundDerived, name: str) -> Iterator[Origin]:
    branches = source.query.queries if isinstance(source.query, BoundUnion) else (source.query,)
    for query in branches:
        yield from origins_of(_passed_on(query, name), sources_of(query))


def _passed_on(query: BoundQuery, name: str) -> str:
    """The column of the tables of `query` that its output `name` is. Raises NotAColumnError."""
    read = next(item.expression for item in query.select if item.name == name)
    if read.column is None:
        raise NotAColumnError(f"computed by {read}")
    if not query.is_aggregate:
        return read.column
    key = next((key for key in query.keys if key.name == read.column), None)
    if key is None or query.calls or query.window is not None:
        raise NotAColumnError("the result of an aggregate")
    if key.expression.column is None:
        raise NotAColumnError(f"computed by {key.expression}")
    return key.expression.column
