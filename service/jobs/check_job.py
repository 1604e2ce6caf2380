"""Finds a job's files, reads their columns and compiles its query: what a worker will do, done before accepting."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.datasets.files import find_table_files
from service.datasets.schemas import read_schema
from service.spec.bound import BoundQuery
from service.spec.compile import compile_job
from service.spec.errors import SpecError
from service.spec.job import JobSpec


def check_job(spec: JobSpec, roots: Sequence[Path]) -> BoundQuery:
    """The compiled query. Raises SpecError with every place that is wrong."""
    _refuse_nul(spec.model_dump(mode="json", by_alias=True), "")
    schemas = {}
    for name, source in spec.tables.items():
        files = find_table_files(name, source, roots)
        schemas[name] = read_schema(name, source, files)
    return compile_job(spec, schemas)


def _refuse_nul(value: Any, pointer: str) -> None:
    """No database column, path or file of Spark's holds U+0000."""
    if isinstance(value, str) and "\0" in value:
        raise SpecError.of("invalid_request", "The character U+0000 is not allowed.", pointer=pointer)
    if isinstance(value, dict):
        for key, inner in value.items():
            _refuse_nul(key, pointer)
            _refuse_nul(inner, f"{pointer}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _refuse_nul(inner, f"{pointer}/{index}")
