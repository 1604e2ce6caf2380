"""Checks the log of a Delta table before `deltalake` reads it.

A log may come from anyone who can write to a data root. `deltalake` follows links, waits for pipes, opens the files
that checkpoints of version 2 name ("sidecars", anywhere), and reads logs of any size. So such logs are refused first.
"""

from __future__ import annotations

import io
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.config.data import Location
from service.contract.problems import SpecError
from service.data.file_io import open_without_links
from service.data.roots import Store

LOG = "_delta_log"

MAX_LOG_ENTRIES = 100_000
MAX_COMMIT_BYTES = 64 << 20
MAX_HINT_BYTES = 1 << 20
MAX_LOG_BYTES = 512 << 20
"""Limit for all files together that are read for a version."""
MAX_DECOMPRESSED_BYTES = 1 << 30
"""Limit for the pages of a checkpoint, and for its texts."""
MAX_LOG_VALUES = 10_000_000
"""Limit for the values in a column of a checkpoint."""
MAX_LOG_ROWS = 300_000
"""Limit for the rows of a checkpoint and the actions of the commits after it: `deltalake` needs about 1 KB for each."""

_HINT = "_last_checkpoint"
_SIDECAR = "sidecar"
_MIN_ACTION_BYTES = 20
_BATCH_ROWS = 4096
_CHUNK_BYTES = 1 << 20
_NUMBERED = re.compile(r"([0-9]{20})\.")
_COMMIT = re.compile(r"[0-9]{20}\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint(?:\.([0-9]{10})\.([0-9]{10}))?\.parquet")
_ANY_CHECKPOINT = re.compile(r"[0-9]{20}\.checkpoint\..*(parquet|json)", re.DOTALL)


class Refusal:
    """Creates the errors about one table. `given` is the path that the client gave."""

    def __init__(self, given: str, pointer: str) -> None:
        self._given = given
        self._pointer = pointer

    def unsupported(self, what: str) -> SpecError:
        """Returns `unsupported_construct`."""
        return SpecError.of("unsupported_construct", f"The Delta table '{self._given}' {what}.", pointer=self._pointer)

    def corrupt(self, what: str = "has a log that cannot be read") -> SpecError:
        """Returns `corrupt_file`."""
        return SpecError.of("corrupt_file", f"The Delta table '{self._given}' {what}.", pointer=self._pointer)

    def too_large(self) -> SpecError:
        """Returns `unsupported_construct` for a log that exceeds a limit."""
        return self.unsupported("has a log that is too large. Write a checkpoint and clean it up")

    def outside(self, path: str) -> SpecError:
        """Returns `path_outside_data_roots` for a data file."""
        detail = (
            f"The log of the Delta table '{self._given}' names the file '{shown(path)}', which is not inside of the "
            "table's directory."
        )
        return SpecError.of("path_outside_data_roots", detail, pointer=self._pointer)


def shown(name: str) -> str:
    """Returns a name from the log as messages contain it."""
    return name[:200].encode(errors="replace").decode()


