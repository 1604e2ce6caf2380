"""Reads the log of a Delta table: the files, columns and partition values of one version.

The log names files, so it is not trusted: a name that leads out of the table's directory is refused. Tables of which
Spark's Parquet reader would read wrong rows are refused too: deletion vectors that are in use, and mapped columns.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from service.contract.problems import SpecError
from service.data.file_io import open_without_links
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

LOG = "_delta_log"

MAX_LOG_ENTRIES = 100_000
MAX_COMMIT_BYTES = 64 << 20
MAX_CHECKPOINT_BYTES = 512 << 20

_READ_FEATURES = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck", "deletionVectors", "columnMapping"})
"""Features of readers that are supported. The last two only if they are not in use."""
_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(\.[0-9]{10}\.[0-9]{10})?\.parquet")
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
class Snapshot:
    """One version of a table. `partition_names` are the columns whose values are in the log."""

    version: int
    schema: Schema
    partition_names: tuple[str, ...]
    files: tuple[DeltaFile, ...]


class _Refusal:
    """Creates the errors about one table."""

    def __init__(self, given: str, pointer: str) -> None:
        self._given = given
        self._pointer = pointer

    def unsupported(self, what: str) -> SpecError:
        return SpecError.of("unsupported_construct", f"The Delta table '{self._given}' {what}.", pointer=self._pointer)

    def corrupt(self, what: str) -> SpecError:
        return SpecError.of("corrupt_file", f"The Delta table '{self._given}' {what}.", pointer=self._pointer)

    def outside(self, path: str) -> SpecError:
        detail = (
            f"The log of the Delta table '{self._given}' names the file '{_shown(path)}', which is not inside of the "
            "table's directory."
        )
        return SpecError.of("path_outside_data_roots", detail, pointer=self._pointer)


def is_delta(directory: Path) -> bool:
    """Whether a local directory is a Delta table."""
    return (directory / LOG).is_dir()


def read_snapshot(
    uri: str, given: str, pointer: str, *, version: int | None = None, options: Mapping[str, str] | None = None
) -> Snapshot:
    """Returns a version of the table at `uri`, by default the latest one. `given` is the path that the client gave;
    `options` are those of the store.

    Raises SpecError `corrupt_file` (also for a version that does not exist), `unsupported_construct` and
    `path_outside_data_roots`.
    """
    refusal = _Refusal(given, pointer)
    local = Path(uri) if options is None else None
    if local is not None:
        _check_log(local, refusal)
    try:
        table = DeltaTable(uri, version=version, storage_options=None if options is None else dict(options))
        features = set(table.protocol().reader_features or ())
        metadata = table.metadata()
        fields = json.loads(table.schema().to_json())["fields"]
        found = table.version()
        actions = pa.table(table.get_add_actions(flatten=False)) if not _refused_features(features) else None
    except (DeltaError, pa.ArrowException, OSError, ValueError, KeyError, RecursionError) as error:
        _raise_unreadable(error, version, refusal)
    if actions is None:
        raise refusal.unsupported(
            f"has the feature {', '.join(sorted(_refused_features(features)))}, which is not read"
        )
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        raise refusal.unsupported(
            "maps its columns to other names in the files (delta.columnMapping.mode), which is not read. Write it "
            "again without column mapping"
        )
    if "deletionVectors" in features and (local is None or _has_deletion_vectors(local, found, refusal)):
        raise refusal.unsupported(
            "has deletion vectors, which are not read. Remove them with REORG TABLE … APPLY (PURGE)"
        )
    names = tuple(metadata.partition_columns)
    return Snapshot(found, _schema(fields, refusal), names, tuple(_files(actions, names, refusal)))


def _refused_features(features: set[str]) -> set[str]:
    return features - _READ_FEATURES


def _raise_unreadable(error: Exception, version: int | None, refusal: _Refusal) -> NoReturn:
    if version is not None and ("version" in str(error) or "segment" in str(error)):
        raise refusal.corrupt(f"has no version {version}, or its log does not reach back to it") from None
    raise refusal.corrupt("has a log that cannot be read") from None


def _check_log(table: Path, refusal: _Refusal) -> None:
    """Checks the log before another program reads it: no links, and no files of excessive size."""
    directories = [table / LOG]
    count = 0
    while directories:
        try:
            with os.scandir(directories.pop()) as entries:
                for entry in entries:
                    count += 1
                    if entry.is_symlink():
                        raise refusal.unsupported(f"has the link '{_shown(entry.name)}' in its log")
                    if entry.is_dir():
                        directories.append(Path(entry.path))
                        continue
                    size = entry.stat().st_size
                    is_commit = entry.name.endswith(".json")
                    if size > (MAX_COMMIT_BYTES if is_commit else MAX_CHECKPOINT_BYTES) or count > MAX_LOG_ENTRIES:
                        raise refusal.unsupported("has a log that is too large. Write a checkpoint and clean it up")
        except OSError:
            raise refusal.corrupt("has a log that cannot be read") from None


def _files(actions: pa.Table, names: Sequence[str], refusal: _Refusal) -> Iterator[DeltaFile]:
    partitions = actions.column("partition").to_pylist() if names else [{}] * actions.num_rows
    rows = zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), partitions, strict=True)
    for path, size, values in rows:
        texts = tuple(None if values.get(name) is None else str(values[name]) for name in names)
        yield DeltaFile(_checked(path, refusal), size, texts)


def _checked(path: str, refusal: _Refusal) -> str:
    """Returns the decoded path of a file in the log, which must be relative and stay inside of the table."""
    decoded = unquote(path, errors="surrogateescape")
    for text in (path, decoded):
        if text.startswith("/") or "\\" in text or "\0" in text or ".." in text.split("/"):
            raise refusal.outside(path)
    # A colon in a decoded name is no scheme: `time=10:30/part-0.parquet`.
    if _SCHEME.match(path):
        raise refusal.outside(path)
    return decoded


def _shown(name: str) -> str:
    return name[:200].encode(errors="replace").decode()


def _schema(fields: Sequence[Mapping[str, Any]], refusal: _Refusal) -> Schema:
    return Schema(tuple(Field(str(field["name"]), _type(field["type"], refusal)) for field in fields))


def _type(given: Any, refusal: _Refusal, depth: int = 0) -> DataType:
    if depth > _MAX_DEPTH:
        raise refusal.unsupported(f"has a column that is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(given, str):
        found = _DECIMAL.fullmatch(given)
        if found is not None:
            return decimal(int(found[1]), int(found[2]))
        if given in _TYPES:
            return _TYPES[given]
        raise refusal.unsupported(f"has a column of the type {_shown(given)}, which is not read")
    kind = given["type"]
    if kind == "array":
        return array(_type(given["elementType"], refusal, depth + 1))
    if kind == "map":
        return mapping(*(_type(given[part], refusal, depth + 1) for part in ("keyType", "valueType")))
    return struct([Field(part["name"], _type(part["type"], refusal, depth + 1)) for part in given["fields"]])


def _has_deletion_vectors(table: Path, version: int, refusal: _Refusal) -> bool:
    """Whether a file of this version has a deletion vector.

    `deltalake` reports them only by reading them all, from wherever the log says that they are.
    """
    names = sorted(path.name for path in (table / LOG).iterdir())
    commits = {int(found[1]): name for name in names if (found := _COMMIT.fullmatch(name)) is not None}
    checkpoints: dict[int, list[str]] = {}
    for name in names:
        found = _CHECKPOINT.fullmatch(name)
        if found is not None and int(found[1]) <= version:
            checkpoints.setdefault(int(found[1]), []).append(name)
    start = max(checkpoints, default=-1)
    if start < 0 and 0 not in commits:
        raise refusal.unsupported("has a checkpoint of a form that is not read, and may have deletion vectors")
    has_vector: dict[str, bool] = {}
    try:
        for name in checkpoints.get(start, ()):
            with open_without_links(table / LOG / name) as stream:
                adds = pq.read_table(stream, columns=["add"]).column("add")
                if "deletionVector" in [field.name for field in adds.type]:
                    has_vector.update(
                        (add["path"], add["deletionVector"] is not None) for add in adds.to_pylist() if add is not None
                    )
        for number in range(start + 1, version + 1):
            _apply(table / LOG / commits[number], has_vector)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException):
        raise refusal.corrupt("has a log that cannot be read") from None
    return any(has_vector.values())


def _apply(commit: Path, has_vector: dict[str, bool]) -> None:
    added: dict[str, bool] = {}
    with open_without_links(commit) as stream:
        for line in stream:
            action = json.loads(line) if line.strip() else {}
            if "remove" in action:
                has_vector.pop(action["remove"]["path"], None)
            if "add" in action:
                added[action["add"]["path"]] = action["add"].get("deletionVector") is not None
    has_vector.update(added)
