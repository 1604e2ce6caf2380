"""What becomes of a case without Spark: the issues of a refusal, or the bound query."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from service.contract.enums import OutputMode
from service.contract.job import JobSpec
from service.contract.problems import Issue, SpecError
from service.contract.query import Query
from service.sql.compile import compile_job, compile_sql
from service.sql.expressions.reader import read_expression
from service.sql.expressions.scalar import render
from service.sql.parser import Text
from service.sql.resolve.bound import BoundQuery, tables_of
from tests.sql.bound_text import lines_of
from tests.sql.case_files import FIRES, SPARKS, Case
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Node
from workers.engine.streaming.stream_plan import StreamPlanError, changes_plan, stream_plan

Outcome = tuple[str, tuple[str, ...]]
"""What a case should have: the argument of its kind, and the lines that it expects."""

_OF_THE_JOB = frozenset({"mode", "output_mode", "sink", "schedule", "limits", "parameters"})
"""Names that `set` gives to the job; all others are settings."""

_COULD_RUN = frozenset({"stream_join_always_empty"})
"""Refused although a stream could run it: its result would be empty."""


def job_of(case: Case) -> JobSpec:
    """The job that the case describes."""
    tables = {name: {"format": "parquet", "path": name, **table.source} for name, table in case.tables.items()}
    parts = {name: value for name, value in case.settings.items() if name in _OF_THE_JOB}
    return JobSpec.model_validate({"tables": tables, "sql": case.sql, "settings": settings_of(case), **parts})


def settings_of(case: Case) -> dict[str, Any]:
    """The settings of the case's job."""
    return {name: value for name, value in case.settings.items() if name not in {*_OF_THE_JOB, FIRES, SPARKS}}


def compiled(case: Case) -> BoundQuery:
    """The case's query. Raises SpecError."""
    return compile_job(job_of(case), _schemas(case))


def outcome(case: Case) -> Outcome:
    """What a case that needs no Spark should have. Raises AssertionError where a refusal is missing or unexpected."""
    if case.kind == "rendered":
        return case.argument, (render(read_expression(Text(case.sql, "/x"))),)
    try:
        query = compiled(case)
    except SpecError as error:
        if case.kind != "refused":
            raise AssertionError(f"It is refused: {_issues(error)}: {error}") from None
        details = "\n".join(issue.detail for issue in error.issues)
        return _issues(error), tuple(
            words if words in details else _most_like(words, details) for words in case.expected
        )
    if case.kind == "refused":
        raise AssertionError("It is not refused.")
    if case.kind == "accepted":
        return case.argument, ()
    as_structure = compile_sql(case.sql, _schemas(case), job_of(case).parameters).query
    if Query.model_validate(as_structure.model_dump(mode="json")) != as_structure:
        raise AssertionError("What the SQL compiles into is another query when it is posted as a structure.")
    return case.argument, tuple(lines_of(query))


def _most_like(words: str, details: str) -> str:
    """The sentence of `details` that is most like `words`, which it does not contain (any more)."""
    sentences = [one.strip() for one in re.split(r"(?<=[.!?])\s+|\n", details) if one.strip()]
    return max(sentences, key=lambda one: difflib.SequenceMatcher(None, words, one).ratio())


def streaming_faults(case: Case) -> Iterator[str]:
    """How the front end and the planner of streams disagree about a streaming job.

    One that is accepted has a plan. One that is refused for what streams cannot do has none, and its SQL is fine for a
    batch job, unless it has windows.
    """
    if "mode" not in case.settings:
        return
    spec = job_of(case)
    try:
        query = compile_job(spec, _schemas(case), is_accepted=True)
    except SpecError:
        return
    is_planned = _is_planned(spec, query)
    if case.kind != "refused":
        if not is_planned:
            yield "The job is accepted, and no stream can run it."
        return
    if " at " in case.argument:
        return
    if is_planned is not (case.argument.partition(" ")[0] in _COULD_RUN):
        yield f"The job is refused, and a stream could {'' if is_planned else 'not '}run it."
    try:
        compile_job(_as_batch(case), _schemas(case))
    except SpecError as error:
        if error.code != "window_without_stream":
            yield f"The SQL is refused in a batch job too: {error}"


def _as_batch(case: Case) -> JobSpec:
    tables = {name: {"format": "parquet", "path": name} for name in case.tables}
    parameters = case.settings.get("parameters")
    return JobSpec.model_validate({"tables": tables, "sql": case.sql, "parameters": parameters})


def _is_planned(spec: JobSpec, query: BoundQuery) -> bool:
    aliases = frozenset(table.alias for table in tables_of(query) if table.table in spec.streams)
    try:
        stream_plan(build(query), aliases, output=spec.output_mode)
    except StreamPlanError as error:
        return _is_planned_by_changes(spec, build(query), aliases, str(error))
    return True


def _is_planned_by_changes(spec: JobSpec, built: Node, streams: frozenset[str], why: str) -> bool:
    if spec.output_mode is OutputMode.APPEND or spec.refreshed or not streams:
        return False
    try:
        changes_plan(built, streams, why)
    except StreamPlanError:
        return False
    return True


def _schemas(case: Case) -> Mapping[str, Any]:
    return {name: table.schema for name, table in case.tables.items()}


def _issues(error: SpecError) -> str:
    return ", ".join(map(_issue, error.issues))


def _issue(issue: Issue) -> str:
    place = "" if issue.line is None else f" {issue.line}:{issue.column}"
    pointer = "" if issue.pointer == "/sql" else f" at {issue.pointer}"
    return f"{issue.code}{place}{pointer}"
