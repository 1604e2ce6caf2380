"""What a streaming job cannot compute, told when it is submitted: with the reason, and a way out.

A stream has no end, and what was emitted of it is not taken back. So a query over streams aggregates once, sorts
nothing, and lets groups through that stay.
"""

from __future__ import annotations

from collections.abc import Iterator

from service.contract.enums import OutputMode
from service.contract.job import DeltaSink, JobSpec, ParquetSink, PostgresSink
from service.contract.problems import Issue, SpecError
from service.contract.query import AggregateFunction, JoinKind
from service.sql.checks.stream_joins import (
    JoinOfStreams,
    call_text,
    is_distinct,
    is_known,
    is_ordered,
    issues_of_bounded_join,
    issues_of_empty_bound,
    issues_of_joined_streams,
    issues_of_unbounded_join,
    joined_rows,
)
from service.sql.expressions.analysis import turning_part
from service.sql.resolve.bound import (
    BoundCall,
    BoundDerived,
    BoundJoin,
    BoundName,
    BoundQuery,
    BoundSource,
    BoundTable,
    BoundUnion,
    queries_of,
    sources_of,
    tables_of,
)
from service.sql.resolve.event_time import EventTimes
from service.sql.types.data_types import UNKNOWN, DataType, Field

_GROWING_VALUES = frozenset({AggregateFunction.LISTAGG, AggregateFunction.PERCENTILE})
"""Calls whose state is all values of a group."""

_KEEPS = {
    JoinKind.LEFT: (True, False),
    JoinKind.LEFT_SEMI: (True, False),
    JoinKind.LEFT_ANTI: (True, False),
    JoinKind.RIGHT: (False, True),
    JoinKind.FULL: (True, True),
}
"""By kind, whether it emits or leaves out rows of its left and its right side for want of a partner: then that one is a
stream, since no row of a static table would ever know."""


def refuse_streaming(spec: JobSpec, query: BoundQuery) -> None:
    """Raises SpecError with every place of a streaming job that no stream can run; pointers are into the job, those of
    the query below `/query`.

    Codes: `no_stream`, `aggregate_of_aggregate`, `having_may_turn_false`, `unbounded_order`, `unbounded_value`,
    `union_with_static`, `outer_side_static`, `distinct_with_grouping_sets`, `stream_value_type`; of joins of streams
    `stream_join_needs_watermark`, `stream_join_not_bounded`, `stream_join_always_empty`, `stream_join_not_first`,
    `outer_stream_join_updated`, `too_many_streams_joined`, `stream_join_not_last`, `full_outer_stream_join`,
    `stream_anti_join`, `stream_join_no_equality`, `join_residual_two_sided`, `join_key_types`, `join_group_not_key`,
    `stream_join_needs_rows`; of what is to become of the result `watermark_required`, `mode_sink_mismatch`,
    `sink_keys_missing`.
    """
    event_times = {name: spec.tables[name].event_time for name in spec.streams}
    closes_windows = spec.output is not OutputMode.UPDATE
    issues = [*_Refusals(event_times, closes_windows=closes_windows).of(query), *_issues_of_result(spec, query)]
    if issues:
        raise SpecError(issues)


def groups_rows(query: BoundQuery) -> bool:
    """Whether the query aggregates; one that groups without a call makes its rows distinct, and no more."""
    return query.is_aggregate and (
        bool(query.calls) or not query.keys or bool(query.grouping_sets) or query.window is not None
    )


