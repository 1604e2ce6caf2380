"""Tasks of Spark that read the state of the keys that a mini-batch changes, and write its changes to it.

Each row has its key among its values: a look-up may also return rows of other keys with the same hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from workers.engine.streaming.changes.state_files import (
    KEY,
    WEIGHT,
    Bucket,
    Numbers,
    SortedRows,
    consolidated,
    locked,
    nullable,
    sorted_rows,
)

PORT, BUCKET = "$port", "$bucket"
"""Columns of the rows that a task gets: the number of the input, and the bucket of the key."""

_FLUSHED_BYTES = 64 << 20
"""The changes of an input that a task sorts in memory."""
_KEYS_AT_ONCE = 65_536
_ROWS_AT_ONCE = 65_536


def value_of(port: int, place: int) -> str:
    """Returns the name of the column `place` of the rows of an input."""
    return f"$row{port}_{place}"


class TooManyRowsError(Exception):
    """The changed keys have more rows in the state than the task may read."""


@dataclass(frozen=True)
class StateTask:
    """Reads the state of the keys with the hashes in `KEY`, and applies the changes of one mini-batch to it.

    The input `n` has `widths[n]` columns. Gets rows with the columns `PORT`, `BUCKET`, `KEY`, those of each input
    (`value_of`), which are NULL in the rows of other inputs, and `WEIGHT`; all rows of one bucket are in one partition.
    Changes of the inputs `applied` are written; if there are none, only the first three columns are needed.

    Returns the rows of the state before the mini-batch, with the columns `PORT`, those of the inputs `returned`, and
    `WEIGHT`. For a key that changed in the input `n`, those are its rows in the inputs `fetched[n]`.

    With `is_join`, returns the columns of both inputs and `WEIGHT`: for each change of an input, its pairs with the
    rows of the other one that have the same hash.

    Nothing that is written counts if the state has more than `most_rows` rows of these keys, or they have more pairs.
    """

    directory: str
    batch_id: int
    fence: int
    widths: tuple[int, ...]
    fetched: tuple[tuple[int, ...], ...]
    applied: frozenset[int]
    is_join: bool = False
    most_rows: int | None = None

    @property
    def ports(self) -> int:
        """The number of inputs."""
        return len(self.widths)

    @property
    def returned(self) -> tuple[int, ...]:
        """The inputs whose rows are returned."""
        return tuple(sorted({port for fetched in self.fetched for port in fetched}))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Runs the task for one partition. Raises StaleStateError, StateLockedError, TooManyRowsError and OSError."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        bucket = first.column(BUCKET)[0].as_py()
        with locked(Path(self.directory) / str(bucket)) as files:
            files.begin(self.batch_id, self.fence, self.applied)
            changes = _Changes(self, files, first.schema)
            for batch in chain([first], batches):
                _require_bucket(batch, bucket)
                changes.add(batch)
            changes.flush()
            read = 0
            for returned in changes.pairs() if self.is_join else changes.old():
                read += returned.num_rows
                if self.most_rows is not None and read > self.most_rows:
                    raise TooManyRowsError(f"The state of the changed keys has more than {self.most_rows} rows.")
                yield returned
            if self.applied:
                files.commit()


def _require_bucket(batch: pa.RecordBatch, bucket: int) -> None:
    context = TaskContext.get()
    if context is not None and context.partitionId() != bucket:
        raise ValueError(f"rows of bucket {bucket} are in partition {context.partitionId()}")
    if batch.num_rows and pc.unique(batch.column(BUCKET)).to_pylist() != [bucket]:
        raise ValueError(f"rows of bucket {bucket} are in one partition with those of others")


class _Changes:
    """The changes of one bucket. `schema` has the types of the columns."""

    def __init__(self, task: StateTask, files: Bucket, schema: pa.Schema) -> None:
        self._task = task
        self._files = files
        self._names = [[value_of(port, place) for place in range(width)] for port, width in enumerate(task.widths)]
        self._schema = schema
        self._pending: list[list[pa.RecordBatch]] = [[] for _ in task.widths]
        self._sorted: list[list[SortedRows]] = [[] for _ in task.widths]
        self._keys: list[list[Numbers]] = [[] for _ in task.widths]
        self._bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Adds changes."""
        for port in range(self._task.ports):
            own = batch if self._task.ports == 1 else batch.filter(pc.equal(batch.column(PORT), port))
            if not own.num_rows:
                continue
            if self._task.fetched[port] and not self._task.is_join:
                # Also those whose changes cancel out: Spark sees these changes too.
                self._keys[port].append(np.unique(own.column(KEY).to_numpy()))
            if port not in self._task.applied:
                continue
            rows = nullable(own.select([KEY, *self._names[port], WEIGHT]))
            self._pending[port].append(rows)
            self._bytes += rows.nbytes
        if self._bytes >= _FLUSHED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Sorts and writes what was added."""
        for port, pending in enumerate(self._pending):
            if not pending:
                continue
            rows = sorted_rows(pa.Table.from_batches(pending))
            pending.clear()
            written = self._files.add(port, rows)
            if self._task.is_join and written is not None:
                self._sorted[port].append(written)
        self._bytes = 0

    def old(self) -> Iterator[pa.RecordBatch]:
        """Returns the rows of the state before the mini-batch."""
        for port in self._task.returned:
            by = [other for other, fetched in enumerate(self._task.fetched) if port in fetched]
            keys = [some for other in by for some in self._keys[other]]
            before = self._files.before(port) if keys else []
            if not before:
                continue
            wanted = np.unique(np.concatenate(keys))
            for start in range(0, len(wanted), _KEYS_AT_ONCE):
                for batch in _rows_of(before, wanted[start : start + _KEYS_AT_ONCE]):
                    yield self._returned(port, batch)

    def pairs(self) -> Iterator[pa.RecordBatch]:
        """Returns the changes of the join: those of the left side with the new rows of the right one, and the old rows
        of the left side with the changes of the right one.
        """
        left, right = self._sorted
        new_right = [*self._files.before(1), *right]
        for changes in left:
            yield from self._pairs(changes, new_right, is_left=True)
        old_left = self._files.before(0)
        for changes in right:
            yield from self._pairs(changes, old_left, is_left=False)

    def _pairs(self, changes: SortedRows, others: list[SortedRows], *, is_left: bool) -> Iterator[pa.RecordBatch]:
        """Returns the pairs of `changes`, which are of the left or right side, with rows of the other one."""
        for batch, keys in zip(changes.batches, changes.keys, strict=True):
            wanted, firsts, counts = np.unique(keys, return_index=True, return_counts=True)
            for found in chain.from_iterable(rows.found(wanted) for rows in others):
                begins, numbers = firsts[found.owners], counts[found.owners]
                ends = np.cumsum(numbers * found.counts)
                for start in range(0, int(ends[-1]), _ROWS_AT_ONCE):
                    pairs = np.arange(start, min(start + _ROWS_AT_ONCE, int(ends[-1])))
                    owner = np.searchsorted(ends, pairs, "right")
                    place = pairs - (ends[owner] - numbers[owner] * found.counts[owner])
                    of_changes = batch.take(pa.array(begins[owner] + place // found.counts[owner]))
                    of_rows = found.batch.take(pa.array(found.begins[owner] + place % found.counts[owner]))
                    yield self._paired(of_changes, of_rows) if is_left else self._paired(of_rows, of_changes)

    def _paired(self, left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
        sides = zip((left, right), self._names, strict=True)
        columns = {name: side.column(name) for side, names in sides for name in names}
        weights = pc.multiply(left.column(WEIGHT), right.column(WEIGHT))
        return pa.RecordBatch.from_pydict({**columns, WEIGHT: weights})

    def _returned(self, port: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        count = batch.num_rows
        columns: dict[str, pa.Array] = {PORT: pa.repeat(pa.scalar(port, pa.int32()), count)}
        for other in self._task.returned:
            for name in self._names[other]:
                is_own = other == port
                columns[name] = batch.column(name) if is_own else pa.nulls(count, self._schema.field(name).type)
        return pa.RecordBatch.from_pydict({**columns, WEIGHT: batch.column(WEIGHT)})


def _rows_of(before: list[SortedRows], wanted: Numbers) -> Iterator[pa.RecordBatch]:
    """Returns the rows of the hashes `wanted`. Weights of equal rows are added up if some are negative."""
    found = [(rows, one) for rows in before for one in rows.found(wanted)]
    if len(wanted) > 1 and sum(int(one.counts.sum()) for _, one in found) > _ROWS_AT_ONCE:
        half = len(wanted) // 2
        yield from _rows_of(before, wanted[:half])
        yield from _rows_of(before, wanted[half:])
        return
    if len({id(rows) for rows, _ in found}) > 1 and any(rows.removes for rows, _ in found):
        whole = pa.Table.from_batches([one.batch.take(pa.array(one.places)) for _, one in found])
        yield from consolidated(whole).combine_chunks().to_batches(_ROWS_AT_ONCE)
        return
    for _, one in found:
        places = one.places
        for start in range(0, len(places), _ROWS_AT_ONCE):
            yield one.batch.take(pa.array(places[start : start + _ROWS_AT_ONCE]))
