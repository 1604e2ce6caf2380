"""Compiles a job's query, given as SQL or as a structured query, into its bound form.

SQL becomes a structured query first, together with the place in the text of each of its parts. Names are qualified
against the tables' schemas in that step; `service.sql.resolve.binder` checks types and grouping, and
`CompiledSql.locate` translates the pointers of its errors into places in the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

from sqlglot import exp

from service.contract.job import CHANGES_VERSION, JobSpec
from service.contract.parameters import Parameters
from service.contract.problems import Issue, SpecError
from service.contract.query import CODE, NESTING, Query
from service.sql.checks.job_versions import (
    REPEATED_NAMES_VERSION,
    version_of_constructs,
    version_of_query,
    version_of_syntax,
    version_of_values,
)
from service.sql.checks.notes import notes_of
from service.sql.checks.settings import check_settings
from service.sql.checks.streaming import check_streaming
from service.sql.expressions.reader import position
from service.sql.parameters import bind_parameters
from service.sql.parser import Text, parse_query, tokens_of
from service.sql.resolve.binder import bind
from service.sql.resolve.bound import BoundQuery
from service.sql.resolve.event_time import EventTimes
from service.sql.resolve.from_clause import check_work
from service.sql.shown_names import changed, with_written_aliases, without_generated_aliases
from service.sql.statements.describe import described_query, described_table, rows_of
from service.sql.statements.expansion import check_expansion
from service.sql.statements.origins import Origins
from service.sql.statements.query import QueryCompiler
from service.sql.statements.tables.time_windows import TIME_WINDOWS, WINDOW
from service.sql.statements.trees import remove_empty_group_by_all
from service.sql.types.data_types import Schema

_STATEMENTS = frozenset(
    word
    for words in (
        "ALTER ANALYZE CACHE CALL CLEAR COMMENT COPY CREATE DECLARE DELETE DESC DESCRIBE DROP EXECUTE EXPLAIN EXPORT",
        "GRANT INSERT KILL LOAD MERGE MSCK OPTIMIZE PRAGMA REFRESH REPAIR REPLACE RESET REVOKE SET SHOW TABLE TRUNCATE",
        "UNCACHE UNLOCK UPDATE USE VACUUM",
    )
    for word in words.split()
)

_SINK = "Write its SELECT. The job's 'sink' says where the result is written."
_INSTEAD = {
    "EXPLAIN": "Post the job without EXPLAIN to /v1/explain, or run `evenkeel explain`.",
    "SET": "Give settings in the job's 'settings'.",
    "SHOW": "The tables are those in the job's 'tables'. DESCRIBE and the name of a table returns its columns.",
    "TABLE": "Write SELECT * FROM and the name.",
    **dict.fromkeys(("INSERT", "CREATE", "MERGE", "COPY", "EXPORT"), _SINK),
}
"""What to write instead of some statements."""

_POINTER = "/query"
"""The JSON pointer of a compiled query when it is bound."""

_CACHED_QUERIES = 128
_CACHED_LENGTH = 8_000
"""The longest SQL text, in characters, whose bound query is cached, so that the cache cannot use much memory."""


@dataclass(frozen=True)
class CompiledSql:
    """A structured query, and the place of each of its parts in the SQL `text`.

    `unused` are the common table expressions that the query does not read, with pointers below `/unused/<index>`: they
    are only checked. Generated aliases begin with `prefix`. `needs_version` is the lowest SPEC_VERSION whose workers
    support the syntax of `text`.
    """

    query: Query
    text: str
    origins: Origins
    unused: tuple[Query, ...] = ()
    is_accepted: bool = False
    needs_version: int = 0
    prefix: str = ""

    def text_of(self, text: str, pointer: str) -> Text:
        """Returns the `Text` of an expression of `query`, with its tree, so that it is not parsed again."""
        tree = self.origins.trees.get(pointer.removeprefix(_POINTER))
        return Text(text, pointer, tree, self.text, self.is_accepted)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Gives the issues of `query` in a SpecError that the block raises their places in the SQL text."""
        try:
            yield
        except SpecError as error:
            if self.prefix:
                error = changed(error, lambda detail: without_generated_aliases(detail, self.prefix))
            located = [self.locate(issue) for issue in error.issues]
            # Several parts of the query may come from one place of the text.
            raise SpecError([one for at, one in enumerate(located) if one not in located[:at]]) from None

    def locate(self, issue: Issue) -> Issue:
        """Returns an issue of `query`, which was bound with `text_of`, with its place in the SQL text; any other issue
        unchanged.
        """
        if not (issue.pointer or _POINTER).startswith(_POINTER):
            return issue
        if issue.line is not None:
            return issue.model_copy(update={"pointer": "/sql"})
        place = self.origins.place_of((issue.pointer or "").removeprefix(_POINTER))
        line = column = None
        if place is not None:
            line = self.text.count("\n", 0, place) + 1
            column = place - self.text.rfind("\n", 0, place)
        return issue.model_copy(update={"pointer": "/sql", "line": line, "column": column})