class _Refusals:
    """What is wrong with queries over the streams of `event_times`. `closes_windows`: a window comes out once nothing
    changes it any more, and is a row as any.
    """

    def __init__(self, event_times: EventTimes, *, closes_windows: bool) -> None:
        self._event_times = event_times
        self._streams = frozenset(event_times)
        self._closes_windows = closes_windows

    def of(self, query: BoundQuery) -> Iterator[Issue]:
        """Every issue of the whole query."""
        at = "/query"
        if not self._query_streams(query):
            detail = "The query reads no table with the role 'stream': name one in FROM, or use the mode 'batch'."
            yield Issue(code="no_stream", detail=detail, pointer=at)
            return
        yield from _order_issues(query, at)
        yield from self._below(query, at)
        yield from self._issues_of_joins(query, at)
        if groups_rows(query):
            yield from self._issues_over_windows(query, at)
            yield from _aggregate_issues(query, at, is_closed=self._is_closed(query))
        elif query.is_aggregate:
            yield from _distinct_row_issues(query, at)

    # What stands in FROM

    def _below(self, query: BoundQuery, at: str) -> Iterator[Issue]:
        flags = [self._streams_in(source) for source in sources_of(query)]
        for place, join in enumerate(query.joins):
            left, right = any(flags[: place + 1]), flags[place + 1]
            if left is not right:
                yield from _static_side_issues(join, f"{at}/joins/{join.index}", left=left)
        yield from self._source(query.source, f"{at}/source")
        for join in query.joins:
            yield from self._source(join.right, f"{at}/joins/{join.index}/right")

    def _source(self, source: BoundSource, at: str) -> Iterator[Issue]:
        if not isinstance(source, BoundDerived) or not self._streams_in(source):
            return
        if not isinstance(source.query, BoundUnion):
            yield from self._inner(source.query, f"{at}/query")
            return
        for index, branch in enumerate(source.query.queries):
            if self._query_streams(branch):
                yield from self._inner(branch, f"{at}/queries/{index}")
            else:
                detail = (
                    "UNION of a stream and a static table: nothing would tell when the table's rows come. "
                    "Give that table the role 'stream', so that its rows are read once."
                )
                yield Issue(code="union_with_static", detail=detail, pointer=f"{at}/queries/{index}")

    def _inner(self, query: BoundQuery, at: str) -> Iterator[Issue]:
        yield from _order_issues(query, at)
        if self._is_closed(query):
            yield from _aggregate_issues(query, at, is_closed=True)
        elif groups_rows(query):
            detail = (
                "A stream cannot use the result of an aggregate as rows: they change, and would have to be taken back. "
                "Write it as one query, with HAVING in the place of WHERE, or run this query in mode 'batch' over the "
                "result of a job that does the inner one."
            )
            yield Issue(code="aggregate_of_aggregate", detail=detail, pointer=at)
        elif query.is_aggregate:
            yield from _distinct_row_issues(query, at)
        yield from self._below(query, at)

    def _issues_over_windows(self, query: BoundQuery, at: str) -> Iterator[Issue]:
        inner = (inner for inner in queries_of(query) if inner is not query)
        if self._closes_windows and any(each.window is not None for each in inner):
            detail = (
                "A stream cannot aggregate what comes out of windows without keeping it for ever. Group by longer "
                "windows, or aggregate when reading the result."
            )
            yield Issue(code="aggregate_of_aggregate", detail=detail, pointer=at)

    def _is_closed(self, query: BoundQuery) -> bool:
        return query.window is not None and self._closes_windows

    # Joins of streams

    def _issues_of_joins(self, query: BoundQuery, at: str) -> Iterator[Issue]:
        joins = list(self._joins_of_streams(query, at))
        if not joins:
            return
        first = joins[0]
        if len(joins) > 1:
            detail = (
                f"More than two streams are joined, as with {first.alias}: one state can hold two of them. "
                "Give all tables but two the role 'static', or aggregate two of them in a job of their own."
            )
            yield Issue(code="too_many_streams_joined", detail=detail, pointer=first.pointer)
            return
        yield from issues_of_empty_bound(first)
        in_one_state = None
        if groups_rows(query) and query.window is None:
            in_one_state = list(_issues_in_one_state(query, at, first))
        if in_one_state == []:
            return
        if first.join.within is not None:
            updates = groups_rows(query) and not self._is_closed(query)
            yield from issues_of_bounded_join(first, self._event_times, updates=updates)
        elif in_one_state is None:
            yield from issues_of_unbounded_join(first, self._event_times)
        else:
            yield from in_one_state

    def _joins_of_streams(self, query: BoundQuery, at: str) -> Iterator[JoinOfStreams]:
        """Every join with a stream on both sides, outermost queries first."""
        sources = sources_of(query)
        flags = [self._streams_in(source) for source in sources]
        for place, join in enumerate(query.joins):
            if any(flags[: place + 1]) and flags[place + 1]:
                yield JoinOfStreams(query, place, f"{at}/joins/{join.index}")
        pointers = (f"{at}/source", *(f"{at}/joins/{join.index}/right" for join in query.joins))
        for source, pointer in zip(sources, pointers, strict=True):
            if not isinstance(source, BoundDerived):
                continue
            if isinstance(source.query, BoundQuery):
                yield from self._joins_of_streams(source.query, f"{pointer}/query")
                continue
            for index, branch in enumerate(source.query.queries):
                yield from self._joins_of_streams(branch, f"{pointer}/queries/{index}")

    # What is a stream

    def _streams_in(self, source: BoundSource) -> bool:
        if isinstance(source, BoundTable):
            return source.table in self._streams
        queries = source.query.queries if isinstance(source.query, BoundUnion) else (source.query,)
        return any(map(self._query_streams, queries))

    def _query_streams(self, query: BoundQuery) -> bool:
        return any(table.table in self._streams for table in tables_of(query))


