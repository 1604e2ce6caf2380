"""Compiles jobs over tables of given columns, as a submission does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.contract.job import JobSpec
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import Schema


def job_over(columns: Mapping[str, str], sql: str, **more: Any) -> JobSpec:
    """Returns a job with these tables, whose columns are given as DDL."""
    tables = {name: {"format": "csv", "path": name, "schema": ddl} for name, ddl in columns.items()}
    return JobSpec.model_validate({"tables": tables, "sql": sql, **more})


def schemas_of(columns: Mapping[str, str]) -> dict[str, Schema]:
    """Parses the columns of tables."""
    return {name: parse_schema(ddl, "/") for name, ddl in columns.items()}


def compiled(columns: Mapping[str, str], sql: str, **more: Any) -> BoundQuery:
    """Compiles the job of `job_over`. Raises SpecError if a submission of the job is refused."""
    return compile_job(job_over(columns, sql, **more), schemas_of(columns))
