"""A job's query, given as SQL or as a structure, in its bound form."""

from __future__ import annotations

from collections.abc import Mapping

from service.spec.binding import bind
from service.spec.bound import BoundQuery
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.sql import compile_sql
from service.spec.types import Schema


def compile_job(spec: JobSpec, schemas: Mapping[str, Schema]) -> BoundQuery:
    """The bound query of `spec`; `schemas` are those of its tables, by name.

    Raises SpecError with pointers below `/query`, or at `/sql` with line and column in the SQL text.
    """
    if spec.query is not None:
        return bind(spec.query, schemas)
    compiled = compile_sql(spec.sql or "", schemas)
    try:
        return bind(compiled.query, schemas)
    except SpecError as error:
        raise SpecError([compiled.locate(issue) for issue in error.issues]) from None
