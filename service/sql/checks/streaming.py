"""Refuses queries that a streaming job cannot compute, at submission, with the reason and an alternative.

Most streaming jobs never remove a row that they emitted: their queries aggregate once, and HAVING only keeps groups
that stay in the result. Other queries are computed by changes if that is possible (`service/sql/checks/changes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

from service.contract.enums import OutputMode
from service.contract.job import CHANGE_COLUMNS, DeltaSink, FileSink, JobSpec, PostgresSink
from service.contract.problems import Issue, SpecError
from service.contract.tables import CHANGE_FIELDS
from service.sql.checks.changes import issues_of_changes, sink_key_issues, static_side_issues
from service.sql.checks.stream_joins import (
    JoinOfStreams,
    grouped_join,
    is_ordered,
    issues_in_one_state,
    issues_of_empty_bound,
    issues_of_joined_rows,
)
from service.sql.expressions.analysis import turning_part
from service.sql.resolve.bound import (
    BoundCall,
    BoundDerived,
    BoundQuery,
    BoundRecursion,
    BoundRows,
    BoundSource,
    BoundTable,
    BoundUnion,
    BoundValues,
    Named,
    queries_of,
    sources_of,
    tables_of,
)
from service.sql.resolve.event_time import EventTimes
from service.sql.resolve.stream_join_rules import call_text, is_distinct, is_known
from service.sql.types.aggregates import COUNTS_NULLS, KEEPS_VALUES
from service.sql.types.data_types import UNKNOWN, DataType, Field


def check_streaming(spec: JobSpec, query: BoundQuery) -> bool:
    """Returns whether a streaming job computes its query by changes, since its rows may be removed again. Raises
    SpecError with an issue for every part of a job that streams do not support.

    Pointers refer to the job; those of the query are below `/query`. Codes: those of `issues_without_changes` if the
    job asks for something that changes do not have, otherwise those of `issues_of_changes`.
    """
    issues = issues_without_changes(spec, query)
    has_stream = any(table.table in spec.streams for table in tables_of(query))
    removing = next((table.table for table in tables_of(query) if table.table in spec.changing), None)
    has_changes = spec.has_change_log and _rows_change(spec, query)
    by_changes = (
        (bool(issues) or removing is not None or has_changes)
        and has_stream
        and spec.output_mode is not OutputMode.APPEND
        and not spec.refreshed
    )
    issues = list(issues_of_changes(spec, query)) if by_changes else [*issues, *_issues_of_result(spec, query)]
    issues += _unknown_columns(query)
    if removing is not None and not by_changes:
        issues.append(_change_issue(spec, removing))
    if spec.has_change_log:
        issues += _issues_of_change_log(query, can_compute=by_changes or not (has_changes and spec.refreshed))
    if issues:
        raise SpecError(issues)
    return by_changes


def _unknown_columns(query: BoundQuery) -> Iterator[Issue]:
    """Yields an issue for each column of the result whose type only Spark knows: a sink stores typed columns."""
    for index, field in enumerate(query.output.fields):
        if not field.type.is_known:
            detail = (
                f"The type of {field.name} is only known when the query runs, and a stream stores typed columns. CAST "
                "it, for example to STRING; of two dates or times, write datediff or timestampdiff."
            )
            yield Issue(code="stream_value_type", detail=detail, pointer=f"/query/select/{index}/expression")


def _issues_of_change_log(query: BoundQuery, *, can_compute: bool) -> Iterator[Issue]:
    details = []
    if not can_compute:
        details.append(
            "The changes of this result cannot be computed while a table has 'refresh'. Remove 'refresh', or "
            "'change_log'."
        )
    reserved = [name for name in query.output.names if name.casefold() in CHANGE_COLUMNS]
    if reserved:
        own = " and ".join(CHANGE_COLUMNS)
        details.append(f"A change log has columns called {own}. Give {reserved[0]} another alias.")
    for detail in details:
        yield Issue(code="change_log_not_applicable", detail=detail, pointer="/sink/change_log")


def _change_issue(spec: JobSpec, table: str) -> Issue:
    field = next(field for field in CHANGE_FIELDS if getattr(spec.tables[table], field, None) is not None)
    detail = f"Rows of table '{table}' may be removed again ('{field}'). Use 'output_mode': 'update', and no 'refresh'."
    return Issue(code="operation_not_applicable", detail=detail, pointer=f"/tables/{table}/{field}")


def issues_without_changes(spec: JobSpec, query: BoundQuery) -> list[Issue]:
    """Returns an issue for every part of a query that streams do not support without removing rows.

    Codes: `no_stream`, `aggregate_of_aggregate`, `having_may_turn_false`, `unbounded_order`, `unbounded_value`,
    `union_with_static`, `outer_side_static`, `distinct_with_grouping_sets`, `stream_value_type`; of joins of streams
    `stream_join_needs_watermark`, `stream_join_not_bounded`, `stream_join_always_empty`, `stream_join_not_first`,
    `outer_stream_join_updated`, `too_many_streams_joined`, `stream_join_not_last`, `full_outer_stream_join`,
    `stream_anti_join`, `stream_join_no_equality`, `join_residual_two_sided`, `join_key_types`, `join_group_not_key`,
    `stream_join_needs_rows`; of the output mode and the sink `watermark_required`, `mode_sink_mismatch`,
    `sink_keys_missing`.
    """
    event_times = {name: spec.tables[name].event_time for name in spec.streams}
    closes_windows = spec.output_mode is not OutputMode.UPDATE
    return list(_Refusals(event_times, closes_windows=closes_windows).of(query))


def groups_rows(query: BoundQuery) -> bool:
    """Whether the query aggregates; one with group keys and no call only removes duplicate rows."""
    return query.is_aggregate and (
        bool(query.calls) or not query.keys or bool(query.grouping_sets) or query.window is not None
    )


class _Refusals:
    """Finds the issues of queries over the streams of `event_times`. `closes_windows`: a window is emitted once, after
    its last change, so its rows can be used like any other.
    """

    def __init__(self, event_times: EventTimes, *, closes_windows: bool) -> None:
        self._event_times = event_times
        self._streams = frozenset(event_times)
        self._closes_windows = closes_windows

    def of(self, query: BoundQuery) -> Iterator[Issue]:
        """Yields every issue of the whole query."""
        at = "/query"
        if not self._query_streams(query):
            detail = "The query reads no table with the role 'stream'. Name one in FROM, or use the mode 'batch'."
            yield Issue(code="no_stream", detail=detail, pointer=at)
            return
        yield from _recursion_issues(query, at)
        yield from _order_issues(query, at)
        yield from self._below(query, at)
        yield from self._issues_of_joins(query, at)
        if groups_rows(query):
            yield from self._issues_over_windows(query, at)
            yield from _aggregate_issues(query, at, is_closed=self._is_closed(query))
        elif query.is_aggregate:
            yield from _distinct_row_issues(query, at)

    # FROM

    def _below(self, query: BoundQuery, at: str) -> Iterator[Issue]:
        flags = [self._streams_in(source) for source in sources_of(query)]
        for place, join in enumerate(query.joins):
            left, right = any(flags[: place + 1]), flags[place + 1]
            if left is not right:
                yield from static_side_issues(join, f"{at}/joins/{join.index}", left=left)
        yield from self._source(query.source, f"{at}/source")
        for join in query.joins:
            yield from self._source(join.right, f"{at}/joins/{join.index}/right")

    def _source(self, source: BoundSource, at: str) -> Iterator[Issue]:
        if not isinstance(source, BoundDerived) or not self._streams_in(source):
            return
        if not isinstance(source.query, BoundUnion):
            yield from self._inner(source.query, f"{at}/query")
            return
        if isinstance(source.query, BoundRecursion):
            return
        if source.query.kind != "union_all":
            detail = (
                "INTERSECT ALL and EXCEPT ALL need all rows of both queries, and a stream has no end. Run a batch job "
                "over the results."
            )
            yield Issue(code="unbounded_order", detail=detail, pointer=at)
            return
        for index, branch in enumerate(source.query.queries):
            if self._query_streams(branch):
                yield from self._inner(branch, f"{at}/queries/{index}")
            else:
                detail = (
                    "UNION ALL of a stream and a static table is not supported. Give the static table the role "
                    "'stream', so that its rows are read once."
                )
                yield Issue(code="union_with_static", detail=detail, pointer=f"{at}/queries/{index}")

    def _inner(self, query: BoundQuery, at: str) -> Iterator[Issue]:
        yield from _order_issues(query, at)
        if self._is_closed(query):
            yield from _aggregate_issues(query, at, is_closed=True)
        elif groups_rows(query):
            detail = (
                "A streaming query cannot read the result of an aggregate, INTERSECT or EXCEPT, because its rows "
                "change and would have to be retracted. Write one query, with HAVING instead of the outer WHERE; or "
                "run the inner query as a separate job, and this query in mode 'batch' over its result."
            )
            yield Issue(code="aggregate_of_aggregate", detail=detail, pointer=at)
        elif query.is_aggregate:
            yield from _distinct_row_issues(query, at)
        yield from self._below(query, at)

    def _issues_over_windows(self, query: BoundQuery, at: str) -> Iterator[Issue]:
        inner = (inner for inner in queries_of(query) if inner is not query)
        if self._closes_windows and any(each.window is not None for each in inner):
            detail = (
                "A streaming query cannot aggregate the rows of windows, because it would have to keep them for ever. "
                "Group by longer windows, or aggregate when you read the result."
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
                f"More than two streams are joined, among them {first.alias}, but only two are supported. Give all "
                "tables but two the role 'static', or aggregate two of them in a separate job."
            )
            yield Issue(code="too_many_streams_joined", detail=detail, pointer=first.pointer)
            return
        yield from issues_of_empty_bound(first)
        in_one_state = None
        if groups_rows(query) and query.window is None:
            in_one_state = list(_issues_in_one_state(query, at, first))
        if in_one_state == []:
            return
        if first.join.within is not None or in_one_state is None:
            updates = groups_rows(query) and not self._is_closed(query)
            yield from issues_of_joined_rows(first, self._event_times, updates=updates)
        else:
            yield from in_one_state

    def _joins_of_streams(self, query: BoundQuery, at: str) -> Iterator[JoinOfStreams]:
        """Yields every join with a stream on both sides, outermost queries first."""
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

    # Streams

    def _streams_in(self, source: BoundSource) -> bool:
        if isinstance(source, BoundTable):
            return source.table in self._streams
        if isinstance(source, BoundValues | BoundRows):
            return False
        queries = source.query.queries if isinstance(source.query, BoundUnion) else (source.query,)
        return any(map(self._query_streams, queries))

    def _query_streams(self, query: BoundQuery) -> bool:
        return any(table.table in self._streams for table in tables_of(query))


def _issues_in_one_state(query: BoundQuery, at: str, join: JoinOfStreams) -> Iterator[Issue]:
    """Yields why `query`, an aggregate above the join, cannot be computed in one state without the join's rows."""
    grouped = grouped_join(query, at)
    if grouped is not None and grouped.pointer == join.pointer:
        yield from issues_in_one_state(query, at, grouped)
        return
    detail = (
        f"The join of two streams with {join.alias} is below another join, UNION or DISTINCT, but it must be the last "
        "one before GROUP BY. Join static tables to one of the streams first, in a derived table."
    )
    yield Issue(code="stream_join_not_last", detail=detail, pointer=join.pointer)


