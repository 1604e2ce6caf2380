"""The files of the state of an operator over changes: rows with weights, by key. They are divided into buckets of keys:

    <step>/<bucket>/manifest.json    which files are the state, and the newest fencing token
    <step>/<bucket>/<name>.arrow     rows of an input: the hash of the key, the columns, and the weight
    <step>/<bucket>/lock             locked by the task that reads or writes the bucket

A file of rows never changes. It is sorted by the hash and not compressed, so that a reader maps it into memory and
finds the rows of a key by binary search. A mini-batch writes a new file with its changes, and replaces the manifest:
files that the manifest does not name do not count. A mini-batch is undone by removing its files from the manifest.

After some mini-batches, their files are merged, and rows whose weights add up to 0 are removed. In n mini-batches, a
row is merged about log n times, and a bucket has about log n files.

Tasks of Spark use this module in processes that need not have this package. It uses nothing but the standard library,
Arrow and NumPy.
"""

from __future__ import annotations

import fcntl
import json
import marshal
import math
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

KEY, WEIGHT = "$key", "$weight"
"""The hash of a row's key, and its weight."""

Numbers = npt.NDArray[np.int64]

_MANIFEST, _LOCK = "manifest.json", "lock"
_VERSION = 1
_BATCH_ROWS, _BATCH_BYTES = 131_072, 16 << 20
"""The most rows of a record batch in a file, and about the most bytes."""
_MERGED_FILES = 4
"""The fewest files that are merged."""
_WAIT_SECONDS = 120
_POLL_SECONDS = 0.02


class UnknownStateError(Exception):
    """The state was written by another version of the service."""


class StaleStateError(Exception):
    """The state has changes of a newer attempt or of a later mini-batch."""


class StateLockedError(Exception):
    """Another task has locked the bucket for too long."""


@dataclass(frozen=True)
class FileEntry:
    """A file of the manifest. `batch_id` is the newest mini-batch whose changes it has; `removes`: a weight is
    negative.
    """

    name: str
    port: int
    batch_id: int
    rows: int
    bytes: int
    removes: bool


@dataclass(frozen=True)
class Manifest:
    """What a bucket has. `newest` is the newest mini-batch that wrote to it; -1 if none did."""

    fence: int = 0
    newest: int = -1
    files: tuple[FileEntry, ...] = ()

    def require(self, batch_id: int, fence: int) -> None:
        """Raises StaleStateError if a newer attempt or a later mini-batch has written."""
        if self.fence > fence or self.newest > batch_id:
            raise StaleStateError(
                f"The state has mini-batch {self.newest} of attempt {self.fence}; "
                f"this is mini-batch {batch_id} of attempt {fence}."
            )


@dataclass(frozen=True)
class SortedRows:
    """Rows in the order of their keys' hashes. `removes`: a weight is negative."""

    batches: tuple[pa.RecordBatch, ...]
    removes: bool
    keys: tuple[Numbers, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(batch.column(KEY).to_numpy() for batch in self.batches))

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(batch.num_rows for batch in self.batches)

    def found(self, wanted: Numbers) -> Iterator[Found]:
        """Returns where the rows of the hashes `wanted` are, which are sorted and different."""
        for batch, keys in zip(self.batches, self.keys, strict=True):
            first, end = np.searchsorted(wanted, keys[0], "left"), np.searchsorted(wanted, keys[-1], "right")
            some = wanted[first:end]
            if not some.size:
                continue
            begins = np.searchsorted(keys, some, "left")
            counts = np.searchsorted(keys, some, "right") - begins
            has_rows = counts > 0
            if has_rows.any():
                yield Found(batch, first + np.flatnonzero(has_rows), begins[has_rows], counts[has_rows])


@dataclass(frozen=True)
class Found:
    """Rows of a batch. Of the wanted hash at the place `owners[n]`, it has `counts[n]` rows, from `begins[n]` on."""

    batch: pa.RecordBatch
    owners: Numbers
    begins: Numbers
    counts: Numbers

    @property
    def places(self) -> Numbers:
        """The places of the rows in the batch."""
        ends = np.cumsum(self.counts)
        return np.repeat(self.begins - (ends - self.counts), self.counts) + np.arange(ends[-1])