def _issues_in_one_state(query: BoundQuery, at: str, join: JoinOfStreams) -> Iterator[Issue]:
    """Why `query`, an aggregate somewhere above the join, cannot be kept in one state without it."""
    rows = joined_rows(query, at)
    if rows is not None and rows.pointer == join.pointer:
        yield from issues_of_joined_streams(query, at, rows)
        return
    detail = (
        f"Two streams are joined, as with {join.alias}, below another join, UNION or DISTINCT. The join of the two "
        "must be the last before GROUP BY: join static tables to one of them before, in a query in FROM."
    )
    yield Issue(code="stream_join_not_last", detail=detail, pointer=join.pointer)


def _order_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    if is_ordered(query):
        word, part, instead = (
            ("LIMIT", "limit", "Take as many rows as you want")
            if query.limit is not None
            else ("ORDER BY", "order_by/0", "Sort")
        )
        detail = f"{word} needs the whole result, and a stream has none. {instead} when reading the result."
        yield Issue(code="unbounded_order", detail=detail, pointer=f"{at}/{part}")


def _static_side_issues(join: BoundJoin, at: str, *, left: bool) -> Iterator[Issue]:
    kept = _KEEPS.get(join.kind)
    if kept is None or (kept == (left, not left)):
        return
    side = "right" if left else "left"
    detail = (
        f"The {join.kind.value.upper().replace('_', ' ')} JOIN with {join.right.alias} depends on which rows of its "
        f"{side} side, a static table, find no partner, and a stream may always bring one. Keep the rows of the stream "
        "instead, or use an INNER JOIN."
    )
    yield Issue(code="outer_side_static", detail=detail, pointer=at)


def _aggregate_issues(query: BoundQuery, at: str, *, is_closed: bool) -> Iterator[Issue]:
    if query.having is not None and not is_closed:
        keys = tuple(Field(key.name, key.expression.type or UNKNOWN) for key in query.keys)
        if query.window is not None:
            keys = (query.window.start, query.window.end, *keys)
        part = turning_part(query.having, keys, query.calls)
        if part is not None:
            detail = (
                f"HAVING {part} may become false again, and what a stream has emitted stays. Only conditions that stay "
                "true may stand here: COUNT, MAX, or the SUM of what is plainly not negative, above a bound, MIN below "
                "one, and group keys. Filter when reading the result."
            )
            yield Issue(code="having_may_turn_false", detail=detail, pointer=f"{at}/having")
    for index, call in enumerate(query.calls):
        if call.function in _GROWING_VALUES and query.window is None:
            detail = (
                f"{call_text(call)} keeps every value of its group, for ever. Use COUNT, MIN, MAX, AVG or "
                "APPROX_COUNT_DISTINCT, group by a window (TUMBLE, HOP), or run the query in mode 'batch'."
            )
            yield Issue(code="unbounded_value", detail=detail, pointer=f"{at}/aggregates/{index}")
    distinct = [index for index, call in enumerate(query.calls) if is_distinct(call)]
    if not distinct:
        return
    if query.grouping_sets:
        detail = (
            "DISTINCT together with ROLLUP, CUBE or GROUPING SETS is not supported on a stream: "
            "use a job for each of the grouping sets."
        )
        pointer = f"{at}/aggregates/{distinct[0]}"
        yield Issue(code="distinct_with_grouping_sets", detail=detail, pointer=pointer)
    for index, call in enumerate(query.calls):
        yield from _value_issues(call, f"{at}/aggregates/{index}")
    yield from _key_issues(query.keys, at)


