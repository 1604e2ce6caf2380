"""The job to submit, from the arguments of a call. The service validates it, and not the client, whose version may be
another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from pydantic import BaseModel

from ..contract.job import JobSpec
from .errors import ArgumentError
from .problem_text import Source
from .text import safe_line
from .values import parameter

Table = str | PathLike[str] | Mapping[str, Any] | BaseModel
"""A table: a path, `FORMAT:PATH`, `stream:NAME`, or an object or model of the specification."""

Query = str | Mapping[str, Any] | JobSpec
"""SQL, or a whole job."""

Parameters = Mapping[str, Any] | Sequence[Any]

_FORMATS = ("parquet", "csv", "json", "jsonl", "ndjson", "orc", "avro", "xml", "delta")


@dataclass(frozen=True)
class Given:
    """The arguments that describe a job. `values` are named parameters, and `others` the other fields of the job."""

    query: Query
    tables: Mapping[str, Table] | None = None
    parameters: Parameters | None = None
    settings: Mapping[str, Any] | BaseModel | None = None
    name: str | None = None
    others: Mapping[str, Any] | None = None
    values: Mapping[str, Any] | None = None


def table_source(text: str) -> dict[str, Any]:
    """Parses `FORMAT:PATH`, a path, of which the service determines the format, or `stream:NAME`.

    >>> table_source("parquet:flights/")
    {'format': 'parquet', 'path': 'flights/'}
    >>> table_source("s3a://lake/users.csv")
    {'path': 's3a://lake/users.csv'}
    >>> table_source("stream:clicks")
    {'format': 'stream', 'stream': 'clicks'}
    """
    head, colon, rest = text.partition(":")
    if colon and rest and head in _FORMATS:
        return {"format": head, "path": rest}
    if colon and rest and head == "stream":
        return {"format": "stream", "stream": rest}
    return {"path": text}


def job_spec(given: Given) -> tuple[dict[str, Any], Source | None]:
    """Returns the job as the API reads it, and its SQL. Raises ArgumentError for arguments that contradict."""
    spec: dict[str, Any] = {**_base(given.query), **(given.others or {})}
    if given.tables is not None:
        tables = {name: _table(table) for name, table in given.tables.items()}
        spec["tables"] = {**(spec.get("tables") or {}), **tables}
    if given.settings is not None:
        spec["settings"] = _plain(given.settings)
    if given.name is not None:
        spec["name"] = given.name
    parameters = _parameters(given.parameters if given.parameters is not None else spec.get("parameters"), given.values)
    if parameters is not None:
        spec["parameters"] = parameters
    if not spec.get("tables"):
        raise ArgumentError("the job has no tables", 'Give them by name: tables={"o": "orders/*.parquet"}.')
    sql = spec.get("sql")
    return spec, Source(sql) if isinstance(sql, str) else None


def _base(query: Query) -> dict[str, Any]:
    return {"sql": query} if isinstance(query, str) else _plain(query)


def _plain(value: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{safe_line(type(value).__name__)} is not an object with fields")
    return dict(value)


def _table(table: Table) -> dict[str, Any]:
    if isinstance(table, str | PathLike):
        return table_source(str(fspath(table)))
    return _plain(table)


def _parameters(given: Parameters | None, values: Mapping[str, Any] | None) -> Any:
    if given is not None and not isinstance(given, Mapping):
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise ArgumentError("`parameters` is an object with names, or a list with values")
        if values:
            names = ", ".join(values)
            raise ArgumentError(f"`parameters` is a list, but {names} has a name", "Give all values by name.")
        return [parameter(value) for value in given]
    twice = sorted(set(given or ()) & set(values or ()))
    if twice:
        raise ArgumentError(f"the parameter {safe_line(twice[0])} is given twice")
    named = {**(given or {}), **(values or {})}
    return {name: parameter(value) for name, value in named.items()} if named or given is not None else None