def compile_sql(
    text: str,
    schemas: Mapping[str, Schema],
    parameters: Parameters | None = None,
    *,
    is_accepted: bool = False,
) -> CompiledSql:
    """Compiles `text` into a structured query over the tables of `schemas`; `is_accepted` as for `Text`. `parameters`
    are the values of its placeholders.

    Raises SpecError `sql_syntax`, `query_too_deep`, `unsupported_construct`, `unsupported_function`, `unknown_table`,
    `unknown_column`, `ambiguous_column`, `duplicate_table`, at `/sql` with line and column, and what `bind_parameters`
    raises.
    """
    return _compiled_text(Text(text, "/sql", is_accepted=is_accepted), schemas, parameters)


def _compiled_text(source: Text, schemas: Mapping[str, Schema], parameters: Parameters | None) -> CompiledSql:
    text, is_accepted = source.text, source.is_accepted
    described = described_table(source, schemas)
    if described is not None:
        return CompiledSql(described, text, Origins(), is_accepted=is_accepted)
    _check_statement(source)
    tree = _query_of(source)
    needs_version = version_of_syntax(tree, text)
    remove_empty_group_by_all(tree)
    bindings = bind_parameters(source, tree, parameters)
    if bindings:
        source = replace(source, literals=bindings)
    compiler = QueryCompiler(source, schemas)
    if not is_accepted:
        # Earlier versions counted fewer nodes. `compiler` counts the queries of an accepted text too.
        check_expansion(tree, source)
    query = compiler.query(tree, {})
    unused = compiler.unused()
    bindings.check_all_read(source)
    if compiler.origins.notes:
        needs_version = max(needs_version, REPEATED_NAMES_VERSION)
    needs_version = max(needs_version, version_of_constructs(compiler.origins.constructs))
    return CompiledSql(query, text, compiler.origins, unused, is_accepted, needs_version, compiler.prefix)


def _check_statement(source: Text) -> None:
    tokens = tokens_of(source)
    if tokens and tokens[0].text.upper() in _STATEMENTS:
        word = tokens[0].text.upper()
        hint = _INSTEAD.get(word, "Write a SELECT.")
        raise source.unsupported(f"The statement {word}", at=tokens[0].start, hint=hint)


def _query_of(source: Text) -> exp.Expr:
    tree = parse_query(source)
    if isinstance(tree, exp.Values):
        around = {key: tree.args.pop(key, None) for key in ("order", "limit", "offset")}
        tree = exp.Select(expressions=[exp.Star()], from_=exp.From(this=tree), **around)
    if not isinstance(tree, exp.Query):
        raise source.unsupported(tree.key.upper(), at=position(tree), hint="Write a SELECT.")
    return tree


def compile_job(
    spec: JobSpec, schemas: Mapping[str, Schema], *, is_accepted: bool = False, has_new_settings: bool = False
) -> BoundQuery:
    """Returns the bound query of `spec`; `schemas` are the schemas of its tables, by name.

    `is_accepted`: the job was accepted before, possibly by a version that refused less. Limits that earlier versions
    did not have do not apply to it. Its settings are not checked against the query, unless it `has_new_settings`: the
    rules record in the trace which settings do not apply.

    Raises SpecError with pointers below `/query`, or at `/sql` with line and column in the SQL text, or at another part
    of the job, such as a setting that does not apply to the query.
    """
    try:
        return _compiled(spec, schemas, is_accepted=is_accepted, checks_settings=has_new_settings or not is_accepted)
    except RecursionError:
        # The limits should prevent this; it covers shapes that they miss.
        raise SpecError.of(CODE, NESTING.detail(), pointer="/sql" if spec.query is None else "/query") from None


