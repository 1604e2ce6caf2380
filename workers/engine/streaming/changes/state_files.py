"""The state of an operator over changes: rows with weights, by key. It is kept in SQLite files, one for each bucket of
keys, so that a mini-batch only reads and writes the keys that it changes.

A task of Spark opens the file of its bucket (`StateTask`), so this module runs in Spark's Python processes and uses
nothing but the standard library and Arrow. A file has the tables

    rows<port>      the rows of an input of the operator: hash of the key, row, weight (the number of equal rows)
    delta<port>     the changes of the newest mini-batch, by which it can be undone
    meta            the newest mini-batch of each input, and the newest fencing token

A task is one transaction. If a mini-batch was interrupted after some files have its changes, the next attempt first
undoes it in all of them (`undo`). Rows are encoded by `marshal`, whose second version has one encoding for each value.
Each row has its key among its values: a look-up may also return rows of other keys with the same hash.
"""

# ruff: noqa: S608 - the texts of queries have only names and numbers of this module

from __future__ import annotations

import marshal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

PORT, BUCKET, KEY, WEIGHT, OLD, ROW = "$port", "$bucket", "$key", "$weight", "$old", "$row"
"""Columns of the rows that a task gets and returns. `ROW` is followed by the number of the input."""

_META, _APPLIED, _FENCE = "meta", "batch", "fence"
"""The table `meta`, and the names in it: the first is followed by the number of an input."""
_CREATE_META = f"CREATE TABLE IF NOT EXISTS {_META} (name TEXT PRIMARY KEY, value INTEGER NOT NULL)"
_MARSHAL = 2
_AT_ONCE = 8192
_WAIT_SECONDS = 120
_PAGES_KB = 32 << 10


class StaleStateError(Exception):
    """The state has changes of a newer attempt or of a later mini-batch."""


class TooManyRowsError(Exception):
    """The changed keys have more rows in the state than the task may read."""


