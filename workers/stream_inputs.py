"""The tables of a streaming job as the engine takes them: directories that grow, and tables as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from service.datasets.files import TableFiles, find_stream_files, find_table_files, pointer_of
from service.datasets.local_files import real
from service.datasets.roots import Root
from service.datasets.schemas import read_schema
from service.spec.ddl import parse_schema
from service.spec.errors import SpecError
from service.spec.job import JobSpec, TableFormat, TableSource
from service.spec.streaming import RateTable, StreamTable
from service.spec.types import Schema
from workers.engine.spark.sources import TableInput
from workers.engine.streaming.sources import Input, RateInput, StreamInput

_NONE: Mapping[str, TableInput] = MappingProxyType({})


@dataclass(frozen=True)
class Posted:
    """A stream of posted rows: the directory of its Parquet files, and their columns."""

    directory: Path
    schema: Schema


@dataclass
class Inputs:
    """By table name."""

    tables: dict[str, Input] = field(default_factory=dict)

    @property
    def schemas(self) -> dict[str, Schema]:
        """The columns of every table."""
        return {name: table.schema for name, table in self.tables.items()}

    def with_tables(self, others: Mapping[str, TableInput]) -> Inputs:
        """The same with other versions of some tables."""
        return Inputs({**self.tables, **others})


def find_inputs(
    spec: JobSpec, roots: Sequence[Root], posted: Mapping[str, Posted], followed: Mapping[str, TableInput] = _NONE
) -> Inputs:
    """What the tables of a job are now; `posted` are the streams of its tenant that it names, `followed` the tables of
    which a version is chosen. Raises SpecError and StoreUnavailableError."""
    inputs = Inputs()
    for name, table in spec.tables.items():
        if name in followed:
            inputs.tables[name] = followed[name]
        elif isinstance(table, RateTable):
            inputs.tables[name] = RateInput(table.rows_per_second)
        elif isinstance(table, StreamTable):
            _add_posted(inputs, name, table, posted)
        elif name in spec.streams:
            _add_directory(inputs, name, table, find_stream_files(name, table, roots))
        else:
            files = find_table_files(name, table, roots)
            inputs.tables[name] = TableInput(table, files, read_schema(name, table, files))
    return inputs


def _add_posted(inputs: Inputs, name: str, table: StreamTable, posted: Mapping[str, Posted]) -> None:
    known = posted.get(table.stream)
    if known is None:
        raise SpecError.of(
            "stream_unknown",
            f"The stream '{table.stream}' is gone. PUT /v1/streams/{table.stream} makes it anew.",
            pointer=f"{pointer_of(name)}/stream",
        )
    source = TableSource(format=TableFormat.PARQUET, path=str(known.directory))
    # The directory may be told by way of links; its files are opened without following any.
    files = tuple(sorted(real(known.directory).glob("[0-9]*.parquet")))
    inputs.tables[name] = StreamInput(source, _uri(name, str(known.directory)), known.schema, files)


def _add_directory(inputs: Inputs, name: str, table: TableSource, found: TableFiles) -> None:
    if found.files:
        schema = read_schema(name, table, found)
    elif table.declared_schema is not None:
        schema = parse_schema(table.declared_schema, f"{pointer_of(name)}/schema")
    else:
        raise SpecError.of(
            "schema_cannot_be_inferred",
            f"'{table.path}' holds no file any more that would tell the columns. Put one there, and resume the job.",
            pointer=f"{pointer_of(name)}/path",
        )
    inputs.tables[name] = StreamInput(table, _uri(name, str(found.directory_or_file)), schema, found.files)


def _uri(table: str, place: str) -> str:
    """A directory as Spark takes it literally."""
    scheme, separator, path = place.rpartition("://")
    if ":" in path:
        raise SpecError.of(
            "unreadable_file",
            f"Spark cannot read '{place}' of table '{table}': rename it so that its path has no colon.",
            pointer=f"{pointer_of(table)}/path",
        )
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", f"{scheme}{separator}{path}" if separator else f"file://{path}")