class Log(ABC):
    """The files of one log."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal

    @abstractmethod
    def entries(self) -> Iterator[tuple[str, int]]:
        """Yields path (relative to the log) and size in bytes of each file, also in subdirectories; the path of a
        directory ends in `/`. Raises SpecError for entries that are neither directories nor regular files, and OSError.
        """

    @abstractmethod
    def open(self, name: str) -> IO[bytes] | pa.NativeFile:
        """Opens a file of the log; the caller closes it. Raises OSError."""


class LocalLog(Log):
    """The log of a table in a local directory, whose path has no links."""

    def __init__(self, table: Path, refusal: Refusal) -> None:
        super().__init__(refusal)
        self._directory = table / LOG

    def entries(self) -> Iterator[tuple[str, int]]:
        """See Log."""
        if self._directory.is_symlink():
            raise self.refusal.unsupported("has a log that is a link")
        directories = [""]
        while directories:
            prefix = directories.pop()
            with os.scandir(self._directory / prefix) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        raise self.refusal.unsupported(f"has the link '{shown(entry.name)}' in its log")
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(f"{prefix}{entry.name}/")
                        yield f"{prefix}{entry.name}/", 0
                    elif entry.is_file(follow_symlinks=False):
                        yield f"{prefix}{entry.name}", entry.stat(follow_symlinks=False).st_size
                    else:
                        detail = f"has '{shown(entry.name)}' in its log, which is not a regular file"
                        raise self.refusal.unsupported(detail)

    def open(self, name: str) -> IO[bytes]:
        """See Log."""
        return open_without_links(self._directory / name)


class StoredLog(Log):
    """The log of a table in a store."""

    def __init__(self, store: Store, table: Location, refusal: Refusal) -> None:
        super().__init__(refusal)
        self._store = store
        self._directory = f"{table.path}/{LOG}" if table.path else LOG

    def entries(self) -> Iterator[tuple[str, int]]:
        """See Log. Also raises StoreUnavailableError."""
        deadline = self._store.clock() + self._store.search_seconds
        directories = [""]
        while directories:
            prefix = directories.pop()
            listed = self._store.children(f"{self._directory}/{prefix}".rstrip("/"), deadline - self._store.clock())
            for child in listed or ():
                if child.is_directory:
                    directories.append(f"{prefix}{child.name}/")
                yield f"{prefix}{child.name}" + "/" * child.is_directory, child.size

    def open(self, name: str) -> pa.NativeFile:
        """See Log."""
        return self._store.open(f"{self._directory}/{name}")


@dataclass(frozen=True)
class Segment:
    """The files of a log from which a version is read: the parts of a checkpoint, if there is one, and the commits
    after it by number.
    """

    version: int
    checkpoint: tuple[str, ...]
    first_commit: int
    commits: dict[int, str]


def check_log(log: Log, version: int | None) -> Segment:
    """Checks the log for reading `version`, by default the latest one, and returns the files that are read.

    Raises SpecError `unsupported_construct` and `corrupt_file`, and StoreUnavailableError.
    """
    try:
        sizes = _check_names(log)
        _check_hint(log, sizes)
        segment = _segment(sizes, version)
        _check_sizes(log, segment, sizes)
    except (OSError, ValueError, pa.ArrowException):
        raise log.refusal.corrupt() from None
    return segment


def _check_names(log: Log) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for count, (path, size) in enumerate(log.entries(), 1):
        if count > MAX_LOG_ENTRIES:
            raise log.refusal.too_large()
        directory, _, name = path.rpartition("/")
        if _ANY_CHECKPOINT.fullmatch(name) and (directory or not _CHECKPOINT.fullmatch(name)):
            raise _refused_version_2(log, name)
        if size > (MAX_COMMIT_BYTES if name.endswith((".json", ".crc")) else MAX_LOG_BYTES):
            raise log.refusal.too_large()
        if name:
            sizes[path] = size
    return sizes


def _refused_version_2(log: Log, name: str) -> SpecError:
    return log.refusal.unsupported(
        f"has the checkpoint '{shown(name)}' of version 2 (feature v2Checkpoint), which is not read"
    )


def _check_hint(log: Log, sizes: dict[str, int]) -> None:
    size = sizes.get(_HINT)
    if size is None:
        return
    if size > MAX_HINT_BYTES:
        raise log.refusal.too_large()
    with log.open(_HINT) as stream:
        data = stream.read(MAX_HINT_BYTES)
    try:
        hint = json.loads(data)
    except (ValueError, RecursionError):
        # `deltalake` ignores it too.
        return
    if isinstance(hint, dict) and hint.get("v2Checkpoint") is not None:
        raise _refused_version_2(log, _HINT)


def _segment(names: Iterable[str], version: int | None) -> Segment:
    commits = {int(name[:20]): name for name in names if _COMMIT.fullmatch(name)}
    checkpoints = _complete_checkpoints(names)
    last = max((*commits, *checkpoints), default=0) if version is None else version
    start = max((number for number in checkpoints if number <= last), default=-1)
    after = {number: name for number, name in commits.items() if start < number <= last}
    return Segment(last, checkpoints.get(start, ()), start + 1, after)


def _complete_checkpoints(names: Iterable[str]) -> dict[int, tuple[str, ...]]:
    """Returns the parts of each checkpoint of which all parts exist."""
    found: dict[tuple[int, int], dict[int, str]] = {}
    for name in names:
        match = _CHECKPOINT.fullmatch(name)
        if match is not None:
            part, parts = (int(match[2]), int(match[3])) if match[2] else (1, 0)
            found.setdefault((int(match[1]), parts), {})[part] = name
    complete: dict[int, tuple[str, ...]] = {}
    for (number, parts), by_part in sorted(found.items()):
        # A checkpoint in one file comes first, as for `deltalake`.
        if number not in complete and len(by_part) == max(parts, 1) and set(by_part) == set(range(1, len(by_part) + 1)):
            complete[number] = tuple(by_part[part] for part in sorted(by_part))
    return complete


def _check_sizes(log: Log, segment: Segment, sizes: dict[str, int]) -> None:
    later = 0
    for path, size in sizes.items():
        # Also checksums and compacted commits, which `deltalake` may read.
        found = _NUMBERED.match(path.rpartition("/")[2])
        if found and path not in segment.checkpoint and segment.first_commit <= int(found[1]) <= segment.version:
            later += size if path.endswith((".json", ".crc")) else 0
    if later + sum(sizes[name] for name in segment.checkpoint) > MAX_LOG_BYTES:
        raise log.refusal.too_large()
    rows = decompressed = 0
    for name in segment.checkpoint:
        with log.open(name) as stream, pq.ParquetFile(stream) as parquet:
            metadata = parquet.metadata
            groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
            rows += max(metadata.num_rows, sum(group.num_rows for group in groups))
            decompressed += sum(group.total_byte_size for group in groups)
            if rows > MAX_LOG_ROWS or decompressed > MAX_DECOMPRESSED_BYTES:
                raise log.refusal.too_large()
            _check_texts(log, name, metadata, MAX_DECOMPRESSED_BYTES - decompressed)
            if _has_sidecars(parquet):
                raise _refused_version_2(log, name)
    if rows + later // _MIN_ACTION_BYTES > MAX_LOG_ROWS:
        for name in segment.commits.values():
            rows += _count_lines(log, name)
            if rows > MAX_LOG_ROWS:
                raise log.refusal.too_large()


def _check_texts(log: Log, name: str, metadata: pq.FileMetaData, most: int) -> None:
    """Checks how long the texts of a checkpoint are once each row has its own: a page may have a text once for many."""
    chunks = [
        metadata.row_group(group).column(column)
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    if any(chunk.num_values > MAX_LOG_VALUES for chunk in chunks):
        raise log.refusal.too_large()
    if sum(chunk.num_values * chunk.total_uncompressed_size for chunk in chunks) <= most:
        return
    texts = [chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"]
    total = 0
    with log.open(name) as stream, pq.ParquetFile(stream, read_dictionary=sorted(set(texts))) as parquet:
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=sorted(set(texts))):
            total += sum(map(_text_bytes, batch.columns))
            if total > most:
                raise log.refusal.too_large()


def _text_bytes(values: pa.Array) -> int:
    """Returns the bytes of all texts in a column, of which equal ones are stored once."""
    if pa.types.is_dictionary(values.type):
        return pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0
    if pa.types.is_struct(values.type):
        return sum(map(_text_bytes, values.flatten()))
    if pa.types.is_map(values.type):
        return _text_bytes(values.keys) + _text_bytes(values.items)
    return _text_bytes(values.values) if pa.types.is_list(values.type) else 0


def _has_sidecars(parquet: pq.ParquetFile) -> bool:
    """Whether a checkpoint names further files. The column itself is usual."""
    found = [name for name in parquet.schema_arrow.names if name.casefold() == _SIDECAR]
    if not found:
        return False
    path = f"{_SIDECAR}.path"
    leaves = [parquet.schema.column(number).path for number in range(len(parquet.schema))]
    if found != [_SIDECAR] or path not in leaves:
        return True
    batches = parquet.iter_batches(_BATCH_ROWS, columns=[path])
    return any(batch.column(0).null_count < batch.num_rows for batch in batches)


def _count_lines(log: Log, name: str) -> int:
    count = 1
    with log.open(name) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            count += chunk.count(b"\n")
    return count


def has_deletion_vectors(log: Log, segment: Segment) -> bool:
    """Whether a file of the version has a deletion vector. Raises SpecError `corrupt_file`.

    `deltalake` reports them only by reading them all, from wherever the log says that they are.
    """
    has_vector: dict[str, bool] = {}
    try:
        for name in segment.checkpoint:
            with log.open(name) as stream, pq.ParquetFile(stream) as parquet:
                has_vector.update(_vectors_of_checkpoint(parquet))
        for number in range(segment.first_commit, segment.version + 1):
            _apply(log, segment.commits[number], has_vector)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, pa.ArrowException):
        raise log.refusal.corrupt() from None
    return any(has_vector.values())


def _vectors_of_checkpoint(parquet: pq.ParquetFile) -> Iterator[tuple[str, bool]]:
    for batch in parquet.iter_batches(_BATCH_ROWS, columns=["add.path", "add.deletionVector"]):
        for add in batch.column("add").to_pylist():
            if add is not None:
                yield add["path"], add.get("deletionVector") is not None


def _apply(log: Log, commit: str, has_vector: dict[str, bool]) -> None:
    added: dict[str, bool] = {}
    with log.open(commit) as stream:
        for line in stream if not isinstance(stream, pa.NativeFile) else io.BytesIO(stream.read()):
            action = json.loads(line) if line.strip() else {}
            if "remove" in action:
                has_vector.pop(action["remove"]["path"], None)
            if "add" in action:
                added[action["add"]["path"]] = action["add"].get("deletionVector") is not None
    has_vector.update(added)