@dataclass(frozen=True)
class StateTask:
    """Reads the state of the keys with the hashes in `KEY`, and applies the changes of one mini-batch to it.

    Gets rows with the columns `PORT`, `BUCKET`, `KEY`, `ROW` of each input and `WEIGHT`, all of one bucket in a
    partition. Returns the columns `PORT`, `OLD`, `ROW` of each input and `WEIGHT`: first the changes as it got them,
    then, with `OLD`, the rows of the state before the mini-batch. For a key that changed in the input `n`, those are
    its rows in the inputs `fetched[n]`. Changes of the inputs `applied` are written. Nothing is written if the state
    has more than `most_rows` rows of these keys.
    """

    directory: str
    batch_id: int
    fence: int
    fetched: tuple[tuple[int, ...], ...]
    applied: frozenset[int]
    most_rows: int | None = None

    @property
    def ports(self) -> int:
        """The number of inputs."""
        return len(self.fetched)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs the task for one partition. Raises StaleStateError, TooManyRowsError, sqlite3.Error and OSError."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        bucket = first.column(BUCKET)[0].as_py()
        path = Path(self.directory) / f"{bucket}.sqlite"
        with closing(_opened(path)) as file:
            state = _Bucket(file, self)
            state.begin()
            types = [first.schema.field(f"{ROW}{port}").type for port in range(self.ports)]
            batch: pa.RecordBatch | None = first
            while batch is not None:
                _require_bucket(batch, bucket)
                state.add(batch)
                yield self._changes(batch)
                batch = next(batches, None)
            read = 0
            for port, rows in state.old():
                read += len(rows)
                if self.most_rows is not None and read > self.most_rows:
                    raise TooManyRowsError(f"The state of the changed keys has more than {self.most_rows} rows.")
                yield self._old(port, rows, types)
            state.commit()

    def _changes(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = [batch.column(f"{ROW}{port}") for port in range(self.ports)]
        is_old = pa.repeat(pa.scalar(False), batch.num_rows)
        return _returned([batch.column(PORT), is_old, *rows, batch.column(WEIGHT)])

    def _old(self, port: int, rows: list[tuple[bytes, int]], types: list[pa.DataType]) -> pa.RecordBatch:
        count = len(rows)
        values = [marshal.loads(row) for row, _ in rows]  # noqa: S302 - this module wrote it
        columns = [
            from_values(values, kind) if place == port else pa.nulls(count, kind) for place, kind in enumerate(types)
        ]
        numbers = pa.array([port] * count, pa.int32())
        weights = pa.array([weight for _, weight in rows], pa.int64())
        return _returned([numbers, pa.repeat(pa.scalar(True), count), *columns, weights])


def _returned(columns: list[pa.Array]) -> pa.RecordBatch:
    names = [PORT, OLD, *(f"{ROW}{port}" for port in range(len(columns) - 3)), WEIGHT]
    return pa.RecordBatch.from_arrays(columns, names)


def _require_bucket(batch: pa.RecordBatch, bucket: int) -> None:
    if batch.num_rows and pc.unique(batch.column(BUCKET)).to_pylist() != [bucket]:
        raise ValueError(f"rows of bucket {bucket} are in one partition with those of others")


def undo(directory: Path, batch_id: int, fence: int) -> None:
    """Undoes a mini-batch in all files below `directory`, where earlier attempts may have run it, and excludes these
    attempts. Called before the first mini-batch of an attempt. Raises StaleStateError, sqlite3.Error and OSError.
    """
    for path in sorted(directory.glob("*/*.sqlite")):
        with closing(_opened(path)) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute(_CREATE_META)
            known = dict(file.execute(f"SELECT name, value FROM {_META}"))
            _require_newest(known, batch_id, fence)
            for name, value in known.items():
                if name.startswith(_APPLIED) and value == batch_id:
                    port = int(name.removeprefix(_APPLIED))
                    _apply(file, port, -1)
                    file.execute(f"DELETE FROM delta{port}")
                    _set(file, name, batch_id - 1)
            _set(file, _FENCE, fence)
            file.execute("COMMIT")


def _require_newest(known: dict[str, int], batch_id: int, fence: int) -> None:
    newest, last = known.get(_FENCE, 0), max((known[name] for name in known if name.startswith(_APPLIED)), default=-1)
    if newest > fence or last > batch_id:
        raise StaleStateError(
            f"The state has mini-batch {last} of attempt {newest}; this is mini-batch {batch_id} of attempt {fence}."
        )


def _apply(file: sqlite3.Connection, port: int, sign: int) -> None:
    """Adds the changes of an input to its rows; subtracts them with the `sign` -1."""
    file.execute(
        f"INSERT INTO rows{port} SELECT k, v, {sign} * w FROM delta{port} WHERE true ORDER BY k, v "
        "ON CONFLICT (k, v) DO UPDATE SET w = w + excluded.w"
    )
    # Only a negative weight can make 0 of a number of rows.
    file.execute(
        f"DELETE FROM rows{port} WHERE w = 0 AND (k, v) IN (SELECT k, v FROM delta{port} WHERE {sign} * w < 0)"
    )


def _set(file: sqlite3.Connection, name: str, value: int) -> None:
    file.execute(f"INSERT OR REPLACE INTO {_META} VALUES (?, ?)", (name, value))


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = sqlite3.connect(path, timeout=_WAIT_SECONDS, isolation_level=None)
    # Only one task at a time uses a file: no memory needs to be shared, which network file systems do not support.
    file.execute("PRAGMA locking_mode = EXCLUSIVE")
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("PRAGMA synchronous = FULL")
    file.execute(f"PRAGMA cache_size = -{_PAGES_KB}")
    return file


class _Bucket:
    """One mini-batch of an opened file."""

    def __init__(self, file: sqlite3.Connection, task: StateTask) -> None:
        self._file = file
        self._task = task

    def begin(self) -> None:
        """Begins the transaction. Undoes the same mini-batch of an earlier try."""
        self._file.execute("BEGIN IMMEDIATE")
        self._file.execute(_CREATE_META)
        for port in range(self._task.ports):
            self._file.execute(
                f"CREATE TABLE IF NOT EXISTS rows{port} "
                "(k INTEGER NOT NULL, v BLOB NOT NULL, w INTEGER NOT NULL, PRIMARY KEY (k, v)) WITHOUT ROWID"
            )
            self._file.execute(
                f"CREATE TABLE IF NOT EXISTS delta{port} (k INTEGER NOT NULL, v BLOB NOT NULL, w INTEGER NOT NULL)"
            )
            # Changes that are only looked up are not kept, so that they are not undone.
            self._file.execute(f"CREATE TEMP TABLE looked_up{port} (k INTEGER NOT NULL)")
        known = dict(self._file.execute(f"SELECT name, value FROM {_META}"))
        _require_newest(known, self._task.batch_id, self._task.fence)
        for port in self._task.applied:
            if known.get(f"{_APPLIED}{port}") == self._task.batch_id:
                # An earlier try of the same task has committed.
                _apply(self._file, port, -1)
            self._file.execute(f"DELETE FROM delta{port}")

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds changes."""
        ports = batch.column(PORT)
        for port in range(self._task.ports):
            own = pc.equal(ports, port)
            mine = batch if self._task.ports == 1 else batch.filter(own)
            if not mine.num_rows:
                continue
            keys = mine.column(KEY).to_pylist()
            if port not in self._task.applied:
                self._file.executemany(f"INSERT INTO looked_up{port} VALUES (?)", zip(keys, strict=True))
                continue
            rows = [marshal.dumps(row, _MARSHAL) for row in to_values(mine.column(f"{ROW}{port}"))]
            weights = mine.column(WEIGHT).to_pylist()
            self._file.executemany(
                f"INSERT INTO delta{port} VALUES (?, ?, ?)",
                zip(keys, rows, weights, strict=True),
            )

    def old(self) -> Iterator[tuple[int, list[tuple[bytes, int]]]]:
        """Yields rows of the state before the mini-batch, each as its encoding and weight, by input."""
        for port in range(self._task.ports):
            by = [other for other, fetched in enumerate(self._task.fetched) if port in fetched]
            if not by:
                continue
            changed = " UNION ".join(
                f"SELECT k FROM {'delta' if other in self._task.applied else 'looked_up'}{other}" for other in by
            )
            keys = f"(SELECT DISTINCT k FROM ({changed})) AS d"
            query = f"SELECT r.v, r.w FROM {keys} CROSS JOIN rows{port} AS r ON r.k = d.k"
            found = self._file.execute(query)
            while rows := found.fetchmany(_AT_ONCE):
                yield port, rows

    def commit(self) -> None:
        """Applies the changes and ends the transaction."""
        for port in self._task.applied:
            _apply(self._file, port, 1)
            _set(self._file, f"{_APPLIED}{port}", self._task.batch_id)
        if self._task.applied:
            _set(self._file, _FENCE, self._task.fence)
        self._file.execute("COMMIT")


def to_values(array: pa.Array) -> list[Any]:
    """Returns the values of a column as Python values that `marshal` encodes, and from which `from_values` makes the
    same column: structures and lists become tuples, times numbers, decimals texts.
    """
    kind = array.type
    if pa.types.is_struct(kind):
        rows = list(zip(*map(to_values, array.flatten()), strict=True)) if kind.num_fields else [()] * len(array)
        if array.null_count:
            return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
        return rows
    if pa.types.is_map(kind):
        pairs = list(zip(to_values(array.keys), to_values(array.items), strict=True))
        return _slices(array, pairs)
    if pa.types.is_list(kind):
        return _slices(array, to_values(array.values))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return list(array.cast(pa.int64()).to_pylist())
    if pa.types.is_date32(kind):
        return list(array.cast(pa.int32()).to_pylist())
    if pa.types.is_decimal(kind):
        return list(array.cast(pa.string()).to_pylist())
    if pa.types.is_string(kind):
        # Texts in files need not be valid UTF-8.
        return list(array.view(pa.binary()).to_pylist())
    return list(array.to_pylist())


def _slices(array: pa.Array, values: list[Any]) -> list[Any]:
    offsets = array.offsets.to_pylist()
    valid = array.is_valid().to_pylist()
    return [
        tuple(values[offsets[place] : offsets[place + 1]]) if is_valid else None for place, is_valid in enumerate(valid)
    ]


def from_values(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Returns the column of the type `kind` from which `to_values` made `values`."""
    if pa.types.is_struct(kind):
        none = (None,) * kind.num_fields
        columns = list(zip(*(none if value is None else value for value in values), strict=True))
        fields = [kind.field(place) for place in range(kind.num_fields)]
        arrays = [
            from_values(list(columns[place]) if columns else [], field.type) for place, field in enumerate(fields)
        ]
        return pa.StructArray.from_arrays(
            arrays, fields=fields, mask=pa.array([value is None for value in values], pa.bool_())
        )
    if pa.types.is_map(kind):
        offsets, pairs = _offsets(values)
        keys = from_values([key for key, _ in pairs], kind.key_type)
        return pa.MapArray.from_arrays(offsets, keys, from_values([item for _, item in pairs], kind.item_type), kind)
    if pa.types.is_list(kind):
        offsets, items = _offsets(values)
        return pa.ListArray.from_arrays(offsets, from_values(items, kind.value_type), kind)
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.array(values, pa.int64()).cast(kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    if pa.types.is_decimal(kind):
        return pa.array(values, pa.string()).cast(kind)
    if pa.types.is_string(kind):
        return pa.array(values, pa.binary()).view(kind)
    return pa.array(values, kind)


def _offsets(values: list[Any]) -> tuple[pa.Array, list[Any]]:
    offsets: list[int | None] = []
    items: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(items))
        items += value or ()
    return pa.array([*offsets, len(items)], pa.int32()), items