def _recursion_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    pointers = (f"{at}/source", *(f"{at}/joins/{join.index}/right" for join in query.joins))
    for source, pointer in zip(sources_of(query), pointers, strict=True):
        if not isinstance(source, BoundDerived):
            continue
        if isinstance(source.query, BoundRecursion):
            detail = (
                "A streaming job cannot have a recursive query: each step needs all rows of the one before, and a "
                "stream has no end. Run a batch job over the results of the stream."
            )
            yield Issue(code="unsupported_construct", detail=detail, pointer=pointer)
        elif isinstance(source.query, BoundUnion):
            for index, branch in enumerate(source.query.queries):
                yield from _recursion_issues(branch, f"{pointer}/queries/{index}")
        else:
            yield from _recursion_issues(source.query, f"{pointer}/query")


def _order_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    if is_ordered(query):
        word, part, instead = "ORDER BY", "order_by/0", "Sort"
        if query.limit is not None:
            word, part, instead = "LIMIT", "limit", "Limit the rows"
        elif query.offset:
            word, part, instead = "OFFSET", "offset", "Skip rows"
        detail = f"{word} needs the complete result, and a stream has no end. {instead} when you read the result."
        yield Issue(code="unbounded_order", detail=detail, pointer=f"{at}/{part}")
    if query.windows:
        name = query.windows[0].name
        places = [place for place, item in enumerate(query.select) if name in item.expression.columns]
        part = f"select/{places[0]}" if places else "order_by"
        detail = (
            "A call with OVER, or a session window, needs all rows of its partition, and a stream has no end. Group "
            "by a window of time (TUMBLE or HOP), use 'output_mode': 'update' and no 'refresh', or run a batch job "
            "over the result."
        )
        yield Issue(code="unbounded_order", detail=detail, pointer=f"{at}/{part}")


