"""A job's query, given as SQL or as a structure, in its bound form."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from service.spec.applicability import check_settings
from service.spec.binding import bind
from service.spec.bound import BoundQuery
from service.spec.derived import check_work
from service.spec.dialect import Text
from service.spec.errors import Issue, SpecError
from service.spec.event_windows import EventTimes
from service.spec.job import JobSpec
from service.spec.limits import CODE, NESTING
from service.spec.sql import CompiledSql, compile_sql
from service.spec.streaming_refusals import refuse_streaming
from service.spec.types import Schema


def compile_job(
    spec: JobSpec, schemas: Mapping[str, Schema], *, is_accepted: bool = False, has_new_settings: bool = False
) -> BoundQuery:
    """The bound query of `spec`; `schemas` are those of its tables, by name.

    `is_accepted`: the job was accepted, maybe by a version that refused less. Limits that earlier versions did not have
    do not apply to it, and settings that the query cannot follow are left to the rules, which note them in the trace,
    unless it `has_new_settings`.

    Raises SpecError with pointers below `/query`, or at `/sql` with line and column in the SQL text, or at another part
    of the job that the query cannot follow.
    """
    try:
        return _compiled(spec, schemas, is_accepted=is_accepted, checks_settings=has_new_settings or not is_accepted)
    except RecursionError:
        # The limits should prevent this; it covers shapes that they miss.
        raise SpecError.of(CODE, NESTING.detail(), pointer="/sql" if spec.query is None else "/query") from None


def _compiled(spec: JobSpec, schemas: Mapping[str, Schema], *, is_accepted: bool, checks_settings: bool) -> BoundQuery:
    event_times = event_times_of(spec)
    if spec.query is not None:
        if not is_accepted:
            check_work(spec.query, schemas, "/query", is_read=True)
        query = bind(spec.query, schemas, event_times=event_times, text_of=partial(Text, is_accepted=is_accepted))
        if checks_settings:
            _check(spec, query)
        return query
    compiled = compile_sql(spec.sql or "", schemas, is_accepted=is_accepted)
    try:
        if not is_accepted:
            check_work(compiled.query, schemas, "/query", is_read=False)
        query = bind(compiled.query, schemas, event_times=event_times, text_of=compiled.text_of)
        for index, unused in enumerate(compiled.unused):
            bind(unused, schemas, f"/query/unused/{index}", event_times=event_times, text_of=compiled.text_of)
        if checks_settings:
            _check(spec, query)
        return query
    except SpecError as error:
        raise SpecError([_located(compiled, issue) for issue in error.issues]) from None


def event_times_of(spec: JobSpec) -> EventTimes | None:
    """The event times of the tables that `spec` reads as streams; None for a batch job."""
    return {name: spec.tables[name].event_time for name in spec.streams} if spec.mode.is_streaming else None


def _check(spec: JobSpec, query: BoundQuery) -> None:
    check_settings(query, spec.settings)
    if spec.mode.is_streaming:
        refuse_streaming(spec, query)


def _located(compiled: CompiledSql, issue: Issue) -> Issue:
    """An issue of the compiled query as one of the SQL text; one of another part of the job as it is."""
    return compiled.locate(issue) if (issue.pointer or "/query").startswith("/query") else issue