def sorted_rows(rows: pa.Table) -> SortedRows:
    """Returns the rows of a table with the columns `KEY` and `WEIGHT`. If it removes rows, weights of equal rows are
    added up.
    """
    removes = _removes(rows)
    if removes:
        rows = consolidated(rows)
        removes = _removes(rows)
    order = np.argsort(rows.column(KEY).to_numpy(), kind="stable")
    batches = rows.take(pa.array(order)).combine_chunks().to_batches(_batch_rows(rows))
    return SortedRows(tuple(batch for batch in batches if batch.num_rows), removes)


def _batch_rows(rows: pa.Table) -> int:
    return max(1, min(_BATCH_ROWS, int(rows.num_rows * _BATCH_BYTES // max(1, rows.nbytes))))


def nullable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Returns the rows with columns and fields that may be NULL, so that those of all mini-batches have one type."""
    columns = [column.cast(_nullable(column.type)) for column in rows.columns]
    return pa.RecordBatch.from_arrays(columns, rows.schema.names)


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _nullable(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _nullable(kind.value_type)))
    if pa.types.is_map(kind):
        items = pa.field(kind.item_field.name, _nullable(kind.item_type))
        return pa.map_(pa.field(kind.key_field.name, _nullable(kind.key_type), nullable=False), items)
    return kind


def _removes(rows: pa.Table) -> bool:
    return bool(rows.num_rows and pc.min(rows.column(WEIGHT)).as_py() < 0)


@contextmanager
def locked(directory: Path) -> Iterator[Bucket]:
    """Locks the bucket in `directory`, which is created. Raises StateLockedError and OSError."""
    if not directory.is_dir():
        directory.mkdir(parents=True, exist_ok=True)
        _sync(directory.parent)
        _sync(directory.parent.parent)
    with (directory / _LOCK).open("ab") as file:
        _lock(file, directory)
        yield Bucket(directory)


def _lock(file: IO[bytes], directory: Path) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise StateLockedError(f"Another task has locked {directory} for {_WAIT_SECONDS} s.") from None
        time.sleep(_POLL_SECONDS)


class Bucket:
    """The locked files of a bucket, in one mini-batch."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.manifest = read_manifest(directory)
        self._added: list[FileEntry] = []

    def begin(self, batch_id: int, fence: int, applied: Iterable[int]) -> None:
        """Begins a mini-batch that writes rows of the inputs `applied`. What an earlier try of the same task has
        written no longer counts. Raises StaleStateError.
        """
        self.manifest.require(batch_id, fence)
        self._batch_id, self._fence = batch_id, fence
        ports = frozenset(applied)
        files = tuple(file for file in self.manifest.files if file.port not in ports or file.batch_id < batch_id)
        self.manifest = replace(self.manifest, files=files)

    def before(self, port: int) -> list[SortedRows]:
        """Returns the rows of an input before the mini-batch."""
        files = [file for file in self.manifest.files if file.port == port and file.batch_id < self._batch_id]
        return [self._opened(file) for file in files]

    def add(self, port: int, rows: SortedRows) -> SortedRows | None:
        """Writes changes of an input, and returns them as they are in the file; None for none."""
        if not rows.rows:
            return None
        self._added.append(self._write(port, self._batch_id, rows.batches[0].schema, [rows]))
        return self._opened(self._added[-1])

    def commit(self) -> None:
        """Ends the mini-batch: what was added counts."""
        ports = {file.port for file in self._added}
        kept = [file for file in self.manifest.files if file.port not in ports]
        for port in ports:
            kept += self._merged([file for file in self.manifest.files if file.port == port])
        files = (*kept, *self._added)
        self.manifest = Manifest(self._fence, self._batch_id, files)
        write_manifest(self._directory, self.manifest)
        names = {file.name for file in files}
        for path in self._directory.glob("*.arrow"):
            if path.name not in names:
                path.unlink(missing_ok=True)

    def undo(self, batch_id: int, fence: int) -> None:
        """Undoes a mini-batch, and excludes earlier attempts. Raises StaleStateError."""
        self.manifest.require(batch_id, fence)
        files = tuple(file for file in self.manifest.files if file.batch_id < batch_id)
        self.manifest = Manifest(fence, min(self.manifest.newest, batch_id - 1), files)
        write_manifest(self._directory, self.manifest)

    def _opened(self, file: FileEntry) -> SortedRows:
        reader = pa.ipc.open_file(pa.memory_map(str(self._directory / file.name)))
        batches = tuple(reader.get_batch(place) for place in range(reader.num_record_batches))
        return SortedRows(batches, file.removes)

    def _merged(self, files: list[FileEntry]) -> list[FileEntry]:
        """Merges the newest files of an input: as many as possible of which the oldest is not larger than the others
        together.
        """
        first, rows = len(files), 0
        for place in reversed(range(len(files))):
            if files[place].rows <= rows:
                first = place
            rows += files[place].rows
        chosen = files[first:]
        if len(chosen) < _MERGED_FILES:
            return files
        newest = chosen[-1]
        opened = [self._opened(file) for file in chosen]
        written = self._write(newest.port, newest.batch_id, opened[0].batches[0].schema, merged(opened))
        return [*files[:first], written] if written.rows else files[:first]

    def _write(self, port: int, batch_id: int, schema: pa.Schema, parts: Iterable[SortedRows]) -> FileEntry:
        """Writes a file, whose name no other try of the task has."""
        rows, removes = 0, False
        name = f"{port}-{batch_id}-{secrets.token_hex(8)}.arrow"
        with (self._directory / name).open("xb") as file:
            with pa.ipc.new_file(file, schema) as writer:
                for part in parts:
                    rows, removes = rows + part.rows, removes or part.removes
                    for batch in part.batches:
                        writer.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
        return FileEntry(name, port, batch_id, rows, size, removes)


def merged(parts: Sequence[SortedRows]) -> Iterator[SortedRows]:
    """Returns the rows of all parts in order, in pieces of about a batch."""
    largest = max(parts, key=lambda part: part.rows)
    # All rows of a hash are in one piece.
    bounds = np.unique(np.array([keys[0] for keys in largest.keys][1:], np.int64))
    for place in range(len(bounds) + 1):
        low = bounds[place - 1] if place else None
        high = bounds[place] if place < len(bounds) else None
        slices = [piece for part in parts for piece in _between(part, low, high)]
        if len({key for piece in slices for key in _ends(piece)}) == 1 and not any(part.removes for part in parts):
            # Rows of one hash, which may be many, need no order.
            yield from (SortedRows((piece,), removes=False) for piece in slices)
        elif slices:
            yield sorted_rows(pa.Table.from_batches(slices))


def _ends(rows: pa.RecordBatch) -> tuple[int, int]:
    keys = rows.column(KEY)
    return keys[0].as_py(), keys[-1].as_py()


def _between(rows: SortedRows, low: np.int64 | None, high: np.int64 | None) -> Iterator[pa.RecordBatch]:
    for batch, keys in zip(rows.batches, rows.keys, strict=True):
        first = 0 if low is None else int(np.searchsorted(keys, low, "left"))
        end = len(keys) if high is None else int(np.searchsorted(keys, high, "left"))
        if first < end:
            yield batch.slice(first, end - first)


def read_manifest(directory: Path) -> Manifest:
    """Returns the manifest of a bucket; an empty one if it has none."""
    try:
        read: dict[str, Any] = json.loads((directory / _MANIFEST).read_bytes())
    except FileNotFoundError:
        return Manifest()
    if read.pop("version") != _VERSION:
        raise UnknownStateError(f"The state in {directory} was written by another version.")
    return Manifest(**{**read, "files": tuple(FileEntry(**file) for file in read["files"])})


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Replaces the manifest of a bucket."""
    path = directory / f"{_MANIFEST}.new"
    with path.open("w") as file:
        json.dump({"version": _VERSION, **asdict(manifest)}, file)
        file.flush()
        os.fsync(file.fileno())
    # The files that it names must not disappear.
    _sync(directory)
    path.replace(directory / _MANIFEST)
    _sync(directory)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def undo(directory: Path, batch_id: int, fence: int, steps: int, buckets: int) -> None:
    """Undoes a mini-batch in all buckets of all steps, where earlier attempts may have run it, and excludes these
    attempts. Called before the first mini-batch of an attempt. Raises UnknownStateError, StaleStateError,
    StateLockedError and OSError.
    """
    if any(directory.glob("*/*.sqlite")):
        raise UnknownStateError(
            "The state was written by an earlier version, in SQLite files. Start the stream as a new job."
        )
    for step in range(steps):
        for bucket in range(buckets):
            with locked(directory / str(step) / str(bucket)) as own:
                own.undo(batch_id, fence)


def consolidated(rows: pa.Table) -> pa.Table:
    """Returns the rows with the sums of the weights of equal rows, without those whose sum is 0."""
    names = [name for name in rows.column_names if name != WEIGHT]
    parts = [part for name in names for part in _comparable(rows.column(name).combine_chunks())]
    columns = {str(place): part for place, part in enumerate(parts)}
    own = pa.table({**columns, WEIGHT: rows.column(WEIGHT), "place": np.arange(rows.num_rows)})
    summed = own.group_by(list(columns), use_threads=False).aggregate([(WEIGHT, "sum"), ("place", "min")])
    summed = summed.filter(pc.not_equal(summed.column(f"{WEIGHT}_sum"), 0))
    chosen = rows.take(summed.column("place_min"))
    return chosen.set_column(chosen.column_names.index(WEIGHT), WEIGHT, summed.column(f"{WEIGHT}_sum"))


def _comparable(array: pa.Array) -> list[pa.Array]:
    """Returns columns of which equal values have equal bits, and different values others, for `group_by` of Arrow. 0.0
    equals -0.0.
    """
    kind = array.type
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], kind)
    if pa.types.is_struct(kind):
        return [array.is_valid(), *(part for child in array.flatten() for part in _comparable(child))]
    if pa.types.is_floating(kind):
        # One zero and one NaN, as in GROUP BY of Spark.
        one_zero = pc.if_else(pc.equal(array, 0), pa.scalar(0.0, kind), array)
        one_nan = pc.if_else(pc.is_nan(array), pa.scalar(math.nan, kind), one_zero)
        return [one_nan.view(pa.int64() if pa.types.is_float64(kind) else pa.int32())]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        # The second version of the encoding has one text for each value.
        return [pa.array([marshal.dumps(value, 2) for value in to_values(array)], pa.binary())]
    return [array]


def to_values(array: pa.Array) -> list[Any]:
    """Returns the values of a column as Python values that `marshal` encodes: structures and lists become tuples, times
    numbers, decimals texts.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        rows = list(zip(*map(to_values, array.flatten()), strict=True)) if kind.num_fields else [()] * len(array)
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_map(kind):
        return _slices(array, list(zip(to_values(array.keys), to_values(array.items), strict=True)))
    if pa.types.is_list(kind):
        return _slices(array, to_values(array.values))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_date32(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if pa.types.is_decimal(kind):
        return list(array.cast(pa.string()).to_pylist())
    if pa.types.is_floating(kind):
        return [None if value is None else _one_of(value) for value in array.to_pylist()]
    if pa.types.is_string(kind):
        # Texts in files need not be valid UTF-8.
        return list(array.view(pa.binary()).to_pylist())
    return list(array.to_pylist())


def _one_of(value: float) -> float:
    """Returns the value with one zero and one NaN."""
    return math.nan if math.isnan(value) else value or 0.0


def _slices(array: pa.Array, values: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [
        tuple(values[offsets[place] : offsets[place + 1]]) if is_valid else None for place, is_valid in enumerate(valid)
    ]