def _aggregate_issues(query: BoundQuery, at: str, *, is_closed: bool) -> Iterator[Issue]:
    if query.having is not None and not is_closed:
        keys = tuple(Field(key.name, key.expression.type or UNKNOWN) for key in query.keys)
        if query.window is not None:
            keys = (query.window.start, query.window.end, *keys)
        part = turning_part(query.having, keys, query.calls)
        if part is not None:
            detail = (
                f"HAVING {part} may become false again, but emitted rows are not retracted. Use only conditions that "
                "stay true: COUNT, MAX, or SUM of values that cannot be negative, greater than a constant; MIN less "
                "than a constant; and conditions on group keys. Or filter when you read the result."
            )
            yield Issue(code="having_may_turn_false", detail=detail, pointer=f"{at}/having")
    for index, call in enumerate(query.calls):
        if call.function in KEEPS_VALUES and query.window is None:
            detail = (
                f"{call_text(call)} keeps every value of its group for ever. Use COUNT, MIN, MAX, AVG or "
                "APPROX_COUNT_DISTINCT, group by a window (TUMBLE, HOP), or run the query in mode 'batch'."
            )
            yield Issue(code="unbounded_value", detail=detail, pointer=f"{at}/aggregates/{index}")
        if call.function in COUNTS_NULLS:
            detail = (
                f"{call.function} is not supported on a stream. Use COUNT(*) with the values as group keys, or run the "
                "query in mode 'batch'."
            )
            yield Issue(code="unsupported_construct", detail=detail, pointer=f"{at}/aggregates/{index}")
    distinct = [index for index, call in enumerate(query.calls) if is_distinct(call)]
    if not distinct:
        return
    if query.grouping_sets:
        detail = (
            "DISTINCT with ROLLUP, CUBE or GROUPING SETS is not supported on a stream. "
            "Submit a job for each of the grouping sets."
        )
        pointer = f"{at}/aggregates/{distinct[0]}"
        yield Issue(code="distinct_with_grouping_sets", detail=detail, pointer=pointer)
    for index, call in enumerate(query.calls):
        yield from _value_issues(call, f"{at}/aggregates/{index}")
    yield from _key_issues(query.keys, at)


