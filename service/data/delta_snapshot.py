"""Reads the log of a Delta table: the files, columns and partition values of one version.

The log names files, so it is not trusted: a name that leads out of the table's directory is refused. Tables of which
Spark's Parquet reader would read wrong rows are refused too: deletion vectors that are in use, and mapped columns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from service.config.data import Location
from service.data.delta_log import LOG, LocalLog, Refusal, StoredLog, check_log, has_deletion_vectors, shown
from service.data.roots import Store
from service.sql.ddl import MAX_COLUMNS
from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    Field,
    Schema,
    TypeName,
    array,
    decimal,
    mapping,
    struct,
)

_READ_FEATURES = frozenset({"timestampNtz", "vacuumProtocolCheck", "deletionVectors", "columnMapping"})
"""Features of readers that are supported. The last two only if they are not in use."""
_DECIMAL = re.compile(r"decimal\(([0-9]{1,2}),([0-9]{1,2})\)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_TYPES = {
    "boolean": BOOLEAN,
    "byte": TINYINT,
    "short": DataType(TypeName.SMALLINT),
    "integer": INT,
    "long": BIGINT,
    "float": FLOAT,
    "double": DOUBLE,
    "string": STRING,
    "binary": BINARY,
    "date": DATE,
    "timestamp": TIMESTAMP,
    "timestamp_ntz": TIMESTAMP_NTZ,
}
_MAX_DEPTH = 64


@dataclass(frozen=True)
class DeltaFile:
    """A data file: its decoded path relative to the table, its size in bytes, and its partition values as texts."""

    path: str
    size: int
    values: tuple[str | None, ...]


@dataclass(frozen=True)
class StoredTable:
    """The directory of a table in a store."""

    store: Store
    location: Location


@dataclass(frozen=True)
class Snapshot:
    """One version of a table. `partition_names` are the columns whose values are in the log."""

    version: int
    schema: Schema
    partition_names: tuple[str, ...]
    files: tuple[DeltaFile, ...]


def is_delta(directory: Path) -> bool:
    """Whether a local directory is a Delta table."""
    return (directory / LOG).is_dir()


def delta_table_around(path: Path, roots: Sequence[Path]) -> Path | None:
    """Returns the Delta table, inside of a root, in whose directory a path without links is. None for the table itself,
    and for its log.
    """
    for directory in path.parents:
        if not any(root == directory or root in directory.parents for root in roots) or directory.name == LOG:
            return None
        if is_delta(directory):
            return None if path.name == LOG else directory
    return None


def read_snapshot(
    place: Path | StoredTable, given: str, pointer: str, *, version: int | None = None, max_files: int
) -> Snapshot:
    """Returns a version of a table, by default the latest one. A local `place` has no links. `given` is the path that
    the client gave.

    Raises SpecError `corrupt_file` (also for a version that does not exist), `unsupported_construct` (also for more
    than `max_files`) and `path_outside_data_roots`. Raises StoreUnavailableError.
    """
    refusal = Refusal(given, pointer)
    is_local = isinstance(place, Path)
    log = LocalLog(place, refusal) if isinstance(place, Path) else StoredLog(place.store, place.location, refusal)
    segment = check_log(log, version)
    try:
        # The version that was checked: a newer one may have been written since.
        table = DeltaTable(
            str(place) if isinstance(place, Path) else f"s3://{place.location.authority}/{place.location.path}",
            version=segment.version,
            storage_options=None if isinstance(place, Path) else dict(place.store.delta_options or {}),
        )
        features = set(table.protocol().reader_features or ())
        metadata = table.metadata()
        fields = json.loads(table.schema().to_json())["fields"]
        _check_metadata(features, metadata.configuration, len(fields), refusal)
        actions = pa.table(table.get_add_actions(flatten=False))
    except (DeltaError, pa.ArrowException, OSError, ValueError, KeyError, RecursionError) as error:
        _raise_unreadable(error, version, refusal)
    if actions.num_rows > max_files:
        raise refusal.unsupported(f"has more than {max_files} files")
    if "deletionVectors" in features and (not is_local or has_deletion_vectors(log, segment)):
        raise refusal.unsupported(
            "has deletion vectors, which are not read. Remove them with REORG TABLE … APPLY (PURGE)"
        )
    names = tuple(metadata.partition_columns)
    return Snapshot(segment.version, _schema(fields, refusal), names, tuple(_files(actions, names, refusal)))


def _check_metadata(
    features: set[str], configuration: Mapping[str, str | None], columns: int, refusal: Refusal
) -> None:
    """Refuses what is not read, before the list of files is created."""
    refused = features - _READ_FEATURES
    if refused:
        raise refusal.unsupported(f"has the feature {', '.join(sorted(map(shown, refused)))}, which is not read")
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        raise refusal.unsupported(
            "maps its columns to other names in the files (delta.columnMapping.mode), which is not read. Write it "
            "again without column mapping"
        )
    if columns > MAX_COLUMNS:
        raise refusal.unsupported(f"has more than {MAX_COLUMNS} columns")


def _raise_unreadable(error: Exception, version: int | None, refusal: Refusal) -> NoReturn:
    if version is not None and ("version" in str(error) or "segment" in str(error)):
        raise refusal.corrupt(f"has no version {version}, or its log does not reach back to it") from None
    raise refusal.corrupt() from None


def _files(actions: pa.Table, names: Sequence[str], refusal: Refusal) -> Iterator[DeltaFile]:
    partitions = actions.column("partition").to_pylist() if names else [{}] * actions.num_rows
    rows = zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), partitions, strict=True)
    for path, size, values in rows:
        texts = tuple(None if values.get(name) is None else str(values[name]) for name in names)
        yield DeltaFile(_checked(path, refusal), size, texts)


def _checked(path: str, refusal: Refusal) -> str:
    """Returns the decoded path of a file in the log, which must be relative and stay inside of the table."""
    decoded = unquote(path, errors="surrogateescape")
    for text in (path, decoded):
        if text.startswith("/") or "\\" in text or "\0" in text or ".." in text.split("/"):
            raise refusal.outside(path)
    # A colon in a decoded name is no scheme: `time=10:30/part-0.parquet`.
    if _SCHEME.match(path):
        raise refusal.outside(path)
    return decoded


def _schema(fields: Sequence[Mapping[str, Any]], refusal: Refusal) -> Schema:
    return Schema(tuple(Field(str(field["name"]), _type(field["type"], refusal)) for field in fields))


def _type(given: Any, refusal: Refusal, depth: int = 0) -> DataType:
    if depth > _MAX_DEPTH:
        raise refusal.unsupported(f"has a column that is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(given, str):
        found = _DECIMAL.fullmatch(given)
        if found is not None:
            return decimal(int(found[1]), int(found[2]))
        if given in _TYPES:
            return _TYPES[given]
        raise refusal.unsupported(f"has a column of the type {shown(given)}, which is not read")
    kind = given["type"]
    if kind == "array":
        return array(_type(given["elementType"], refusal, depth + 1))
    if kind == "map":
        return mapping(*(_type(given[part], refusal, depth + 1) for part in ("keyType", "valueType")))
    return struct([Field(part["name"], _type(part["type"], refusal, depth + 1)) for part in given["fields"]])