def _compiled(spec: JobSpec, schemas: Mapping[str, Schema], *, is_accepted: bool, checks_settings: bool) -> BoundQuery:
    event_times = event_times_of(spec)
    schemas = visible_schemas(spec, schemas)
    if spec.query is not None:
        if not is_accepted:
            check_work(spec.query, schemas, "/query", is_read=True)
        texts: list[Text] = []

        def text_of(text: str, pointer: str) -> Text:
            texts.append(Text(text, pointer, is_accepted=is_accepted))
            return texts[-1]

        query = bind(spec.query, schemas, event_times=event_times, text_of=text_of)
        of_texts = (version_of_syntax(text.expression, text.text) for text in texts if text.text)
        query = replace(query, notes=tuple(dict.fromkeys(notes_of(query))))
        query = _with_version(query, version_of_query(spec.query), *of_texts)
        return _checked(spec, query) if checks_settings else query
    text, named = spec.sql or "", tuple(schemas.items())
    if event_times is None and len(text) <= _CACHED_LENGTH and not spec.parameters:
        compiled, query = _bound_batch_query(text, named, is_accepted)
    else:
        compiled, query = _bound_query(text, named, event_times, spec.parameters, is_accepted=is_accepted)
    if checks_settings:
        with compiled.located():
            query = _checked(spec, query)
    return query


@lru_cache(maxsize=_CACHED_QUERIES)
def _bound_batch_query(
    text: str, schemas: tuple[tuple[str, Schema], ...], is_accepted: bool
) -> tuple[CompiledSql, BoundQuery]:
    """Returns `_bound_query` of a batch job. Clients submit the same query many times, and each explains it first."""
    return _bound_query(text, schemas, None, None, is_accepted=is_accepted)


def _bound_query(
    text: str,
    schemas: tuple[tuple[str, Schema], ...],
    event_times: EventTimes | None,
    parameters: Parameters | None,
    *,
    is_accepted: bool,
) -> tuple[CompiledSql, BoundQuery]:
    """Compiles and binds the SQL `text`. The result depends on the arguments alone. Raises SpecError at `/sql` and at
    `/parameters`.
    """
    tables = dict(schemas)
    source = Text(text, "/sql", is_accepted=is_accepted)
    inner = described_query(source)
    if inner is not None:
        _, query = _bound_query(inner, schemas, None, parameters, is_accepted=is_accepted)
        compiled = CompiledSql(rows_of(query.output), text, Origins(), is_accepted=is_accepted)
        described = bind(compiled.query, {}, event_times=event_times)
        return compiled, _with_version(described, version_of_query(compiled.query), query.needs_version)
    # The text has its tokens already.
    compiled = _compiled_text(source, tables, parameters)
    if event_times is not None and TIME_WINDOWS in compiled.origins.constructs:
        place = next((token.start for token in tokens_of(source) if token.text.lower() == WINDOW), None)
        hint = "Write TUMBLE(t, INTERVAL '10' MINUTE), or HOP with the slide and the size."
        raise source.unsupported("The function window in a streaming job", at=place, hint=hint)
    with compiled.located():
        if not is_accepted:
            check_work(compiled.query, tables, _POINTER, is_read=False)
        query = bind(compiled.query, tables, event_times=event_times, text_of=compiled.text_of)
        of_values = (without_generated_aliases(note, compiled.prefix) for note in notes_of(query))
        query = replace(query, notes=tuple(dict.fromkeys([*compiled.origins.notes, *of_values])))
        versions = [compiled.needs_version, *map(version_of_query, (compiled.query, *compiled.unused))]
        for index, unused in enumerate(compiled.unused):
            at = f"{_POINTER}/unused/{index}"
            bound = bind(unused, tables, at, event_times=event_times, text_of=compiled.text_of)
            versions.append(version_of_values(bound))
    return compiled, _with_version(query, *versions)


def _with_version(query: BoundQuery, *versions: int) -> BoundQuery:
    return replace(query, needs_version=max(version_of_values(query), *versions))


def visible_schemas(spec: JobSpec, schemas: Mapping[str, Schema]) -> dict[str, Schema]:
    """Returns the columns that the query can use: without those of operations."""
    hidden = spec.operations
    return {name: one.without(hidden[name]) if name in hidden else one for name, one in schemas.items()}


def event_times_of(spec: JobSpec) -> EventTimes | None:
    """Returns the event times of the tables that `spec` reads as streams; None for a batch job."""
    return {name: spec.tables[name].event_time for name in spec.streams} if spec.mode.is_streaming else None


def _checked(spec: JobSpec, query: BoundQuery) -> BoundQuery:
    try:
        check_settings(query, spec.settings)
        if spec.mode.is_streaming and check_streaming(spec, query):
            return replace(query, needs_version=max(query.needs_version, CHANGES_VERSION))
    except SpecError as error:
        raise changed(error, lambda detail: with_written_aliases(detail, query.written_aliases)) from None
    return query
