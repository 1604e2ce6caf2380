"""Says why a streaming job cannot compute its query by changes: with the changes of every operator, in which rows are
also removed (`workers/engine/streaming/changes`).

Queries that a stream can compute without removing rows are not computed by changes
(`service/sql/checks/streaming.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from service.contract.job import DeltaSink, JobSpec, ManagedSink, PostgresSink
from service.contract.problems import Issue
from service.sql.builtins import CLOCKS
from service.sql.checks.stream_joins import is_ordered
from service.sql.expressions.nodes import Call, Column, Over, walk
from service.sql.expressions.scalar import Scalar
from service.sql.joins import KEEPS
from service.sql.resolve.bound import (
    BoundDerived,
    BoundJoin,
    BoundQuery,
    BoundRecursion,
    BoundSource,
    BoundTable,
    BoundUnion,
    sources_of,
    tables_of,
)
from service.sql.types.data_types import DataType


def issues_of_changes(spec: JobSpec, query: BoundQuery) -> Iterator[Issue]:
    """Yields why the job cannot compute its query by changes; pointers of the query are below `/query`.

    Codes: `unbounded_order`, `unsupported_construct`, `union_with_static`, `outer_side_static`, `join_key_types`,
    `stream_value_type`, `mode_sink_mismatch`, `sink_keys_missing`.
    """
    yield from _Checks(spec.streams).of(query, "/query")
    yield from _name_issues(query)
    if isinstance(spec.sink, ManagedSink) or spec.has_change_log:
        return
    if not isinstance(spec.sink, DeltaSink | PostgresSink):
        detail = (
            f"Rows of the result may be removed again, and the sink '{spec.sink.kind}' does not remove rows. Set "
            "'change_log' to store the changes, or use the sink 'managed', 'delta' or 'postgres'."
        )
        yield Issue(code="mode_sink_mismatch", detail=detail, pointer="/sink")
    elif _shows_keys_of_rows(spec, query):
        return
    elif not query.is_aggregate or query.grouping_sets:
        of_upserts = " Or name one table with 'upsert' in FROM, and select its 'keys'." if spec.upserts else ""
        detail = (
            f"The sink '{spec.sink.kind}' removes rows by their keys, but no columns are known to identify the rows of "
            f"this query. Use the sink 'managed', or GROUP BY the columns that identify a row.{of_upserts}"
        )
        yield Issue(code="sink_keys_missing", detail=detail, pointer="/sink")
    else:
        yield from sink_key_issues(spec.sink.kind, query)


def _shows_keys_of_rows(spec: JobSpec, query: BoundQuery) -> bool:
    """Whether the query selects the keys of rows that replace each other, each row once."""
    (first, *others) = sources_of(query)
    if others or query.is_aggregate or query.generators or not isinstance(first, BoundTable):
        return False
    upsert = spec.upserts.get(first.table)
    shown = {(item.expression.column or "").casefold() for item in query.select}
    return upsert is not None and {f"{first.alias}.{key}".casefold() for key in upsert.keys} <= shown


def sink_key_issues(kind: str, query: BoundQuery) -> Iterator[Issue]:
    """Yields the issue of a sink that replaces rows by the keys of GROUP BY, if SELECT does not have all of them."""
    shown = {item.expression.column for item in query.select}
    missing = [key.name for key in query.keys if key.name not in shown]
    window = query.window
    if window is not None and not {window.start.name, window.end.name} & shown:
        missing.insert(0, "the start or the end of the window")
    if query.grouping_sets:
        why = "rows of different grouping sets may have the same keys. Group by one set of keys"
    elif missing:
        why = f"SELECT lacks {', '.join(missing)}. Select every key of GROUP BY unchanged"
    else:
        return
    detail = f"The sink '{kind}' replaces the row of a group by its keys, but {why}, or use the sink 'managed'."
    yield Issue(code="sink_keys_missing", detail=detail, pointer="/sink")


class _Checks:
    """Checks queries over some streams."""

    def __init__(self, streams: Collection[str]) -> None:
        self._streams = streams

    def of(self, query: BoundQuery, at: str) -> Iterator[Issue]:
        """Yields the issues of `query`, and of the queries inside it."""
        yield from _order_issues(query, at)
        yield from _window_issues(query, at)
        yield from _type_issues(query, at)
        yield from _clock_issues(query, at)
        sources = sources_of(query)
        flags = [self._reads_stream(source) for source in sources]
        pointers = (f"{at}/source", *(f"{at}/joins/{join.index}/right" for join in query.joins))
        for source, pointer, is_stream in zip(sources, pointers, flags, strict=True):
            if is_stream and isinstance(source, BoundDerived):
                yield from self._derived(source, pointer)
        for place, join in enumerate(query.joins):
            left, right = any(flags[: place + 1]), flags[place + 1]
            if left and right:
                yield from _key_issues(join, f"{at}/joins/{join.index}")
            elif left is not right:
                yield from static_side_issues(join, f"{at}/joins/{join.index}", left=left)

    def _derived(self, source: BoundDerived, at: str) -> Iterator[Issue]:
        inner = source.query
        if isinstance(inner, BoundRecursion):
            detail = (
                "A streaming job cannot have a recursive query: each step needs all rows of the one before, and a "
                "stream has no end. Run a batch job over the results of the stream."
            )
            yield Issue(code="unsupported_construct", detail=detail, pointer=at)
        elif isinstance(inner, BoundUnion):
            for index, branch in enumerate(inner.queries):
                if self._query_streams(branch):
                    yield from self.of(branch, f"{at}/queries/{index}")
                else:
                    yield _static_branch(f"{at}/queries/{index}")
        else:
            yield from self.of(inner, f"{at}/query")

    def _reads_stream(self, source: BoundSource) -> bool:
        if isinstance(source, BoundTable):
            return source.table in self._streams
        if not isinstance(source, BoundDerived):
            return False
        queries = source.query.queries if isinstance(source.query, BoundUnion | BoundRecursion) else (source.query,)
        return any(map(self._query_streams, queries))

    def _query_streams(self, query: BoundQuery) -> bool:
        return any(table.table in self._streams for table in tables_of(query))


def _static_branch(at: str) -> Issue:
    detail = (
        "A set operation of a stream and a static table is not supported. Give the static table the role 'stream', so "
        "that its rows are read once."
    )
    return Issue(code="union_with_static", detail=detail, pointer=at)


def static_side_issues(join: BoundJoin, at: str, *, left: bool) -> Iterator[Issue]:
    """Yields the issue of a join of a stream with a static table whose result depends on which rows of the static table
    have no match; `left`: the stream is on the left side.
    """
    kept = KEEPS.get(join.kind)
    if kept is None or (kept == (left, not left)):
        return
    side = "right" if left else "left"
    detail = (
        f"The {join.kind.value.upper().replace('_', ' ')} JOIN with {join.right.alias} depends on which rows of its "
        f"{side} side, a static table, have no match, but the stream may still deliver one. Keep the unmatched rows of "
        "the stream instead, or use an INNER JOIN."
    )
    yield Issue(code="outer_side_static", detail=detail, pointer=at)


def _order_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    if not is_ordered(query):
        return
    word, part, instead = "ORDER BY", "order_by/0", "Sort"
    if query.limit is not None:
        word, part, instead = "LIMIT", "limit", "Limit the rows"
    elif query.offset:
        word, part, instead = "OFFSET", "offset", "Skip rows"
    detail = (
        f"{word} needs the complete result, and a stream has no end. {instead} when you read the result, or keep the "
        "first rows of each group with ROW_NUMBER() OVER (PARTITION BY …)."
    )
    yield Issue(code="unbounded_order", detail=detail, pointer=f"{at}/{part}")


def _window_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    for call in query.windows:
        tree = call.expression.tree
        if not isinstance(tree, Over) or (
            tree.partition_by and all(isinstance(key, Column) for key in tree.partition_by)
        ):
            continue
        places = [place for place, item in enumerate(query.select) if call.name in item.expression.columns]
        part = f"select/{places[0]}" if places else "order_by"
        detail = (
            "A call with OVER needs all rows of its partition, and a stream has no end. Give it a PARTITION BY of "
            "columns: then a mini-batch reads the partitions that it changes. A session window needs another key of "
            "GROUP BY."
        )
        yield Issue(code="unbounded_order", detail=detail, pointer=f"{at}/{part}")


def _type_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    """Yields the columns of types that a state cannot compare."""
    is_fine = True
    for index, item in enumerate(query.select):
        if not _is_comparable(item.expression.type):
            is_fine = False
            yield _type_issue(item.name, item.expression, f"{at}/select/{index}")
    for index, key in enumerate(query.keys):
        if not _is_comparable(key.expression.type) or _nests_fractions(key.expression.type):
            yield _type_issue(key.name, key.expression, f"{at}/group_by/{index}")
    for source in sources_of(query):
        for field, name in source.columns:
            if is_fine and not _is_comparable(field.type):
                yield _type_issue(name, None, f"{at}/source", field.type)


def _clock_issues(query: BoundQuery, at: str) -> Iterator[Issue]:
    """Yields the first function of a query that returns the time."""
    for scalar in _scalars(query):
        clock = next((part.name for part in walk(scalar.tree) if isinstance(part, Call) and part.name in CLOCKS), None)
        if clock is None:
            continue
        detail = (
            f"{clock} returns another time in each mini-batch, so a row that contains it could not be removed again. "
            "Use a column of the stream, or a literal."
        )
        yield Issue(code="unsupported_construct", detail=detail, pointer=at)
        return


def _scalars(query: BoundQuery) -> Iterator[Scalar]:
    for item in (*query.select, *query.keys, *query.windows):
        yield item.expression
    yield from (scalar for scalar in (query.where, query.having) if scalar is not None)
    for call in query.calls:
        yield from call.arguments
        yield from (scalar for scalar in (call.filter, call.order_by) if scalar is not None)
    for join in query.joins:
        yield from (side for key in join.keys for side in key)
        if join.residual is not None:
            yield join.residual
    for each in query.generators:
        yield from each.arguments


def _name_issues(query: BoundQuery) -> Iterator[Issue]:
    """Yields the first name that the plan uses for columns and tables of its own."""
    own = (name for name in (*query.output.names, *(table.alias for table in tables_of(query))) if name.startswith("$"))
    for name in own:
        detail = f"Names that begin with $ are reserved in this query, and '{name}' is one. Give it another alias."
        yield Issue(code="unsupported_construct", detail=detail, pointer="/query")
        return


def _type_issue(name: str, of: Scalar | None, at: str, type_: DataType | None = None) -> Issue:
    kind = of.type if of is not None else type_
    what = "of a type that is not known before the query runs" if kind is None or not kind.is_known else f"of {kind}"
    detail = (
        f"{name} is {what}, and the state of this query compares its rows. CAST it to a type that can be compared, or "
        "leave it out."
    )
    return Issue(code="stream_value_type", detail=detail, pointer=at)


def _is_comparable(type_: DataType | None) -> bool:
    return type_ is not None and type_.is_known and type_.is_groupable


def _nests_fractions(type_: DataType | None) -> bool:
    return type_ is not None and type_.nests_fractions


def _key_issues(join: BoundJoin, at: str) -> Iterator[Issue]:
    for left, right in join.keys:
        if not _have_equal_hashes(left.type, right.type):
            detail = (
                f"The join of two streams compares {left} of {left.type} with {right} of {right.type}. CAST one of "
                "them to the type of the other."
            )
            yield Issue(code="join_key_types", detail=detail, pointer=at)


def _have_equal_hashes(left: DataType | None, right: DataType | None) -> bool:
    if left is None or right is None or not (_is_comparable(left) and _is_comparable(right)):
        return False
    if left == right:
        return not left.nests_fractions
    return all(kind.is_integral or kind.is_fractional for kind in (left, right))