def _value_issues(call: BoundCall, at: str) -> Iterator[Issue]:
    """Yields the issue of a call whose values cannot be stored in a state of distinct values."""
    used = (*call.arguments, *(() if call.order_by is None else (call.order_by,)))
    odd = next((scalar for scalar in used if not is_known(scalar.type)), None)
    if odd is not None:
        detail = (
            f"{call_text(call)} uses {odd}, whose type is not known before the query runs, so a stream cannot store it "
            "together with DISTINCT. CAST it to a type, or compute it in a separate job."
        )
        yield Issue(code="stream_value_type", detail=detail, pointer=at)
    elif is_distinct(call) and any(_nests(scalar.type) for scalar in call.arguments):
        yield _nested(call_text(call), at)


def _distinct_row_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    yield from _key_issues(query.keys, at)


def _key_issues(keys: tuple[Named, ...], at: str) -> Iterator[Issue]:
    """Yields the issues of keys that a state of distinct values cannot contain."""
    for index, key in enumerate(keys):
        if _nests(key.expression.type):
            yield _nested(f"DISTINCT with {key.expression}", f"{at}/group_by/{index}")


def _nests(type_: DataType | None) -> bool:
    return type_ is not None and type_.nests_fractions


def _nested(what: str, at: str) -> Issue:
    detail = (
        f"{what} compares arrays or structures that contain FLOAT or DOUBLE, in which a stream would treat 0.0 and "
        "-0.0 as different. Store their parts in separate columns, and use these."
    )
    return Issue(code="stream_value_type", detail=detail, pointer=at)


def _rows_change(spec: JobSpec, query: BoundQuery) -> bool:
    """Whether a row of the result may change after the stream has emitted it."""
    return groups_rows(query) and (query.window is None or spec.output_mode is OutputMode.UPDATE)


def _issues_of_result(spec: JobSpec, query: BoundQuery) -> Iterator[Issue]:
    """Yields the issues of the output mode and of the sink."""
    if not _rows_change(spec, query):
        return
    if spec.output_mode is OutputMode.APPEND:
        detail = (
            "The output mode 'append' emits rows that no longer change, but a new row may change any group. Group by a "
            "window (TUMBLE, HOP) over the table's 'event_time', or set 'output_mode' to 'update', which emits every "
            "changed group."
        )
        yield Issue(code="watermark_required", detail=detail, pointer="/output_mode")
    elif spec.has_change_log:
        return
    elif isinstance(spec.sink, FileSink):
        detail = (
            f"The sink '{spec.sink.kind}' only appends rows, but groups change as rows arrive. Use the sink 'managed', "
            "'delta' or 'postgres', set 'change_log' to store the changes, or group by a window with the output mode "
            "'append'."
        )
        yield Issue(code="mode_sink_mismatch", detail=detail, pointer="/sink")
    if isinstance(spec.sink, PostgresSink | DeltaSink):
        yield from sink_key_issues(spec.sink.kind, query)
