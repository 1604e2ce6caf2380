"""Finds a job's files, reads their columns and compiles its query: what a worker will do, done before accepting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.datasets.files import find_table_files
from service.datasets.roots import Root
from service.datasets.schemas import read_schema
from service.datasets.stores import StoreUnavailableError
from service.errors import StorageUnavailableError
from service.spec.bound import BoundQuery
from service.spec.compile import compile_job
from service.spec.job import JobSpec


@dataclass(frozen=True)
class CheckedJob:
    """The compiled query, and how large the files of all its tables are together."""

    query: BoundQuery
    table_bytes: int


def check_job(spec: JobSpec, roots: Sequence[Root]) -> CheckedJob:
    """The compiled query and what it reads. Raises SpecError with every place that is wrong, and
    StorageUnavailableError where a store of the data roots cannot be used."""
    schemas = {}
    table_bytes = 0
    for name, source in spec.tables.items():
        try:
            files = find_table_files(name, source, roots)
            schemas[name] = read_schema(name, source, files)
        except StoreUnavailableError as error:
            raise StorageUnavailableError(f"{error} Nothing was stored; try again.") from None
        table_bytes += files.bytes
    return CheckedJob(compile_job(spec, schemas), table_bytes)