def _value_issues(call: BoundCall, at: str) -> Iterator[Issue]:
    """What a state of distinct values, and of plain calls beside them, cannot hold."""
    used = (*call.arguments, *(() if call.order_by is None else (call.order_by,)))
    odd = next((scalar for scalar in used if not is_known(scalar.type)), None)
    if odd is not None:
        detail = (
            f"{call_text(call)} is over {odd}, whose type Spark alone knows: beside DISTINCT a stream cannot keep it. "
            "Ask for it in a job of its own."
        )
        yield Issue(code="stream_value_type", detail=detail, pointer=at)
    elif is_distinct(call) and any(_nests(scalar.type) for scalar in call.arguments):
        yield _nested(call_text(call), at)


def _distinct_row_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    yield from _key_issues(query.keys, at)


def _key_issues(keys: tuple[BoundName, ...], at: str) -> Iterator[Issue]:
    """Of keys whose values are told apart beside others."""
    for index, key in enumerate(keys):
        if _nests(key.expression.type):
            yield _nested(f"DISTINCT with {key.expression}", f"{at}/group_by/{index}")


def _nests(type_: DataType | None) -> bool:
    return type_ is not None and type_.nests_fractions


def _nested(what: str, at: str) -> Issue:
    detail = (
        f"{what} tells apart values with FLOAT or DOUBLE inside, of which a stream would take 0.0 and -0.0 for "
        "different ones. Use their parts, or cast them."
    )
    return Issue(code="stream_value_type", detail=detail, pointer=at)


def _issues_of_result(spec: JobSpec, query: BoundQuery) -> Iterator[Issue]:
    """What does not go with the output mode, and with the sink."""
    if not groups_rows(query) or (query.window is not None and spec.output is not OutputMode.UPDATE):
        return
    if spec.output is OutputMode.APPEND:
        detail = (
            "Output 'append' emits what nothing will change, and any row may change a group. Group by a window "
            "(TUMBLE, HOP) of the table's 'event_time', or use 'update', which emits every group that changed."
        )
        yield Issue(code="watermark_required", detail=detail, pointer="/output")
    elif isinstance(spec.sink, ParquetSink):
        detail = (
            "The sink 'parquet' only adds rows, and groups change as rows come. Use the sink 'managed', 'delta' or "
            "'postgres', or group by a window with the output 'append'."
        )
        yield Issue(code="mode_sink_mismatch", detail=detail, pointer="/sink")
    if isinstance(spec.sink, PostgresSink | DeltaSink):
        yield from _sink_key_issues(spec.sink.kind, query)


def _sink_key_issues(kind: str, query: BoundQuery) -> Iterator[Issue]:
    shown = {item.expression.column for item in query.select}
    missing = [key.name for key in query.keys if key.name not in shown]
    window = query.window
    if window is not None and not {window.start.name, window.end.name} & shown:
        missing.insert(0, "the start or the end of the window")
    if query.grouping_sets:
        why = "grouping sets make rows that have their keys in common"
    elif missing:
        why = f"SELECT lacks {', '.join(missing)}"
    else:
        return
    detail = (
        f"The sink '{kind}' replaces the row of a group by its keys, and {why}. Select every key of GROUP BY as it is, "
        "or use the sink 'managed'."
    )
    yield Issue(code="sink_keys_missing", detail=detail, pointer="/sink")
