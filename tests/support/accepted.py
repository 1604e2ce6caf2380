"""Runs queries over one table, as it is stored with a job that names little more than its path."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.contract.job import JobSpec
from service.contract.tables import TableSource
from service.data.files import find_table_files
from service.data.schemas import read_schema
from service.jobs.check_job import check_job
from service.sql.compile import compile_job
from workers.engine.spark.engine import Engine, PlannedQuery
from workers.engine.spark.sources import TableInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def accepted(root: Path, table: dict[str, Any], sql: str = "SELECT * FROM t") -> TableSource:
    """Returns the table `t` as it is stored with its job. Raises SpecError and ValidationError."""
    posted = JobSpec.model_validate({"tables": {"t": table}, "sql": sql})
    stored = JobSpec.model_validate(check_job(posted, (root,)).spec.stored())
    return stored.file_tables["t"]


def planned(spark: SparkSession, root: Path, table: dict[str, Any], sql: str) -> PlannedQuery:
    """Returns the plan of a job over the table `t`: accepted as the service does, then read as a worker does."""
    source = accepted(root, table, sql)
    stored = JobSpec.model_validate({"tables": {"t": source}, "sql": sql})
    files = find_table_files("t", source, (root,))
    tables = {"t": TableInput(source, files, read_schema("t", source, files))}
    query = compile_job(stored, {"t": tables["t"].schema}, is_accepted=True)
    return Engine(spark, 2).plan(query, tables, stored.settings)


def rows(spark: SparkSession, root: Path, table: dict[str, Any], sql: str = "SELECT * FROM t") -> list[dict[str, Any]]:
    """Returns the rows of the job."""
    return [row.asDict() for row in planned(spark, root, table, sql).frame.collect()]
